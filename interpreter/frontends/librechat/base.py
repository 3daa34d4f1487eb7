"""What LibreChat's handlers share: who asks, and errors as its client reads them."""

from dataclasses import dataclass
from typing import Any

from tornado.routing import URLSpec

from interpreter.api.base import BaseHandler, Toolbox
from interpreter.api.errors import retry_after
from interpreter.api.jsonbody import parse_json
from interpreter.api.operations import Operation
from interpreter.errors import InterpreterError, RateLimitedError, TooManySessionsError
from interpreter.frontends.identity import Identifier, Identity
from interpreter.frontends.librechat.conversations import Conversations
from interpreter.frontends.librechat.jwts import JwtVerifier
from interpreter.frontends.librechat.requests import read_owner
from interpreter.frontends.librechat.waiting import Programs
from interpreter.frontends.storages import Owner, Storages
from interpreter.frontends.wording import reworded

PREFIX = "/librechat"
TAG = "LibreChat"
JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Front:
    """What the handlers of this front end share."""

    identifier: Identifier
    storages: Storages
    conversations: Conversations
    programs: Programs

    @classmethod
    def make(cls, toolbox: Toolbox, storages: Storages) -> "Front":
        """Raises SettingsError when the key of the signed tokens can't be read."""
        services = toolbox.services
        verifier = JwtVerifier.from_settings(services.settings)
        return cls(
            Identifier(services.tokens, verifier), storages, Conversations(services, storages), Programs()
        )


class LibreChatHandler(BaseHandler):
    """The base of this front end's handlers."""

    def initialize(self, toolbox: Toolbox, route: str, front: Front) -> None:  # type: ignore[override]
        super().initialize(toolbox, route)
        self.front = front
        self.identity: Identity | None = None
        self._shown: InterpreterError | None = None

    async def _authenticate(self, operation: Operation | None) -> None:
        identity = self.identity = await self.front.identifier.find(self.request.headers)
        self._principal = identity.principal
        self.token_id = identity.principal.token_id
        if seconds := self.toolbox.rates.take(self.token_id):
            raise RateLimitedError("Too many requests; send fewer per minute.", retry_after=seconds)

    @property
    def asker(self) -> Identity:
        """Who asks. Only for operations that need a token."""
        assert self.identity is not None, "the operation is not public"
        return self.identity

    @property
    def owner(self) -> Owner:
        """Whose storage session the query names."""
        return read_owner({name: self.get_query_argument(name, "") for name in ("kind", "id", "version")})

    def parse_body(self) -> Any:
        """The JSON of the body, whatever content type it has. Raises InvalidRequestError."""
        return parse_json(self._body.joined())

    def show_error(self, error: InterpreterError) -> None:
        error = self._shown = reworded(error)
        super().show_error(error)

    def reply(self, value: Any, status: int = 200) -> None:
        """Errors get the keys that the client looks at: ``error``, ``code``, ``retry_after_seconds``."""
        if self._shown is not None:
            value = error_body(self._shown, self.request_id)
        super().reply(value, status)


def error_body(error: InterpreterError, request_id: str) -> dict[str, Any]:
    """The body of an error. The client tells its model how long to wait, and nothing else of it."""
    body: dict[str, Any] = {
        "error": error.message,
        "message": error.message,
        "code": error.code or error.type,
        "request_id": request_id,
    }
    if isinstance(error, RateLimitedError | TooManySessionsError):
        body |= {"error": "rate_limited", "retry_after_seconds": int(retry_after(error) or 1)}
    return body


def route(path: str, handler: type[LibreChatHandler], toolbox: Toolbox, front: Front) -> URLSpec:
    """The rule of a path below the prefix, with and without the ``/v1`` of the client's default URL."""
    pattern = path
    for name in ("storage_id", "file_id"):
        pattern = pattern.replace(f"{{{name}}}", f"(?P<{name}>[^/]+)")
    return URLSpec(
        f"{PREFIX}(?:/v1)?{pattern}/?",
        handler,
        {"toolbox": toolbox, "route": PREFIX + path, "front": front},
    )
