"""Handlers of tools: whose session a call is for, and the tool that runs Python."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from interpreter.api.operations import Access, Answer, Operation
from interpreter.errors import InvalidRequestError, NotFoundError
from interpreter.frontends.chats import CHAT_HEADERS, check_chat_key
from interpreter.frontends.dialect import JSON_TYPE, DialectHandler
from interpreter.frontends.fitted import fit_pictures
from interpreter.frontends.images import ImageShrinker
from interpreter.frontends.pictures import saved_pictures_of, shows_picture
from interpreter.frontends.saved_pictures import save_pictures
from interpreter.frontends.tools import EXECUTE_PYTHON, Tool
from interpreter.models import JSON, FileChange, Run, is_id
from interpreter.toolcalls import NO_OUTPUT, TOOL_NAME, BadCall, Dialect, ToolCall, model_text, read_call
from interpreter.toolcalls.displays import images
from interpreter.workspace import FileInfo

if TYPE_CHECKING:
    from interpreter.sessions import Session

USER_HEADER = "X-OpenWebUI-User-Id"
IMAGES_HEADER = "X-Inline-Images"
LOOSE_IDLE_TIMEOUT = 900.0  # seconds; nobody may ever come back to a session that a call alone made

TAG = "Tool server"
FILES_HINT = "list_files shows those that there are"
_LOST = "The earlier session has ended: its variables and files are gone. This is a new one."
_SHOW = "The user has not seen the figures. They are saved; call read_file for each to show it:"
_MAX_TOLD = 20  # figures
_MAX_IMAGE_BYTES = 1024**2  # base64 of all figures of an answer
PICTURE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def tool_operations(tool: Tool) -> Mapping[str, Operation]:
    """What the handler of a tool has as its operations."""
    answers = {200: Answer("What came of it.", {JSON_TYPE: None})}
    return {"POST": Operation(f"toolServer.{tool.name}", tool.summary, TAG, answers, Access.RUN)}


class ToolHandler(DialectHandler):
    """One tool."""

    tool: ClassVar[Tool]
    files_hint = FILES_HINT

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

    tool = EXECUTE_PYTHON
    operations: ClassVar = tool_operations(tool)

    async def do_post(self) -> None:
        given = self.body_object()  # `read_call` checks it, and reads what models get wrong where it is clear
        session_id = given.pop("session_id", "")
        asked = read_call(ToolCall(Dialect.OPENAI_CHAT, "call", TOOL_NAME, given, 0))
        if isinstance(asked, BadCall):
            raise InvalidRequestError(asked.message, param="code")
        request = self.request_of(asked.code, asked.timeout)
        session, notes = await self.session_of({"session_id": str(session_id)})
        run = await self.wait_for(await self.services.runs.submit(self.principal, session, request))
        outputs = run.folded.outputs
        files = [{**describe_file(file), "change": file.change} for file in run.files]
        answer: JSON = {"session_id": session.info.id, "run_id": run.id, "status": run.status.value}
        if self.request.headers.get(IMAGES_HEADER, "").lower() in ("1", "true", "yes"):
            shrinker = self.application.settings.setdefault("image_shrinker", ImageShrinker())
            run = await fit_pictures(run, _MAX_IMAGE_BYTES, shrinker)
            found = images(run.folded.outputs, _MAX_IMAGE_BYTES)
            answer["images"] = [f"data:{image.mime_type};base64,{image.data}" for image in found]
        elif any(map(shows_picture, outputs)):
            made = await save_pictures(self.services, session, run)
            files += [{**describe_file(file), "change": "created"} for file in made]
            paths = [file.path for file in made] or saved_pictures_of(run)
            notes = [*notes, f"{_SHOW} {', '.join(paths[:_MAX_TOLD])}"]
            run = _without_pictures(run)
        text = model_text(run, self.settings_.max_model_text_bytes, shows_rich=False)
        if text == NO_OUTPUT and any(map(shows_picture, outputs)):
            text = ""
        self.reply({**answer, "files": files, "output": "\n\n".join(filter(None, (*notes, text)))})


def _without_pictures(run: Run) -> Run:
    """The run for `model_text`, which says of pictures that the user sees them."""
    kept = [output for output in run.folded.outputs if not shows_picture(output)]
    return replace(run, folded=replace(run.folded, outputs=tuple(kept)))


def describe_file(file: FileInfo | FileChange) -> JSON:
    """A file as the tools' answers show it."""
    return {"path": file.path, "size": file.size, "mime_type": file.mime_type}
