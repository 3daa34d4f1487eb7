"""The base of the Jupyter routes: tokens as Jupyter's clients send them, bodies as they come.

Sources: "Security in the Jupyter Server" (jupyter-server.readthedocs.io) for ``Authorization: token``,
``?token=``, the cookie of ``/login`` and ``_xsrf``.
"""

import re
from typing import Any

from interpreter.api import auth
from interpreter.api.base import BaseHandler, Toolbox
from interpreter.api.jsonbody import parse_json
from interpreter.api.operations import Access, Answer, Operation
from interpreter.errors import InterpreterError, InvalidRequestError, RateLimitedError, UnauthorizedError
from interpreter.frontends.identity import basic_secret
from interpreter.frontends.jupyter.front import Front
from interpreter.frontends.jupyter.ids import session_id_of
from interpreter.sessions import Session
from interpreter.tokens import TokenInfo

_TAG = "Jupyter"
_MAX_REASON = 200
_UNPRINTABLE = re.compile(r"[^ -~]|<")
_HOW_TO_ENTER = "Send a token: as `?token=`, as the header `Authorization: token ...`, or log in at /login."


def operation(summary: str, access: Access = Access.ANY) -> Operation:
    """A method of a route of Jupyter's, which its own documentation describes."""
    return Operation(summary.replace(" ", ""), summary, _TAG, {200: Answer("As in Jupyter.")}, access)


class JupyterHandler(BaseHandler):
    """Subclass it as `BaseHandler`."""

    metered = True
    """Whether a request counts against the rate of its token."""
    way = ""
    """How the token came: ``header``, ``url``, ``query`` or ``cookie``."""

    def initialize(self, toolbox: Toolbox, route: str, front: Front) -> None:  # type: ignore[override]
        super().initialize(toolbox, route)
        self.front = front
        self._token: TokenInfo | None = None
        self._reason_phrase: str | None = None

    @property
    def token(self) -> TokenInfo:
        """The token of the request."""
        if self._token is None:
            raise auth.unauthorized()
        return self._token

    async def _authenticate(self, operation: Operation | None) -> None:
        info = self._token = await self._find_token()
        self._principal, self.token_id = info.principal, info.id
        if self.metered:
            self.meter()

    async def _find_token(self) -> TokenInfo:
        tokens = self.services.tokens
        if (secret := self._url_secret()) is not None:
            self.way = "url"
            if (info := await tokens.find(secret)) is not None:
                return info
            raise auth.bad_token()
        self.way = "header"
        if (info := await auth.find_bearer(self, tokens)) is not None:
            return info
        self.way = "query"
        if secret := self.get_query_argument("token", ""):
            if (info := await tokens.find(secret)) is not None:
                return info
            raise auth.bad_token()
        self.way = "cookie"
        if (info := await auth.find_cookie(self, tokens)) is None:
            raise UnauthorizedError(_HOW_TO_ENTER)
        if self.request.method not in ("GET", "HEAD"):
            self.check_xsrf_cookie()  # the cookie, or the header X-XSRFToken that repeats it
        return info

    def _url_secret(self) -> str | None:
        """The secret of a URL like ``http://:secret@host``, which a program sends as Basic; None without one.

        A page of another site could make a browser send the one that it remembers: who has an origin has none.
        """
        scheme, _, value = self.request.headers.get("Authorization", "").strip().partition(" ")
        return (
            basic_secret(value)
            if scheme.lower() == "basic" and "Origin" not in self.request.headers
            else None
        )

    def meter(self) -> None:
        """Count the request against the token's rate. Raises RateLimitedError."""
        if seconds := self.toolbox.rates.take(self.token.id):
            raise RateLimitedError(
                "The token has used up its requests for now; send fewer per minute.", retry_after=seconds
            )

    def read_fields(self) -> dict[str, Any]:
        """The body as a JSON object, whatever its content type; nothing counts as ``{}``."""
        body = self._body.joined()
        value = parse_json(body) if body.strip() else {}
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise InvalidRequestError("The body must be a JSON object.")
        return value

    def session_of(self, kernel_id: str) -> Session:
        """The session behind a kernel's id. NotFoundError, SessionGoneError."""
        return self.services.sessions.get(self.principal, session_id_of(kernel_id))

    def set_status(self, status_code: int, reason: str | None = None) -> None:
        super().set_status(status_code, reason or self._reason_phrase)

    def show_error(self, error: InterpreterError) -> None:
        """The one error body; and the sentence as the reason phrase, which is all that some clients show."""
        self._reason_phrase = _UNPRINTABLE.sub(" ", error.message)[:_MAX_REASON].strip() or None
        super().show_error(error)


def text_field(fields: dict[str, Any], name: str) -> str | None:
    """A field that is text; None when it is absent. InvalidRequestError."""
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequestError(f"`{name}` must be text.", param=name)
    return value or None
