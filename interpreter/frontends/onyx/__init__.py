"""Onyx's code interpreter: ``CODE_INTERPRETER_BASE_URL=http://:<token>@…/onyx``.

Facts are from Onyx's ``code_interpreter_client.py`` and from its own service, ``python-sandbox`` (0.4).
Each execution has a session of its own, as there; the files that it made are kept for a day.
"""

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.frontends.dialect import DialectHandler, make_specs
from interpreter.frontends.onyx import handlers
from interpreter.frontends.storages import Storages

PREFIX = "/onyx"

ROUTES: tuple[tuple[str, type[DialectHandler]], ...] = (
    (f"{PREFIX}/health", handlers.HealthHandler),
    (f"{PREFIX}/v1/execute", handlers.ExecuteHandler),
    (f"{PREFIX}/v1/execute/stream", handlers.StreamHandler),
    (f"{PREFIX}/v1/files", handlers.FilesHandler),
    (f"{PREFIX}/v1/files/{{file_id}}", handlers.FileContentHandler),
    (f"{PREFIX}/v1/sessions", handlers.SessionsHandler),
    (f"{PREFIX}/v1/sessions/{{session_id}}", handlers.SessionHandler),
    (f"{PREFIX}/v1/sessions/{{session_id}}/bash", handlers.BashHandler),
)
PATHS = (PREFIX, *(path for path, _ in ROUTES))


def make_routes(toolbox: Toolbox, storages: Storages) -> list[URLSpec]:
    """The rules of this front end."""
    return make_specs(toolbox, ROUTES, storages=storages)


__all__ = ["PATHS", "make_routes"]
