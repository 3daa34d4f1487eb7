"""What Open Terminal tells of itself, and the Python tool that it has besides."""

from typing import ClassVar

from interpreter.api.operations import Access
from interpreter.errors import InterpreterError, NotFoundError
from interpreter.frontends.open_terminal.base import TerminalHandler, operation
from interpreter.frontends.open_terminal.document import PREFIX, PROMPT, build_document
from interpreter.frontends.tool_handlers import ExecuteHandler


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


class UnknownHandler(TerminalHandler):
    """Every path below ``/open-terminal`` that is not served."""

    def _no_operation(self) -> InterpreterError:
        return NotFoundError("There is no such route here.")


class PythonHandler(TerminalHandler, ExecuteHandler):
    """``/open-terminal/execute_python``"""

    @property
    def chat_key(self) -> str:
        return self.chat[1]
