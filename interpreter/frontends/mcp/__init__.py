"""MCP: ``/mcp``, ``/mcp/smg`` for SMG, and ``/mcp/python/sse``, which vLLM dials."""

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.frontends.mcp.server import McpServer
from interpreter.frontends.mcp.sse import INFO, INSTRUCTIONS, MessagesHandler, StreamHandler, Streams
from interpreter.frontends.mcp.streamable import Connections, McpHandler, SmgHandler

STREAMABLE_ROUTES = (("/mcp", McpHandler), ("/mcp/smg", SmgHandler))
SSE_ROUTES = (("/mcp/python/sse", StreamHandler), ("/mcp/python/messages", MessagesHandler))

PATHS = tuple(path for path, _ in (*STREAMABLE_ROUTES, *SSE_ROUTES))


def make_routes(toolbox: Toolbox) -> list[URLSpec]:
    """The rules of this front end."""
    connections = Connections(McpServer(toolbox.services))
    streams = Streams(McpServer(toolbox.services, info=INFO, instructions=INSTRUCTIONS))
    return [
        *(
            URLSpec(path + "/?", handler, {"toolbox": toolbox, "route": path, "connections": connections})
            for path, handler in STREAMABLE_ROUTES
        ),
        *(
            URLSpec(path, handler, {"toolbox": toolbox, "route": path, "streams": streams})
            for path, handler in SSE_ROUTES
        ),
    ]


__all__ = ["PATHS", "make_routes"]
