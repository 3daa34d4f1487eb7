"""Jupyter's REST API and kernel websocket, for clients that know no other: ``/api`` (and ``/login``).

A kernel there is a session of ours, and an execute request a run: sandboxed, limited, recorded.
"""

import re

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.frontends.jupyter import channels, contents_routes, document_routes, kernels
from interpreter.frontends.jupyter.base import JupyterHandler
from interpreter.frontends.jupyter.front import Front

ROUTES: tuple[tuple[str, type[JupyterHandler]], ...] = (
    ("/api", kernels.RootHandler),
    ("/api/status", kernels.StatusHandler),
    ("/api/me", kernels.MeHandler),
    ("/api/kernelspecs", kernels.KernelspecsHandler),
    ("/api/kernelspecs/{name}", kernels.KernelspecHandler),
    ("/api/kernels", kernels.KernelsHandler),
    ("/api/kernels/{kernel_id}", kernels.KernelHandler),
    ("/api/kernels/{kernel_id}/interrupt", kernels.InterruptHandler),
    ("/api/kernels/{kernel_id}/restart", kernels.RestartHandler),
    ("/api/kernels/{kernel_id}/channels", channels.ChannelsHandler),
    ("/api/sessions", document_routes.DocumentsHandler),
    ("/api/sessions/{document_id}", document_routes.DocumentHandler),
    ("/api/contents/{path}/checkpoints", contents_routes.CheckpointsHandler),
    ("/api/contents", contents_routes.ContentsHandler),
    ("/api/contents/{path}", contents_routes.ContentsHandler),
)

PATHS = tuple(path for path, _ in ROUTES)


def make_routes(toolbox: Toolbox) -> list[URLSpec]:
    """The rules of all these routes; a slash at the end is allowed, as clients send it."""
    front = Front(toolbox)
    return [
        URLSpec(_pattern(template), handler, {"toolbox": toolbox, "route": template, "front": front})
        for template, handler in ROUTES
    ]


def _pattern(template: str) -> str:
    escaped = template.replace("{path}", "(?P<path>.*)")
    return re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", escaped) + "/?"
