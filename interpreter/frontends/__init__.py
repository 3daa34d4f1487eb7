"""Foreign dialects: each module translates one, decides nothing, and has its own routes."""

from tornado.routing import URLSpec

from ..api.base import Toolbox
from .azure import PATHS as AZURE_PATHS
from .azure import make_routes as azure_routes
from .dify import PATHS as DIFY_PATHS
from .dify import make_routes as dify_routes
from .jupyter import PATHS as JUPYTER_PATHS
from .jupyter import make_routes as jupyter_routes
from .librechat import PATHS as LIBRECHAT_PATHS
from .librechat import make_routes as librechat_routes
from .mcp import PATHS as MCP_PATHS
from .mcp import make_routes as mcp_routes
from .mcp_sse import PATHS as MCP_SSE_PATHS
from .mcp_sse import make_routes as mcp_sse_routes
from .onyx import PATHS as ONYX_PATHS
from .onyx import make_routes as onyx_routes
from .open_terminal import PATHS as OPEN_TERMINAL_PATHS
from .open_terminal import make_routes as open_terminal_routes
from .tool_server import PATHS as TOOL_SERVER_PATHS
from .tool_server import make_routes as tool_server_routes

PATHS = (
    *JUPYTER_PATHS,
    *LIBRECHAT_PATHS,
    *MCP_PATHS,
    *MCP_SSE_PATHS,
    *TOOL_SERVER_PATHS,
    *AZURE_PATHS,
    *ONYX_PATHS,
    *DIFY_PATHS,
    *OPEN_TERMINAL_PATHS,
)
"""Paths of front ends that the documentation may name; ``{…}`` stands for one part."""


def make_routes(toolbox: Toolbox) -> list[URLSpec]:
    """The rules of all front ends, for ``make_application(extra_routes=…)``."""
    return [
        *jupyter_routes(toolbox),
        *librechat_routes(toolbox),
        *mcp_routes(toolbox),
        *mcp_sse_routes(toolbox),
        *tool_server_routes(toolbox),
        *azure_routes(toolbox),
        *onyx_routes(toolbox),
        *dify_routes(toolbox),
        *open_terminal_routes(toolbox),
    ]
