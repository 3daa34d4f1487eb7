"""The base of every handler: authenticated by default, checked input, cancelled with its client.

A handler names its `operations` and writes one ``do_<method>`` for each. The base does the rest in
this order: token (401), rate (429), method (405), role (403), body (413, 503, 415, 400).
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, urlencode

from tornado.web import RequestHandler, stream_request_body

from interpreter.api import accept, auth
from interpreter.api.body import BODY_TIMEOUT, LINGER, MAX_DRAINED_BYTES, Body
from interpreter.api.connections import connection_of
from interpreter.api.jsonbody import find_surrogate, parse_json
from interpreter.api.limits import RateLimiter
from interpreter.api.locations import local_path
from interpreter.api.mediatype import check_media_type
from interpreter.api.operations import Access, Operation
from interpreter.api.query import read_query
from interpreter.api.responses import CLIENT_CLOSED
from interpreter.api.schemas import Schemas
from interpreter.api.services import Services
from interpreter.api.shares import Shares, crowded
from interpreter.api.unread import CountedAnswers, Unread
from interpreter.errors import (
    ForbiddenError,
    InterpreterError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    RateLimitedError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
)
from interpreter.models import Principal, is_id, parse_run_id

_UNBOUNDED = 2**62
_MAX_DIGITS = 18
_THREAD_BYTES = 1024**2  # larger bodies are read in a thread, so that others do not wait
_FORM = "application/x-www-form-urlencoded"
_SAFE = ("GET", "HEAD")
_FOREIGN_TEXT = frozenset({"tool_calls"})
"""Fields that hold what a model wrote: what is wrong in there is answered to the model."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What handlers need beside the services, shared by all of them."""

    services: Services
    schemas: Schemas
    rates: RateLimiter
    logins: RateLimiter
    bodies: Shares
    unread: Unread


@stream_request_body
class BaseHandler(CountedAnswers):
    """Subclass it, fill `operations` (by method) and define ``do_get``, ``do_post`` …"""

    operations: ClassVar[Mapping[str, Operation]] = {}

    def initialize(self, toolbox: Toolbox, route: str) -> None:
        self.toolbox = toolbox
        self.services, self.unread = toolbox.services, toolbox.unread
        self.settings_ = toolbox.services.settings
        self.route = route
        self._body = Body(self.max_body_bytes, toolbox.bodies)
        self._refusal: InterpreterError | None = None
        self._principal: Principal | None = None
        self._work: asyncio.Task[Any] | None = None
        self._client_gone = self._lingers = False

    @property
    def max_body_bytes(self) -> int:
        """The largest body that this handler reads."""
        return self.settings_.max_body_bytes

    @property
    def principal(self) -> Principal:
        """Who asks. Only for operations that need a token."""
        if self._principal is None:
            raise auth.unauthorized()
        return self._principal

    @property
    def operation(self) -> Operation | None:
        """The operation of this request's method; HEAD is a GET without its body."""
        method = "GET" if self.request.method == "HEAD" else self.request.method
        return self.operations.get(method or "")

    # -- before the body ------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Decide whether the request is welcome, before its body is read."""
        connection = connection_of(self.request)
        connection.set_max_body_size(_UNBOUNDED)  # ours is in Body
        connection.set_body_timeout(BODY_TIMEOUT)
        if self.answer_preflight():
            return
        try:
            await self._admit()
        except UnauthorizedError as error:
            self._refuse_stranger(error)
        except InterpreterError as error:
            self._refuse(error)
        if not self._finished and not self._lingers and self._announced_bytes > self.max_body_bytes:
            self._refuse(self._too_large())

    async def _admit(self) -> None:
        operation = self.operation
        access = operation.access if operation else Access.ANY
        if access is not Access.PUBLIC:
            await self._authenticate(operation)
        if self._finished:
            return
        if operation is None:
            raise self._no_operation()
        if self._principal is not None and not access.allows(self._principal):
            raise ForbiddenError(f"The token's role does not allow this; it is for {access.value}.")

    def _no_operation(self) -> InterpreterError:
        return MethodNotAllowedError(
            f"This route does not have that method; it has {', '.join(self.methods)}."
        )

    async def _authenticate(self, operation: Operation | None) -> None:
        is_page = operation is not None and operation.page and self.wants_page()
        if is_page and await self._enter_by_url():
            return
        info = await auth.find_bearer(self, self.services.tokens)
        if info is None and (self.request.method in _SAFE or (operation and operation.form)):
            info = await auth.find_cookie(self, self.services.tokens)
        if info is None:
            if is_page and self.accepts_html() and self.request.method in _SAFE:
                self.redirect("/login?next=" + quote(self.request.path, safe="/"))
                return
            raise auth.unauthorized()
        self._principal = info.principal
        self.token_id = info.id
        if seconds := self.toolbox.rates.take(info.id):
            raise RateLimitedError(
                "The token has used up its requests for now; send fewer per minute.", retry_after=seconds
            )

    async def _enter_by_url(self) -> bool:
        """Turn ``?token=`` into a cookie and a clean URL."""
        secret = self.get_query_argument("token", None)
        if secret is None or self.request.method not in _SAFE:
            return False
        fields = parse_qs(self.request.query, keep_blank_values=True)
        fields.pop("token", None)
        clean = quote(self.request.path, safe="/%") + (f"?{urlencode(fields, doseq=True)}" if fields else "")
        info = await self.log_in(secret)
        self.redirect(local_path(clean) if info else "/login?failed=1")
        return True

    async def log_in(self, secret: str) -> bool:
        """Set the cookie if the secret is good. RateLimitedError after too many bad ones."""
        info = await self.services.tokens.find(secret.strip())
        if info is None:  # only then: behind a proxy all have one address
            if seconds := self.toolbox.logins.take(self.request.remote_ip or ""):
                raise RateLimitedError("Too many failed logins; wait before the next.", retry_after=seconds)
            return False
        self.token_id = info.id
        auth.set_cookie(self, info)
        return True

    def accepts_html(self) -> bool:
        """Whether the client says that it shows HTML, as browsers do."""
        return accept.names(self.request.headers.get("Accept", ""), "text/html")

    def wants_page(self) -> bool:
        """Whether to answer with a page. Page handlers always do."""
        return self.accepts_html()

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(m for name in self.operations for m in ((name, "HEAD") if name == "GET" else (name,)))

    # -- the body -------------------------------------------------------------------------------

    @property
    def _announced_bytes(self) -> int:
        length = self.request.headers.get("Content-Length", "")
        return int(length[:_MAX_DIGITS]) if length.isdecimal() else 0  # cut, it is far too large, too

    def _refuse(self, error: InterpreterError) -> None:
        """Answer with the error: at once if nothing is to be read, else when the body was read."""
        if self._refusal is not None:
            return
        self._refusal = error
        self._body.refuse()
        if "Expect" in self.request.headers or self._announced_bytes > MAX_DRAINED_BYTES:
            self.set_header("Connection", "close")
            self.show_error(error)

    def _refuse_stranger(self, error: UnauthorizedError) -> None:
        """Answer at once, without waiting for the body, which is read on for a moment only.

        Closing with unread bytes resets the connection, and the client may lose the answer.
        """
        headers = self.request.headers
        if "Expect" in headers or not (self._announced_bytes or "Transfer-Encoding" in headers):
            self._refuse(error)  # no byte of a body is under way
            return
        self._refusal, self._lingers = error, True
        self._body.refuse()
        self.set_header("Connection", "close")
        self.show_error(error)
        linger = 0.0 if self._announced_bytes > MAX_DRAINED_BYTES else LINGER
        asyncio.get_running_loop().call_later(linger, self._leave)

    def finish(self, chunk: Any = None) -> "Future[None]":
        """Send the answer; while the request lingers, without ending it."""
        if not self._lingers:
            return super().finish(chunk)
        if chunk is not None:
            self.write(chunk)
        self.set_header("Content-Length", str(sum(map(len, self._write_buffer))))
        return self.flush()

    def _leave(self) -> None:
        """End a request that was answered early, and its connection."""
        self._lingers = False
        if not self._finished:
            self.finish()
            connection_of(self.request).close()

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"The body is over the limit of {self.max_body_bytes} bytes; send less.")

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._body.add(chunk, self.token_id or "")
        if self._body.is_hopeless and self._lingers:
            self._leave()
        elif self._body.is_hopeless and not self._finished:
            self.show_error(self._refusal or self._too_large())
        return None

    async def read_json(self) -> dict[str, Any]:
        """The body as its operation's schema wants it; an empty one counts as ``{}`` where it may."""
        operation = self.operation
        if operation is None or operation.body is None:
            raise self._no_operation()
        body = self._body.joined()
        if not body and not operation.body_required:
            return {}
        if body:
            check_media_type(self.request.headers, "application/json")
        if len(body) > _THREAD_BYTES:
            return await asyncio.to_thread(self._read_value, operation.body, body)
        return self._read_value(operation.body, body)

    def _read_value(self, schema: str, body: bytes) -> dict[str, Any]:
        value = parse_json(body)
        self.toolbox.schemas.validate(schema, value)
        texts = {name: item for name, item in value.items() if name not in _FOREIGN_TEXT}
        if (path := find_surrogate(texts)) is not None:
            param = ".".join(path)
            raise InvalidRequestError(
                f"`{param}` has half of a surrogate pair; send valid Unicode.", param=param
            )
        return {name: item for name, item in value.items() if item is not None}

    def read_form(self) -> Mapping[str, str]:
        """The fields of a browser's form, after its XSRF check (HTTPError 403).

        UnsupportedMediaTypeError for what no form sends.
        """
        check_media_type(self.request.headers, _FORM)
        text = self._body.joined().decode("utf-8", "replace")
        fields = {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}
        if "_xsrf" in fields:
            self.request.arguments["_xsrf"] = [fields["_xsrf"].encode()]
        self.check_xsrf_cookie()
        return fields

    def read_query(self) -> dict[str, Any]:
        """The query under its operation's schema; InvalidRequestError names the parameter."""
        operation = self.operation
        if operation is None or operation.query is None:
            return {}
        return read_query(self.request.query, operation.query, self.toolbox.schemas)

    # -- the work -------------------------------------------------------------------------------

    async def _dispatch(self, *args: str, **kwargs: str) -> None:
        """Do the work, which ends when the client goes away: Tornado cancels no handler by itself."""
        if self._finished:
            return
        if self._lingers:
            self._leave()
            return
        if self._refusal is not None:
            raise self._refusal
        if self._body.is_too_large:
            raise self._too_large()
        if self._body.is_crowded:
            raise crowded()
        if self._principal is not None and self.request.method not in _SAFE:
            await auth.check_again(self._principal, self.services.tokens)
        name = "do_get" if self.request.method == "HEAD" else f"do_{(self.request.method or '').lower()}"
        if not self._client_gone:
            await self._work_for_client(getattr(self, name)(*args, **kwargs))
        if self._client_gone:
            self.set_status(CLIENT_CLOSED, "Client Closed Request")

    async def _work_for_client(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._work = asyncio.current_task()
        try:
            await work
        except asyncio.CancelledError as error:
            if task is not None and self._client_gone:
                task.uncancel()
            elif task is None or task.cancelling():
                raise
            else:
                raise UnavailableError(
                    "The service is shutting down; send the request again later.", retry_after=5
                ) from error
        except Exception as error:
            if not self._client_gone:
                raise
            self.log_exception(type(error), error, error.__traceback__)
        finally:
            self._work = None

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._client_gone = True
        self._body.release()
        if self._work is not None:
            self._work.cancel()

    def on_finish(self) -> None:
        self._body.release()

    get = head = post = put = patch = delete = options = _dispatch

    # -- parts of paths -------------------------------------------------------------------------

    @staticmethod
    def session_id_of(text: str) -> str:
        """The session id of a path, in its only form; NotFoundError otherwise."""
        if not is_id(text):
            raise NotFoundError("There is no such session; list yours with GET /v1/sessions.")
        return text

    @staticmethod
    def run_id_of(text: str) -> str:
        """The run id of a path, in its only form; NotFoundError otherwise."""
        if parse_run_id(text) is None:
            raise NotFoundError(
                "There is no such run; list those of a session with GET /v1/sessions/{id}/runs."
            )
        return text


class PageHandler(BaseHandler):
    """A page for browsers: it says so, and allows nothing but its own styles, images and forms."""

    cross_origin: ClassVar[bool] = False
    policy: ClassVar[str] = (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )

    def wants_page(self) -> bool:
        return True

    def get_template_path(self) -> str | None:
        path: str | None = self.application.settings.get("template_path")
        return path

    def show_page(self, template: str, status: int = 200, **values: Any) -> None:
        """Answer with a page."""
        self.set_status(status)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", self.policy)
        self.finish(self.render_string(template, **values))


class UnknownRouteHandler(BaseHandler):
    """Every path that no route has."""

    def _no_operation(self) -> InterpreterError:
        return NotFoundError("There is no such route; /openapi.json lists them.")


__all__ = ["BaseHandler", "PageHandler", "RequestHandler", "Toolbox", "UnknownRouteHandler"]
