"""Open Terminal, the engine that Open WebUI recommends: a connection with the URL ``http://…/open-terminal``.

Facts are from Open Terminal (0.11) and from Open WebUI's ``utils/tools.py`` (0.12.4), which makes a tool
of each operation of the document, sends the chat's id as ``X-Session-Id`` and the user's as
``X-User-Id``, and calls what the document does not have for its file browser and its notebooks.
"""

from typing import ClassVar

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.api.operations import Access
from interpreter.frontends import open_terminal_commands as commands
from interpreter.frontends import open_terminal_files as files
from interpreter.frontends import open_terminal_notebooks as notebooks
from interpreter.frontends.dialect import DialectHandler, make_specs
from interpreter.frontends.open_terminal_base import TerminalHandler, Terminals, operation
from interpreter.frontends.open_terminal_document import PREFIX, PROMPT, build_document
from interpreter.frontends.tool_server import ExecuteHandler


class DocumentHandler(TerminalHandler):
    """``/open-terminal/openapi.json``"""

    operations: ClassVar = {"GET": operation("document", "Open Terminal's OpenAPI document", Access.ANY)}

    async def do_get(self) -> None:
        self.reply(build_document(f"{self.request.protocol}://{self.request.host}{PREFIX}"))


class HealthHandler(TerminalHandler):
    """``/open-terminal/health``"""

    operations: ClassVar = {"GET": operation("health", "Whether the service lives", Access.PUBLIC)}

    async def do_get(self) -> None:
        self.reply({"status": "ok"})


class ConfigHandler(TerminalHandler):
    """``/open-terminal/api/config``"""

    operations: ClassVar = {"GET": operation("config", "What the terminal has", Access.PUBLIC)}

    async def do_get(self) -> None:
        self.reply({"features": {"terminal": False, "notebooks": True, "system": True}})


class SystemHandler(TerminalHandler):
    """``/open-terminal/system``"""

    operations: ClassVar = {"GET": operation("system", "The system prompt")}

    async def do_get(self) -> None:
        self.reply({"prompt": PROMPT})


class PortsHandler(TerminalHandler):
    """``/open-terminal/ports``"""

    operations: ClassVar = {"GET": operation("ports", "Open ports: none is reachable")}

    async def do_get(self) -> None:
        self.reply({"ports": []})


class SkillsHandler(TerminalHandler):
    """``/open-terminal/skills``"""

    operations: ClassVar = {"GET": operation("skills", "Skills: none")}

    async def do_get(self) -> None:
        self.reply([])


class PythonHandler(TerminalHandler, ExecuteHandler):
    """``/open-terminal/execute_python``"""

    @property
    def chat_key(self) -> str:
        return self.chat[1]


ROUTES: tuple[tuple[str, type[DialectHandler]], ...] = (
    ("/openapi.json", DocumentHandler),
    ("/health", HealthHandler),
    ("/api/config", ConfigHandler),
    ("/system", SystemHandler),
    ("/ports", PortsHandler),
    ("/skills", SkillsHandler),
    ("/execute_python", PythonHandler),
    ("/execute", commands.ProcessesHandler),
    ("/execute/{process_id}", commands.KillHandler),
    ("/execute/{process_id}/status", commands.StatusHandler),
    ("/execute/{process_id}/input", commands.InputHandler),
    ("/files/list", files.ListHandler),
    ("/files/read", files.ReadHandler),
    ("/files/display", files.DisplayHandler),
    ("/files/write", files.WriteHandler),
    ("/files/replace", files.ReplaceHandler),
    ("/files/grep", files.SearchHandler),
    ("/files/glob", files.SearchHandler),
    ("/files/cwd", files.CwdHandler),
    ("/files/view", files.ViewHandler),
    ("/files/serve/{path}", files.ViewHandler),
    ("/files/mkdir", files.MkdirHandler),
    ("/files/delete", files.DeleteHandler),
    ("/files/move", files.MoveHandler),
    ("/files/upload", files.FileUploadHandler),
    ("/notebooks", notebooks.NotebooksHandler),
    ("/notebooks/{notebook_id}", notebooks.NotebookHandler),
    ("/notebooks/{notebook_id}/execute", notebooks.ExecuteCellHandler),
)
PATHS = (PREFIX, *(PREFIX + path for path, _ in ROUTES))


def make_routes(toolbox: Toolbox) -> list[URLSpec]:
    """The rules of this front end."""
    routes = [(PREFIX + path, handler) for path, handler in ROUTES]
    return make_specs(toolbox, routes, terminals=Terminals())
