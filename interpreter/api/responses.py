"""What every response has, whichever handler makes it: request id, headers, error body, log line."""

import asyncio
import logging
import re
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from interpreter.api.errors import error_body, retry_after, to_error
from interpreter.api.jsonbody import dump_json
from interpreter.errors import InterpreterError, UnavailableError
from interpreter.jsontext import has_few_values
from interpreter.models import Run

CLIENT_CLOSED = 499
"""The status in the log of a request whose client went away before its answer (nginx's number)."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:+=/-]{1,128}")
_API_POLICY = "default-src 'none'; frame-ancestors 'none'"
_access_log = logging.getLogger("interpreter.access")
_log = logging.getLogger("interpreter.api")


class Responses(RequestHandler):
    """Mixed into every handler, also into that of static files and of unknown routes."""

    route: str = ""
    """The pattern of the route, which is what the log shows: a path may hold what is not for it."""
    token_id: str | None = None
    failure: str | None = None
    """What the client was told that went wrong here or at the gateway."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of this route, for the Allow header."""
        return ("GET", "HEAD")

    @property
    def request_id(self) -> str:
        """The client's X-Request-Id when it is a plain one, else an id of our own."""
        known: str | None = getattr(self, "_request_id", None)
        if known is None:
            asked = self.request.headers.get("X-Request-Id", "")
            known = self._request_id = (
                asked if _REQUEST_ID.fullmatch(asked) else f"req_{secrets.token_hex(10)}"
            )
        return known

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("X-Request-Id", self.request_id)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Security-Policy", _API_POLICY)

    def compute_etag(self) -> str | None:
        return None

    def reply(self, value: Any, status: int = 200) -> None:
        """Answer with JSON."""
        self._finish_json(dump_json(value), status)

    async def reply_run(self, run: Run) -> None:
        """Answer with a run, which may be large; when there is no room for it, where it is found later."""
        data = await dump_run(run)
        try:
            self._finish_json(data, 200)
        except UnavailableError as error:
            told = f"{error.message} Later GET /v1/runs/{run.id} tells of the run, which is not to be sent again."
            raise UnavailableError(told, retry_after=error.retry_after) from error

    def _finish_json(self, data: bytes, status: int) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(data)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """The one error body, for whatever was raised."""
        raised = kwargs.get("exc_info", (None, None, None))[1] or HTTPError(status_code)
        self.show_error(to_error(raised))

    def show_error(self, error: InterpreterError) -> None:
        """Answer with an error; what is not the client's own is told in the log, too."""
        if error.status >= 500:
            self.failure = error.message
        self.set_error_headers(error)
        self.reply(error_body(error, self.request_id), error.status)

    def set_error_headers(self, error: InterpreterError) -> None:
        """The headers that go with an error, whatever its body is."""
        if error.status == 405:
            self.set_header("Allow", ", ".join(self.methods))
            if self.request.method not in self.SUPPORTED_METHODS:  # Tornado does not read on after those
                self.set_header("Connection", "close")
        if error.status == 401:
            self.set_header("WWW-Authenticate", 'Bearer realm="interpreter"')
        if (seconds := retry_after(error)) is not None:
            self.set_header("Retry-After", seconds)

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log what is our bug. Tornado's own would log the URL, and with it a token."""
        if value is None or isinstance(value, HTTPError | InterpreterError | StreamClosedError):
            return
        _log.error(
            "%s %s failed (request %s)",
            self.request.method,
            self.route,
            self.request_id,
            exc_info=(type(value), value, tb),
        )

    def _request_summary(self) -> str:
        return f"{self.request.method} {self.route}"


async def dump_run(run: Run) -> bytes:
    """The JSON of a run; with very many values in displays it is written in a thread, and others go on meanwhile."""
    if has_few_values(list(run.folded.outputs)):
        return dump_json(run.as_json())
    return await asyncio.to_thread(dump_json, run.as_json())


def log_request(handler: RequestHandler) -> None:
    """The canonical line of a request: Tornado's ``log_function``."""
    request = handler.request
    fields: Mapping[str, object] = {
        "method": request.method,
        "route": getattr(handler, "route", ""),
        "status": handler.get_status(),
        "duration_ms": round(request.request_time() * 1000),
        "request_id": getattr(handler, "request_id", None),
        "token_id": getattr(handler, "token_id", None),
        "error": getattr(handler, "failure", None),
    }
    level = logging.ERROR if handler.get_status() >= 500 else logging.INFO
    line = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    _access_log.log(level, "request %s", line, extra=dict(fields))
