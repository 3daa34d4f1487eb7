"""Open Terminal, the engine that Open WebUI recommends: a connection with the URL ``http://…/open-terminal``.

Facts are from Open Terminal (0.11) and from Open WebUI's ``utils/tools.py`` (0.12.4), which makes a tool
of each operation of the document, sends the chat's id as ``X-Session-Id`` and the user's as
``X-User-Id``, and calls what the document does not have for its file browser and its notebooks.
"""

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.frontends.dialect import DialectHandler, make_specs
from interpreter.frontends.open_terminal import about, commands, files, notebooks
from interpreter.frontends.open_terminal.base import Terminals
from interpreter.frontends.open_terminal.document import PREFIX

ROUTES: tuple[tuple[str, type[DialectHandler]], ...] = (
    ("/openapi.json", about.DocumentHandler),
    ("/health", about.HealthHandler),
    ("/api/config", about.ConfigHandler),
    ("/system", about.SystemHandler),
    ("/ports", about.PortsHandler),
    ("/skills", about.SkillsHandler),
    ("/execute_python", about.PythonHandler),
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
    routes.append((f"{PREFIX}/{{path}}", about.UnknownHandler))
    return make_specs(toolbox, routes, terminals=Terminals())


__all__ = ["PATHS", "make_routes"]
