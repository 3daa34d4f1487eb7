"""What the handlers of small front ends share: loose JSON, a chat's session, its files, errors of their own."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.api.errors import error_body
from interpreter.api.jsonbody import parse_json
from interpreter.api.receivers import Begin
from interpreter.api.runs import RunAnswers, check_code
from interpreter.errors import InterpreterError, InvalidRequestError, TooLargeError
from interpreter.frontends.chats import ChatSessions
from interpreter.frontends.wording import reworded
from interpreter.models import JSON, Run, RunRequest
from interpreter.workspace import FileInfo, Files, OpenFile

if TYPE_CHECKING:
    from interpreter.sessions import Session

JSON_TYPE = "application/json"
_CHUNK = 1024**2  # bytes of a file in one read


class DialectHandler(RunAnswers):
    """Subclass it per route; ``error_of`` gives errors the shape that the client shows well."""

    files_hint: ClassVar[str] = ""
    """How this front end's clients list files."""

    def initialize(self, toolbox: Toolbox, route: str, chats: ChatSessions) -> None:  # type: ignore[override]
        super().initialize(toolbox, route)
        self.chats = chats
        self._shown: InterpreterError | None = None

    # -- what comes in --------------------------------------------------------------------------

    def body_object(self) -> dict[str, Any]:
        """The JSON object of the body, whatever its content type; fields that are null count as absent."""
        body = self._body.joined()
        value = parse_json(body) if body else {}
        if not isinstance(value, dict):
            raise InvalidRequestError("The body must be a JSON object.")
        return {name: item for name, item in value.items() if item is not None}

    # -- what is done ---------------------------------------------------------------------------

    async def execute(self, session: "Session", code: str, timeout: float | None = None) -> Run:
        """Run code to its end; a client that goes away cancels it. ``timeout`` in seconds, cut to the most."""
        return await self.wait_for(
            await self.services.runs.submit(self.principal, session, self.request_of(code, timeout))
        )

    def request_of(self, code: str, timeout: float | None = None) -> RunRequest:
        """The run to submit. Raises TooLargeError, InvalidRequestError."""
        check_code(code, self.settings_.max_code_bytes)
        if timeout is not None:
            timeout = min(timeout, self.settings_.max_execute_timeout)
        return RunRequest(code, timeout=timeout)

    def files_of(self, session: "Session") -> Files:
        """The session's files; the session is in use by this."""
        self.services.sessions.touch(session)
        return self.services.workspaces.files(session)

    async def save(self, session: "Session", path: str, content: bytes) -> FileInfo:
        """Write a file of a session. Raises as `Files.put`, TooLargeError."""
        self.services.sessions.touch(session)
        upload = await self.services.workspaces.begin_upload(session)
        try:
            await upload.write(content)
            return await upload.commit(path)
        finally:
            upload.discard()

    async def load(self, session: "Session", path: str, limit: int) -> tuple[FileInfo, bytes]:
        """A file of a session, at most ``limit`` bytes (TooLargeError). Raises as `Files.open`."""
        file = await self.files_of(session).open(path)
        try:
            if file.info.size > limit:
                raise TooLargeError(f"The file is over {limit} bytes; read a part of it.", param="path")
            parts: list[bytes] = []
            size = 0
            while size < limit and (chunk := await file.read(size, min(_CHUNK, limit - size))):
                parts.append(chunk)
                size += len(chunk)
            return file.info, b"".join(parts)
        finally:
            await file.aclose()

    # -- what goes out --------------------------------------------------------------------------

    def error_of(self, error: InterpreterError) -> JSON:
        """The body of an error."""
        return error_body(error, self.request_id)

    def show_error(self, error: InterpreterError) -> None:
        error = self._shown = reworded(error, self.files_hint)
        super().show_error(error)

    def reply(self, value: Any, status: int = 200) -> None:
        if self._shown is not None:
            value = self.error_of(self._shown)
        super().reply(value, status)


async def copy_file(source: OpenFile, begin: Begin, path: str) -> None:
    """Copy a file piece by piece into an upload that is put in its place, and close it. Raises as `Upload.commit`."""
    try:
        upload, position = await begin(), 0
        try:
            while chunk := await source.read(position, _CHUNK):
                position += len(chunk)
                await upload.write(chunk)
            await upload.commit(path)
        finally:
            upload.discard()
    finally:
        await source.aclose()


def text_of(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A field that must be text; InvalidRequestError when it is not, or is missing without a default."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise InvalidRequestError(f"`{name}` must be text.", param=name)
    return value


def seconds_of(body: Mapping[str, Any], name: str, *, per_second: float = 1.0) -> float | None:
    """A field that holds a duration, in seconds; None when it is absent. Raises InvalidRequestError."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise InvalidRequestError(f"`{name}` must be a number above 0.", param=name)
    return value / per_second


def make_specs(
    toolbox: Toolbox, routes: Sequence[tuple[str, type[DialectHandler]]], **shared: Any
) -> list[URLSpec]:
    """The rules of a front end's routes; ``{path}`` stands for the rest of the path.

    ``shared`` is handed to each handler's ``initialize``.
    """
    chats = ChatSessions(toolbox.services)
    return [
        URLSpec(_pattern(path), handler, {"toolbox": toolbox, "route": path, "chats": chats, **shared})
        for path, handler in routes
    ]


def _pattern(template: str) -> str:
    parts = template.replace(".", r"\.").split("{")
    named = [part.partition("}") for part in parts[1:]]
    groups = [f"(?P<{name}>{'.+' if name == 'path' else '[^/]+'}){rest}" for name, _, rest in named]
    return parts[0] + "".join(groups) + "/?"
