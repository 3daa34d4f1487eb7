"""The tool server: a few operations that Open WebUI and others offer to a model, at ``/openapi-tools``.

Open WebUI makes a tool of every operation of a document, so this one has only what a model needs. Facts
about it are from its ``utils/tools.py`` and ``utils/middleware.py`` (0.12.4): it POSTs the arguments as
JSON, shows an error's body to the model, and a binary answer that is an image to the user.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.api.operations import Access, Answer, Operation
from interpreter.errors import InvalidRequestError, NotFoundError
from interpreter.frontends import tool_server_document as tools
from interpreter.frontends.chats import check_chat_key
from interpreter.frontends.dialect import JSON_TYPE, DialectHandler, make_specs
from interpreter.frontends.librechat.execution import save_pictures
from interpreter.frontends.tool_server_document import PREFIX, Tool
from interpreter.models import JSON, FileChange, Run, is_id
from interpreter.toolcalls import TOOL_NAME, BadCall, Dialect, ToolCall, model_text, read_call, shorten
from interpreter.toolcalls.displays import images
from interpreter.workspace import FileInfo

if TYPE_CHECKING:
    from interpreter.sessions import Session

CHAT_HEADERS = ("X-Session-Id", "X-OpenWebUI-Chat-Id")
USER_HEADER = "X-OpenWebUI-User-Id"
IMAGES_HEADER = "X-Inline-Images"
LOOSE_IDLE_TIMEOUT = 900.0  # seconds; nobody may ever come back to a session that a call alone made

_TAG = "Tool server"
_LOST = "The earlier session has ended: its variables and files are gone. This is a new one."
_SHOW = "The user has not seen the figures. They are saved; call read_file for each to show it:"
_MAX_IMAGE_BYTES = 1024**2  # base64 of all figures of an answer
_MAX_LISTED = 200
_PICTURE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def _operations(tool: Tool) -> Mapping[str, Operation]:
    answers = {200: Answer("What came of it.", {JSON_TYPE: None})}
    return {"POST": Operation(f"toolServer.{tool.name}", tool.summary, _TAG, answers, Access.RUN)}


class ToolHandler(DialectHandler):
    """One tool."""

    tool: ClassVar[Tool]

    def arguments(self) -> dict[str, Any]:
        """The tool's arguments; InvalidRequestError about the first that is wrong."""
        found = self.body_object()
        self.tool.check(found)
        return found

    # -- sessions -------------------------------------------------------------------------------

    @property
    def chat_key(self) -> str | None:
        """What names the conversation: the chat's id, else the user's."""
        for name in (*CHAT_HEADERS, USER_HEADER):
            if value := self.request.headers.get(name, "").strip():
                return check_chat_key(f"user:{value}" if name == USER_HEADER else value, name)
        return None

    async def session_of(self, arguments: Mapping[str, Any]) -> "tuple[Session, list[str]]":
        """The session, made when there is none, and notes about it for the model."""
        if asked_id := arguments.get("session_id"):
            return self._named(asked_id), []
        if (chat := self.chat_key) is not None:
            found = await self.chats.session_of(self.principal, chat)
            return found.session, [_LOST] if found.lost else []
        idle_timeout = min(LOOSE_IDLE_TIMEOUT, self.settings_.cull_idle_timeout)
        session = await self.services.sessions.create(self.principal, idle_timeout=idle_timeout)
        note = f'New session "{session.info.id}"; pass it as session_id to keep variables and files.'
        return session, [note]

    def known_session(self, arguments: Mapping[str, Any]) -> "Session":
        """The session; NotFoundError when there is none yet."""
        if asked_id := arguments.get("session_id"):
            return self._named(asked_id)
        chat = self.chat_key
        session = self.chats.find(self.principal, chat) if chat is not None else None
        if session is None:
            raise NotFoundError(f"There is no session yet; {TOOL_NAME} and write_file make one.")
        return session

    def _named(self, asked_id: str) -> "Session":
        if not is_id(asked_id):
            raise NotFoundError("There is no such session; leave session_id out.", param="session_id")
        return self.services.sessions.get(self.principal, asked_id)


class ExecuteHandler(ToolHandler):
    """``/openapi-tools/execute_python``"""

    tool = tools.EXECUTE_PYTHON
    operations: ClassVar = _operations(tool)

    async def do_post(self) -> None:
        given = self.body_object()  # `read_call` checks it, and reads what models get wrong where it is clear
        session_id = given.pop("session_id", "")
        asked = read_call(ToolCall(Dialect.OPENAI_CHAT, "call", TOOL_NAME, given, 0))
        if isinstance(asked, BadCall):
            raise InvalidRequestError(asked.message, param="code")
        request = self.request_of(asked.code, asked.timeout)
        session, notes = await self.session_of({"session_id": str(session_id)})
        run = await self.wait_for(await self.services.runs.submit(self.principal, session, request))
        answer: JSON = {
            "session_id": session.info.id,
            "run_id": run.id,
            "status": run.status.value,
            "files": [{**_describe(file), "change": file.change} for file in run.files],
        }
        if self.request.headers.get(IMAGES_HEADER, "").lower() in ("1", "true", "yes"):
            found = images(run.folded.outputs, _MAX_IMAGE_BYTES)
            answer["images"] = [f"data:{image.mime_type};base64,{image.data}" for image in found]
        elif saved := await save_pictures(self.services, session, run):
            notes = [*notes, f"{_SHOW} {', '.join(saved)}"]
            run = _without_pictures(run)
        text = model_text(run, self.settings_.max_model_text_bytes)
        self.reply({**answer, "output": "\n\n".join((*notes, text))})


class ListFilesHandler(ToolHandler):
    """``/openapi-tools/list_files``"""

    tool = tools.LIST_FILES
    operations: ClassVar = _operations(tool)

    async def do_post(self) -> None:
        arguments = self.arguments()
        session = self.known_session(arguments)
        listing = await self.files_of(session).list(limit=_MAX_LISTED)
        files = [_describe(file) for file in listing.files]
        self.reply({"session_id": session.info.id, "files": files, "has_more": listing.has_more})


class ReadFileHandler(ToolHandler):
    """``/openapi-tools/read_file``"""

    tool = tools.READ_FILE
    operations: ClassVar = _operations(tool)

    async def do_post(self) -> None:
        arguments = self.arguments()
        session = self.known_session(arguments)
        info, content = await self.load(session, arguments["path"], self.settings_.max_mime_bytes)
        if info.mime_type in _PICTURE_TYPES:
            self.set_header("Content-Type", info.mime_type)
            self.finish(content)
            return
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(
                f"The file is no text; read it with {TOOL_NAME}.", param="path"
            ) from None
        shown = shorten(text, self.settings_.max_model_text_bytes, "the file")
        self.reply({"session_id": session.info.id, **_describe(info), "content": shown})


class WriteFileHandler(ToolHandler):
    """``/openapi-tools/write_file``"""

    tool = tools.WRITE_FILE
    operations: ClassVar = _operations(tool)

    async def do_post(self) -> None:
        arguments = self.arguments()
        content = _content(arguments["content"], arguments.get("encoding", "utf-8"))
        session, notes = await self.session_of(arguments)
        info = await self.save(session, arguments["path"], content)
        self.reply({"session_id": session.info.id, **_describe(info), **({"notes": notes} if notes else {})})


class DeleteFileHandler(ToolHandler):
    """``/openapi-tools/delete_file``"""

    tool = tools.DELETE_FILE
    operations: ClassVar = _operations(tool)

    async def do_post(self) -> None:
        arguments = self.arguments()
        session = self.known_session(arguments)
        await self.files_of(session).delete(arguments["path"])
        self.reply({"session_id": session.info.id, "path": arguments["path"]})


class RestartHandler(ToolHandler):
    """``/openapi-tools/restart_session``"""

    tool = tools.RESTART_SESSION
    operations: ClassVar = _operations(tool)

    async def do_post(self) -> None:
        arguments = self.arguments()
        session = self.known_session(arguments)
        await self.services.runs.restart(self.principal, session.info.id)
        self.reply({"session_id": session.info.id})


class DocumentHandler(DialectHandler):
    """``/openapi-tools/openapi.json``"""

    operations: ClassVar = {
        "GET": Operation(
            "getToolServerDocument",
            "The tool server's OpenAPI document",
            _TAG,
            {200: Answer("The document.", {JSON_TYPE: None})},
        )
    }

    async def do_get(self) -> None:
        self.reply(tools.build_document(f"{self.request.protocol}://{self.request.host}{PREFIX}"))


def _without_pictures(run: Run) -> Run:
    """The run for `model_text`, which says of pictures that the user sees them."""
    kept = [output for output in run.folded.outputs if not _PICTURE_TYPES & output.get("data", {}).keys()]
    return replace(run, folded=replace(run.folded, outputs=tuple(kept)))


def _describe(file: FileInfo | FileChange) -> JSON:
    return {"path": file.path, "size": file.size, "mime_type": file.mime_type}


def _content(text: str, encoding: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()
    except binascii.Error:
        raise InvalidRequestError("`content` is no base64.", param="content") from None
    except UnicodeEncodeError:
        raise InvalidRequestError("`content` has half of a surrogate pair.", param="content") from None


ROUTES: tuple[tuple[str, type[DialectHandler]], ...] = (
    (f"{PREFIX}/openapi.json", DocumentHandler),
    *(
        (PREFIX + handler.tool.path, handler)
        for handler in (
            ExecuteHandler,
            ListFilesHandler,
            ReadFileHandler,
            WriteFileHandler,
            DeleteFileHandler,
            RestartHandler,
        )
    ),
)
PATHS = (PREFIX, *(path for path, _ in ROUTES))


def make_routes(toolbox: Toolbox) -> list[URLSpec]:
    """The rules of this front end."""
    return make_specs(toolbox, ROUTES)
