"""What the handlers of Open Terminal share: whose session it is, paths, errors as FastAPI's."""

import posixpath
from collections import OrderedDict
from typing import TYPE_CHECKING

from interpreter.api.base import Toolbox
from interpreter.api.operations import Access, Answer, Operation
from interpreter.errors import InterpreterError, InvalidRequestError, NotFoundError
from interpreter.frontends.chats import ChatSessions, check_chat_key
from interpreter.frontends.dialect import JSON_TYPE, DialectHandler
from interpreter.frontends.open_terminal.document import HOME
from interpreter.frontends.tool_handlers import FILES_HINT
from interpreter.models import JSON
from interpreter.workspace import FileInfo

if TYPE_CHECKING:
    from interpreter.sessions import Session

FOLDER_MARK = ".keep"
"""An empty file that holds a folder open: files have folders, but folders alone are nothing."""

MAX_LISTED = 10_000
_MAX_CHATS = 10_000
_TAG = "Open Terminal"


class Notebook:
    """A notebook that the client has opened: where it lies, and in which chat."""

    def __init__(self, chat: tuple[str, str], path: str, kernel_name: str) -> None:
        self.chat = chat
        self.path = path
        self.kernel_name = kernel_name
        self.busy = False


class Terminals:
    """What is remembered of chats between calls: working folders and open notebooks; the oldest go first."""

    def __init__(self) -> None:
        self.folders: OrderedDict[tuple[str, str], str] = OrderedDict()
        self.notebooks: OrderedDict[str, Notebook] = OrderedDict()

    def enter(self, chat: tuple[str, str], folder: str) -> None:
        """Remember the working folder of a chat."""
        self.folders[chat] = folder
        if len(self.folders) > _MAX_CHATS:
            self.folders.popitem(last=False)

    def open(self, notebook_id: str, notebook: Notebook) -> None:
        """Remember a notebook."""
        self.notebooks[notebook_id] = notebook
        if len(self.notebooks) > _MAX_CHATS:
            self.notebooks.popitem(last=False)


def operation(name: str, summary: str, access: Access = Access.RUN, kind: str = JSON_TYPE) -> Operation:
    """An operation of this front end."""
    answers = {200: Answer("What came of it.", {kind: None})}
    return Operation(f"openTerminal.{name}", summary, _TAG, answers, access)


class TerminalHandler(DialectHandler):
    """The base of this front end's handlers."""

    files_hint = FILES_HINT

    def initialize(  # type: ignore[override]
        self, toolbox: Toolbox, route: str, chats: ChatSessions, terminals: Terminals
    ) -> None:
        super().initialize(toolbox, route, chats)
        self.terminals = terminals

    @property
    def chat(self) -> tuple[str, str]:
        """Token and key of the chat: its id, else the user's; one for all calls that name neither."""
        for name, prefix in (("X-Session-Id", ""), ("X-User-Id", "user:")):
            if value := self.request.headers.get(name, "").strip():
                return self.principal.token_id, check_chat_key(prefix + value, name)
        return self.principal.token_id, "open-terminal"

    async def session(self) -> "Session":
        """The chat's session, made when there is none."""
        return (await self.chats.session_of(self.principal, self.chat[1])).session

    def error_of(self, error: InterpreterError) -> JSON:
        return {"detail": error.message}

    # -- paths ----------------------------------------------------------------------------------

    def query(self, name: str, default: str | None = None) -> str:
        """A parameter of the query; the text ``null`` counts as none. Raises InvalidRequestError."""
        value = self.get_query_argument(name, "")
        if value.lower() in ("", "null"):
            if default is None:
                raise InvalidRequestError(f"`{name}` must be given.", param=name)
            return default
        return value

    def place(self, path: str) -> str:
        """The path below the session's folder; ``""`` for the folder. InvalidRequestError outside of it."""
        if path == "~" or path.startswith("~/"):
            path = HOME + path[1:]
        whole = posixpath.normpath(posixpath.join(HOME, self.terminals.folders.get(self.chat, ""), path))
        if whole != HOME and not whole.startswith(f"{HOME}/"):
            raise InvalidRequestError(f"The path is outside of {HOME}.", param="path")
        return whole[len(HOME) + 1 :]

    @staticmethod
    def shown(place: str) -> str:
        """The absolute path that the client is told."""
        return f"{HOME}/{place}" if place else HOME

    # -- files ----------------------------------------------------------------------------------

    async def below(self, session: "Session", folder: str) -> list[FileInfo]:
        """The files in a folder and its folders; NotFoundError when there is no such folder."""
        listing = await self.files_of(session).list(limit=MAX_LISTED)
        prefix = f"{folder}/" if folder else ""
        found = [info for info in listing.files if info.path.startswith(prefix)]
        if folder and not found:
            raise NotFoundError("There is no such folder.", param="path")
        return found

    async def is_file(self, session: "Session", place: str) -> bool:
        """Whether the path is that of a file."""
        try:
            return bool(place) and await self.files_of(session).find(place) is not None
        except InvalidRequestError:
            return False
