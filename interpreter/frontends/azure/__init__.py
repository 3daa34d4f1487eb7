"""Azure Container Apps' dynamic sessions: ``pool_management_endpoint=http://…/azure``.

Facts are from the published clients ``langchain-azure-dynamic-sessions`` 1.0.4 and
``llama-index-tools-azure-code-interpreter`` 0.7.0. Requests name their session by ``identifier``; the
version in ``api-version`` is not looked at, because each form has paths of its own.
"""

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.frontends.azure import handlers
from interpreter.frontends.dialect import DialectHandler, make_specs

PREFIX = "/azure"

ROUTES: tuple[tuple[str, type[DialectHandler]], ...] = (
    (f"{PREFIX}/code/execute", handlers.ExecuteHandler),
    (f"{PREFIX}/executions", handlers.ExecuteHandler),
    (f"{PREFIX}/files", handlers.FilesHandler),
    (f"{PREFIX}/files/upload", handlers.FilesHandler),
    (f"{PREFIX}/files/content/{{path}}", handlers.ContentHandler),
    (f"{PREFIX}/files/{{path}}/content", handlers.ContentHandler),
    (f"{PREFIX}/files/{{path}}", handlers.FileInfoHandler),
    (f"{PREFIX}/session", handlers.SessionHandler),
)
PATHS = (PREFIX, *(path for path, _ in ROUTES))


def make_routes(toolbox: Toolbox) -> list[URLSpec]:
    """The rules of this front end."""
    return make_specs(toolbox, ROUTES)


__all__ = ["PATHS", "make_routes"]
