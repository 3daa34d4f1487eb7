"""The gateway's HTTP routes with its defects mended: authentication, errors, kernel starts."""

import hmac
import json
import os
import re
import struct
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from http.client import responses
from pathlib import Path
from typing import Any

import jupyter_server
import jupyter_server.base.handlers as server_base
import jupyter_server.services.kernels.handlers as server_kernels
import jupyter_server.services.kernelspecs.handlers as server_kernelspecs
import kernel_gateway
from jupyter_client.jsonutil import json_default
from jupyter_client.kernelspec import NoSuchKernel
from jupyter_server.auth.decorator import authorized
from jupyter_server.auth.identity import User
from jupyter_server.services.kernels.websocket import KernelWebsocketHandler
from jupyter_server.utils import url_path_join
from kernel_gateway.auth.identity import GatewayIdentityProvider
from tornado import web
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError

from interpreter.batches import BATCH_SUBPROTOCOL, batch
from interpreter.gateway_extension.causes import cause
from interpreter.gateway_extension.manager import AllKernelsManager
from interpreter.gateway_extension.sandbox.bubblewrap import EarlyDeathError

_AUTHORIZATION = re.compile(r"(?:token|bearer)\s+(\S+)\s*", re.IGNORECASE)
_FIELDS = frozenset({"name", "path", "env"})

UNKNOWN_KERNELSPEC = "Unknown kernelspec"
"""``reason`` of the 400 for a kernelspec that the gateway does not have."""
START_FAILED = "Kernel did not start"
"""``reason`` of the 500 for a kernel that could not be started; the message is the cause."""


class HeaderIdentityProvider(GatewayIdentityProvider):  # type: ignore[misc]
    """Who asks: whoever has the token, in the header ``Authorization: token|Bearer T`` and nowhere else.

    A token in the URL would be written to access logs. Without ``auth_token`` everybody may ask, as
    in Kernel Gateway.
    """

    def get_user(self, handler: web.RequestHandler) -> User | None:
        expected = handler.settings.get("kg_auth_token")
        if not expected:
            return self._anonymous(handler)
        match = _AUTHORIZATION.fullmatch(handler.request.headers.get("Authorization", ""))
        given = match.group(1) if match else ""
        if not hmac.compare_digest(given.encode(), str(expected).encode()):
            return None
        return self._anonymous(handler)

    def _anonymous(self, handler: web.RequestHandler) -> User:
        user: User = self.generate_anonymous_user(handler)
        return user


class GatewayHandlerMixin(web.RequestHandler):
    """In front of jupyter_server's handlers: 401 before anything else, JSON errors without inside views."""

    def prepare(self) -> Awaitable[None] | None:
        provider: HeaderIdentityProvider = self.settings["identity_provider"]
        if provider.get_user(self) is None:
            self.send_error(401)
            return None
        return super().prepare()

    def check_xsrf_cookie(self) -> None:
        """No cookies here, so no forged ones either."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        write_error(self, status_code, **kwargs)


def write_error(handler: web.RequestHandler, status_code: int, **kwargs: Any) -> None:
    """Answers ``{"reason", "message"}``; what went wrong inside is told to the log only, but for why no kernel started.

    How the kernel ended, if it did, is in ``interpreter``, as in the last status message of a kernel that died.
    """
    error = kwargs.get("exc_info", (None, None, None))[1]
    reason = responses.get(status_code, "Unknown error")
    message = "The gateway failed; its log says why." if status_code >= 500 else reason
    if isinstance(error, web.HTTPError):
        reason = error.reason or reason
        if error.log_message and (status_code < 500 or reason == START_FAILED):
            message = error.log_message % error.args
    handler.set_status(status_code, reason)
    handler.set_header("Content-Type", "application/json")
    body: dict[str, Any] = {"reason": reason, "message": message}
    if (death := _find_death(handler, error)) is not None:
        body["interpreter"] = death
    handler.finish(json.dumps(body))


def _find_death(handler: web.RequestHandler, error: BaseException | None) -> dict[str, Any] | None:
    if error is not None and isinstance(error.__cause__, EarlyDeathError):
        return error.__cause__.death
    kernel_id = (handler.path_kwargs or {}).get("kernel_id")
    manager = handler.settings.get("kernel_manager")
    return manager.find_death(kernel_id) if kernel_id and isinstance(manager, AllKernelsManager) else None


class KernelsHandler(GatewayHandlerMixin, server_kernels.MainKernelHandler):  # type: ignore[misc]
    """``GET`` lists kernels (if ``list_kernels`` is on), ``POST`` starts one."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        if not self.settings.get("kg_list_kernels"):
            raise web.HTTPError(403, "Listing kernels is turned off.")
        kernels = self._manager.list_kernels()
        self.finish(json.dumps(kernels, default=json_default))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Body: ``name``, ``path`` (a folder below the root, as cwd), ``env`` (``KERNEL_*`` only)."""
        manager = self._manager
        body = self._body()
        name = body.get("name") or manager.default_kernel_name
        if not isinstance(name, str) or not self._has_kernelspec(name):
            raise web.HTTPError(400, "The gateway has no such kernelspec.", reason=UNKNOWN_KERNELSPEC)
        path = working_directory(body.get("path"), Path(manager.root_dir))
        environment = request_environment(body.get("env"), self.settings["kg_personality"].env_whitelist)
        options: dict[str, Any] = {} if path is None else {"cwd": str(path)}
        try:
            kernel_id = await manager.start_kernel(
                kernel_name=name,
                env=environment,
                max_kernels=self.settings["kg_max_kernels"],
                **options,
            )
        except web.HTTPError:
            raise
        except Exception as error:
            self.log.exception("kernel %s did not start", name)
            raise web.HTTPError(500, cause(error), reason=START_FAILED) from error
        self.set_status(201)
        self.set_header("Location", url_path_join(self.base_url, "api", "kernels", kernel_id))
        model = manager.kernel_model(kernel_id)
        self.finish(json.dumps(model, default=json_default))

    @property
    def _manager(self) -> AllKernelsManager:
        manager: AllKernelsManager = self.settings["kernel_manager"]
        return manager

    def _body(self) -> dict[str, Any]:
        body = self.get_json_body()
        if body is None:
            return {}
        if not isinstance(body, dict):
            raise web.HTTPError(400, "The body must be a JSON object.")
        if body.get("kernel_id") is not None:
            raise web.HTTPError(400, "The gateway chooses the kernel_id.")
        return {name: value for name, value in body.items() if name in _FIELDS}

    def _has_kernelspec(self, name: str) -> bool:
        try:
            self.kernel_spec_manager.get_kernel_spec(name)
        except NoSuchKernel:
            return False
        return True


def working_directory(path: object, root: Path) -> Path | None:
    """The folder that a request's ``path`` names, always below `root`; None if it names none.

    Raises a 400 for anything that is no folder or would lead outside, by ``..`` or a link.
    """
    if path is None or path == "":
        return None
    if not isinstance(path, str) or "\0" in path or ".." in path.split("/"):
        raise web.HTTPError(400, "path must name a folder below the gateway's root.")
    root = root.resolve()
    folder = Path(os.path.realpath(root / path.strip("/")))
    if not folder.is_relative_to(root) or not folder.is_dir():
        raise web.HTTPError(400, "path must name a folder below the gateway's root.")
    return folder


def request_environment(env: object, allowed: list[str]) -> dict[str, str]:
    """The ``KERNEL_*`` and allowed names of a request's ``env``; others are dropped, as upstream does."""
    if env is None:
        return {}
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise web.HTTPError(400, "env must map names to strings.")
    return {
        name: value
        for name, value in env.items()
        if (name.startswith("KERNEL_") or (name and name in allowed)) and "\0" not in name + value
    }


class KernelHandler(GatewayHandlerMixin, server_kernels.KernelHandler):  # type: ignore[misc]
    """``GET`` and ``DELETE`` of one kernel."""


class KernelActionHandler(GatewayHandlerMixin, server_kernels.KernelActionHandler):  # type: ignore[misc]
    """Interrupt and restart."""


class ChannelsHandler(GatewayHandlerMixin, KernelWebsocketHandler):  # type: ignore[misc]
    """The websocket of a kernel."""

    def get_compression_options(self) -> None:
        """None: the peer is near, and compression would only cost time."""

    def call_at_close(self, callback: Callable[[], None] | None) -> None:
        """Has the callback called when the client's connection ends; None: no more."""
        stream = None if self.ws_connection is None else self.ws_connection.stream
        if stream is not None:
            stream.set_close_callback(callback)

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        """Batches for our own service."""
        if BATCH_SUBPROTOCOL in subprotocols:
            return BATCH_SUBPROTOCOL
        selected: str | None = super().select_subprotocol(subprotocols)  # type: ignore[no-untyped-call]
        return selected

    def write_frames(self, messages: Sequence[bytes]) -> "Future[None]":
        """Sends binary messages in one write, where Tornado's `write_message` needs one for each.

        Raises WebSocketClosedError. Source of the format: RFC 6455, section 5.2.
        """
        connection = self.ws_connection
        stream = None if connection is None or connection.is_closing() else connection.stream
        if stream is None:
            raise WebSocketClosedError
        if self.selected_subprotocol == BATCH_SUBPROTOCOL:
            parts = batch(messages)
            parts.insert(0, _frame_head(sum(map(len, parts))))
        else:
            parts = [part for m in messages for part in (_frame_head(len(m)), m)]
        try:
            return stream.write(b"".join(parts))
        except StreamClosedError as error:
            raise WebSocketClosedError from error


def _frame_head(size: int) -> bytes:
    binary = 0x82
    if size < 126:
        return struct.pack("!BB", binary, size)
    return (
        struct.pack("!BBH", binary, 126, size) if size < 1 << 16 else struct.pack("!BBQ", binary, 127, size)
    )


class KernelspecsHandler(GatewayHandlerMixin, server_kernelspecs.MainKernelSpecHandler):  # type: ignore[misc]
    """All kernelspecs."""


class KernelspecHandler(GatewayHandlerMixin, server_kernelspecs.KernelSpecHandler):  # type: ignore[misc]
    """One kernelspec."""


class VersionHandler(GatewayHandlerMixin, server_base.APIVersionHandler):  # type: ignore[misc]
    """``GET /api``: the versions; with the token it serves as a health check."""

    def get(self) -> None:
        """Kernel Gateway's own too, under the name that Enterprise Gateway gives it."""
        versions = {"version": jupyter_server.__version__, "gateway_version": kernel_gateway.__version__}
        self.finish(json.dumps(versions))


class UnknownRouteHandler(web.RequestHandler):
    """404 for all else, and it does not say whether a token was good."""

    def prepare(self) -> None:
        raise web.HTTPError(404)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        write_error(self, status_code, **kwargs)


_KERNEL = r"(?P<kernel_id>\w+-\w+-\w+-\w+-\w+)"

ROUTES: list[tuple[str, type[web.RequestHandler]]] = [
    (r"/api", VersionHandler),
    (r"/api/kernels", KernelsHandler),
    (rf"/api/kernels/{_KERNEL}", KernelHandler),
    (rf"/api/kernels/{_KERNEL}/(?P<action>restart|interrupt)", KernelActionHandler),
    (rf"/api/kernels/{_KERNEL}/channels", ChannelsHandler),
    (r"/api/kernelspecs", KernelspecsHandler),
    (r"/api/kernelspecs/(?P<kernel_name>[^/]+)", KernelspecHandler),
    (r"/(.*)", UnknownRouteHandler),
]
"""What this personality serves. Kernel Gateway's ``/api/sessions`` is left out: it starts kernels past
every check above."""
