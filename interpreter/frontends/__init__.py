"""Foreign dialects: each module translates one, decides nothing, and has its own routes."""

from tornado.routing import URLSpec

from ..api.base import Toolbox
from .jupyter import make_routes as jupyter_routes
from .librechat import make_routes as librechat_routes
from .mcp import make_routes as mcp_routes
from .mcp_sse import make_routes as mcp_sse_routes


def make_routes(toolbox: Toolbox) -> list[URLSpec]:
    """The rules of all front ends, for ``make_application(extra_routes=…)``."""
    return [*jupyter_routes(toolbox), *librechat_routes(toolbox), *mcp_routes(toolbox), *mcp_sse_routes(toolbox)]
