"""The tool server: a few operations that Open WebUI and others offer to a model, at ``/openapi-tools``.

Open WebUI makes a tool of every operation of a document, so this one has only what a model needs. Facts
about it are from its ``utils/tools.py`` and ``utils/middleware.py`` (0.12.4): it POSTs the arguments as
JSON, shows an error's body to the model, and a binary answer that is an image to the user.
"""

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.frontends.dialect import DialectHandler, make_specs
from interpreter.frontends.tool_handlers import ExecuteHandler
from interpreter.frontends.tool_server import handlers
from interpreter.frontends.tool_server.document import PREFIX

ROUTES: tuple[tuple[str, type[DialectHandler]], ...] = (
    (f"{PREFIX}/openapi.json", handlers.DocumentHandler),
    *(
        (PREFIX + handler.tool.path, handler)
        for handler in (
            ExecuteHandler,
            handlers.ListFilesHandler,
            handlers.ReadFileHandler,
            handlers.WriteFileHandler,
            handlers.DeleteFileHandler,
            handlers.RestartHandler,
        )
    ),
)
PATHS = (PREFIX, *(path for path, _ in ROUTES))


def make_routes(toolbox: Toolbox) -> list[URLSpec]:
    """The rules of this front end."""
    return make_specs(toolbox, ROUTES)


__all__ = ["PATHS", "make_routes"]
