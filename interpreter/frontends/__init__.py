"""Foreign dialects: each module translates one, decides nothing, and has its own routes."""

from tornado.routing import URLSpec

from ..api.base import Toolbox
from .mcp import make_routes as mcp_routes
from .mcp_sse import make_routes as mcp_sse_routes


def make_routes(toolbox: Toolbox) -> list[URLSpec]:
    """The rules of all front ends, for ``make_application(extra_routes=…)``."""
    return [*mcp_routes(toolbox), *mcp_sse_routes(toolbox)]
