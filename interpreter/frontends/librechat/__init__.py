"""LibreChat's code API, both generations: ``LIBRECHAT_CODE_BASEURL=http://…/librechat``.

Facts about its clients are from the npm package ``@librechat/agents`` (1.6 to 3.9) and LibreChat 0.7.6
to 0.8.8.
"""

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.frontends.librechat import execution, objects, programmatic
from interpreter.frontends.librechat.base import PREFIX, Front, LibreChatHandler, route
from interpreter.frontends.storages import Storages

ROUTES: tuple[tuple[str, type[LibreChatHandler]], ...] = (
    ("/exec", execution.ExecHandler),
    ("/exec/programmatic", programmatic.ProgrammaticHandler),
    ("/upload", objects.UploadHandler),
    ("/upload/batch", objects.BatchUploadHandler),
    ("/files/{storage_id}", objects.FilesHandler),
    ("/files/{storage_id}/{file_id}", objects.ObjectHandler),
    ("/sessions/{storage_id}/objects", objects.FilesHandler),
    ("/sessions/{storage_id}/objects/{file_id}", objects.ObjectHandler),
    ("/download/{storage_id}/{file_id}", objects.DownloadHandler),
    ("/health", objects.HealthHandler),
)

PATHS = (PREFIX, *(PREFIX + path for path, _ in ROUTES))


def make_routes(toolbox: Toolbox, storages: Storages) -> list[URLSpec]:
    """The rules of this front end. Raises SettingsError."""
    front = Front.make(toolbox, storages)
    return [route(path, handler, toolbox, front) for path, handler in ROUTES]


__all__ = ["PATHS", "make_routes"]
