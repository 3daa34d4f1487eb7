"""All native routes, and the Tornado application around them."""

import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tornado.routing import URLSpec
from tornado.web import Application, HTTPError, RequestHandler, StaticFileHandler

from interpreter.api import admin, files, frames, health, notebooks, pages, runs, sessions, tools
from interpreter.api.base import BaseHandler, Toolbox
from interpreter.api.browsers import UnknownPathHandler
from interpreter.api.cors import AllowedOrigins
from interpreter.api.limits import RateLimiter
from interpreter.api.logouts import Logouts
from interpreter.api.metrics import RequestMetrics
from interpreter.api.openapi import build_openapi
from interpreter.api.responses import Responses, log_request
from interpreter.api.schemas import Schemas
from interpreter.api.services import Services
from interpreter.api.shares import Shares, limit_of
from interpreter.api.stalls import GuardedApplication
from interpreter.api.unread import Unread

FAILED_LOGINS_PER_MINUTE = 10

ROUTES: tuple[tuple[str, type[BaseHandler]], ...] = (
    ("/v1/sessions", sessions.SessionsHandler),
    ("/v1/sessions/{session_id}", sessions.SessionHandler),
    ("/v1/sessions/{session_id}/interrupt", sessions.InterruptHandler),
    ("/v1/sessions/{session_id}/restart", sessions.RestartHandler),
    ("/v1/sessions/{session_id}/files", files.FilesHandler),
    ("/v1/sessions/{session_id}/files/{path}", files.FileHandler),
    ("/v1/sessions/{session_id}/runs", runs.SessionRunsHandler),
    ("/v1/runs", runs.OneOffRunsHandler),
    ("/v1/runs/{run_id}", runs.RunHandler),
    ("/v1/runs/{run_id}/events", runs.RunEventsHandler),
    ("/v1/runs/{run_id}/cancel", runs.CancelHandler),
    ("/v1/tools", tools.ToolsHandler),
    ("/v1/tool_calls", tools.ToolCallsHandler),
    ("/v1/notebooks", notebooks.NotebooksHandler),
    ("/v1/notebooks/{session_id}", notebooks.NotebookHandler),
    ("/v1/notebooks/{session_id}/verify", notebooks.VerifyHandler),
    ("/v1/notebooks/{session_id}/frames/{run}/{index}", frames.FrameHandler),
    ("/v1/tokens", admin.TokensHandler),
    ("/v1/tokens/{token_id}", admin.TokenHandler),
    ("/v1/kernelspecs", sessions.KernelspecsHandler),
    ("/healthz", health.HealthHandler),
    ("/readyz", health.ReadinessHandler),
    ("/metrics", health.MetricsHandler),
    ("/openapi.json", pages.OpenAPIHandler),
    ("/docs", pages.DocsHandler),
    ("/", pages.IndexHandler),
    ("/login", pages.LoginHandler),
    ("/logout", pages.LogoutHandler),
)


class StaticHandler(Responses, StaticFileHandler):
    """Files of the pages; for everyone."""

    route = "/static/{path}"

    def set_extra_headers(self, path: str) -> None:
        self.set_header("Cache-Control", "public, max-age=3600")

    def validate_absolute_path(self, root: str, absolute_path: str) -> str | None:
        try:
            return super().validate_absolute_path(root, absolute_path)
        except ValueError as error:  # a null character
            raise HTTPError(404) from error

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """A path that leads out, to a folder, or that is no text names no file: all the same to a client."""
        if status_code in (400, 403):
            kwargs = {"exc_info": (HTTPError, HTTPError(404), None)}
        super().write_error(404 if status_code in (400, 403) else status_code, **kwargs)

    def compute_etag(self) -> str | None:
        return StaticFileHandler.compute_etag(self)


def make_toolbox(services: Services) -> Toolbox:
    """What all handlers share."""
    return Toolbox(
        services,
        Schemas(services.settings),
        RateLimiter(services.settings.rate_limit, time.monotonic),
        RateLimiter(FAILED_LOGINS_PER_MINUTE, time.monotonic),
        Shares(held := limit_of(services.settings)),
        Unread(held, services.tokens),
    )


def make_routes(services: Services, toolbox: Toolbox | None = None) -> list[URLSpec]:
    """The rules of all native routes."""
    shared = toolbox or make_toolbox(services)
    return [
        URLSpec(_pattern(template), handler, {"toolbox": shared, "route": template})
        for template, handler in ROUTES
    ]


def make_application(
    services: Services,
    *,
    template_path: Path,
    static_path: Path,
    cookie_secret: bytes | None = None,
    extra_routes: Sequence[URLSpec] = (),
    toolbox: Toolbox | None = None,
) -> Application:
    """The whole application. Without a ``cookie_secret``, browsers log in again after a restart.

    ``extra_routes`` come before the pages, so that a front end may take one's path, and after ``/v1``,
    which is asked most: rules are tried in order. ``toolbox`` is the one that they were made with.
    """
    toolbox = toolbox or make_toolbox(services)
    metrics = RequestMetrics(services.registry)

    def finished(handler: RequestHandler) -> None:
        log_request(handler)
        metrics.observe(handler)

    rules = make_routes(services, toolbox)
    own = [rule for rule in rules if rule.regex.pattern.startswith("/v1/")]
    own.sort(key=lambda rule: rule.target is not runs.SessionRunsHandler)  # which is asked most of these
    others = [rule for rule in rules if rule not in own]
    static = [
        URLSpec(r"/static/(.*)", StaticHandler, {"path": str(static_path)}),
        URLSpec(r"/(favicon\.ico|robots\.txt)", StaticHandler, {"path": str(static_path)}),
    ]
    return GuardedApplication(
        [*own, *extra_routes, *others, *static],
        default_handler_class=UnknownPathHandler,
        default_handler_args={"toolbox": toolbox, "route": "(unknown)"},
        log_function=finished,
        template_path=str(template_path),
        cookie_secret=(cookie_secret or secrets.token_bytes(32)).hex(),
        logouts=Logouts(),
        allowed_origins=AllowedOrigins.from_settings(services.settings),
        xsrf_cookie_kwargs={"httponly": True, "samesite": "Strict"},
        openapi=build_openapi(((path, handler.operations) for path, handler in ROUTES), toolbox.schemas),
    )


def _pattern(template: str) -> str:
    """The regular expression of a template; only a file's ``{path}`` may hold slashes."""
    escaped = template.replace(".", r"\.").replace("{path}", "(?P<path>.*)")
    return re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", escaped)
