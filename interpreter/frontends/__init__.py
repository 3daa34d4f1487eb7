"""Foreign dialects: each module translates one, decides nothing, and has its own routes."""

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.frontends import (
    azure,
    dify,
    jupyter,
    librechat,
    mcp,
    onyx,
    open_terminal,
    tool_server,
)
from interpreter.frontends.storages import Storages

PATHS = (
    *jupyter.PATHS,
    *librechat.PATHS,
    *mcp.PATHS,
    *tool_server.PATHS,
    *open_terminal.PATHS,
    *azure.PATHS,
    *onyx.PATHS,
    *dify.PATHS,
)
"""Paths of front ends that the documentation may name; ``{…}`` stands for one part."""


def make_routes(toolbox: Toolbox) -> list[URLSpec]:
    """The rules of all front ends, for ``make_application(extra_routes=…)``."""
    storages = Storages(toolbox.services)
    return [
        *jupyter.make_routes(toolbox),
        *librechat.make_routes(toolbox, storages),
        *mcp.make_routes(toolbox),
        *tool_server.make_routes(toolbox),
        *open_terminal.make_routes(toolbox),
        *azure.make_routes(toolbox),
        *onyx.make_routes(toolbox, storages),
        *dify.make_routes(toolbox),
    ]
