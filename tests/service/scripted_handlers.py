"""The routes of the scripted gateway: Jupyter Kernel Gateway's REST, its websocket, Jupyter Server's login."""

import asyncio
import contextlib
import json
import re
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from jupyter_server.services.kernels.connection.base import (
    deserialize_msg_from_ws_v1,
    serialize_binary_message,
    serialize_msg_to_ws_v1,
)
from scripted_answers import (
    CUT,
    HTTP_401,
    HTTP_403,
    HTTP_404,
    MAX_KERNELS,
    NO_SUCH_KERNELSPEC,
    Answer,
    SeenMessage,
    SeenRequest,
)
from scripted_kernel import JSON, Manner, ScriptedKernel
from tornado.web import Finish, RequestHandler
from tornado.websocket import WebSocketClosedError, WebSocketHandler

if TYPE_CHECKING:
    from scripted_gateway import ScriptedGateway

V1 = "v1.kernel.websocket.jupyter.org"
COOKIE = "username-scripted"
CLOSED_ON_DELETE = 4404


def routes(gateway: "ScriptedGateway") -> list[tuple[str, type[RequestHandler], JSON]]:
    """Every route with the operations that its methods are."""
    kernel = r"/api/kernels/([^/]+)"
    table: list[tuple[str, type[RequestHandler], dict[str, str]]] = [
        (r"/login", LoginHandler, {"GET": "login", "POST": "login"}),
        (r"/api/?", VersionHandler, {"GET": "api"}),
        (r"/api/kernelspecs", KernelspecsHandler, {"GET": "kernelspecs"}),
        (r"/api/kernels", KernelsHandler, {"GET": "list", "POST": "start"}),
        (kernel, KernelHandler, {"GET": "get", "DELETE": "delete"}),
        (kernel + "/interrupt", ActionHandler, {"POST": "interrupt"}),
        (kernel + "/restart", ActionHandler, {"POST": "restart"}),
        (kernel + "/channels", ChannelsHandler, {"GET": "websocket"}),
        (r".*", UnknownHandler, {}),
    ]
    base = re.escape(gateway.base_url)
    return [(base + path, handler, {"gateway": gateway, "ops": ops}) for path, handler, ops in table]


class GatewayHandler(RequestHandler):
    """Every request is remembered, waits at its gate, is let in, and may get a canned answer."""

    def initialize(self, gateway: "ScriptedGateway", ops: dict[str, str]) -> None:
        self.gateway, self.ops = gateway, ops

    async def prepare(self) -> None:
        """What comes before the truth; raises Finish when the request ends here."""
        method = self.request.method or ""
        self.op = self.ops.get(method, "unknown")
        self._remember(method)
        await self.gateway.pass_gate(self.op, self._manner())
        if self.gateway.closing:
            self.reply(CUT)
        canned = self.gateway.take_answer(self.op)
        if canned is not None:
            self.reply(canned)
        if self.op != "login":
            self._let_in(method)
        elif self.gateway.auth != "password":
            self.reply(HTTP_404)

    def _remember(self, method: str) -> None:
        body: Any = None
        with contextlib.suppress(ValueError):
            body = json.loads(self.request.body)
        self.body = body
        query = {key: values[-1].decode() for key, values in self.request.query_arguments.items()}
        headers = {key.lower(): value for key, value in self.request.headers.get_all()}
        path = self.request.path.removeprefix(self.gateway.base_url)
        self.gateway.requests.append(SeenRequest(self.op, method, path, query, headers, body))
        self.gateway.changed()

    def _manner(self) -> Manner | None:
        """The manner of the kernel that the request is about."""
        if self.op == "start":
            name = self.body.get("name") if isinstance(self.body, dict) else None
            return self.gateway.find_manner(name or Manner.GOOD)
        kernel = self.gateway.kernels.get(self.path_args[0]) if self.path_args else None
        return kernel.manner if kernel else None

    def _let_in(self, method: str) -> None:
        gateway = self.gateway
        if gateway.auth == "token":
            sent = self.request.headers.get("Authorization", "").removeprefix("token ")
            if gateway.token not in {sent, self.get_query_argument("token", "")}:
                self.reply(HTTP_401)
        elif gateway.auth == "password":
            if self.get_signed_cookie(COOKIE) is None:
                self.reply(HTTP_403)
            if method not in {"GET", "HEAD"}:
                self.check_xsrf_cookie()

    def reply(self, answer: Answer) -> NoReturn:
        """Send a canned answer. Always raises Finish."""
        if answer.status == 0:
            self.request.connection.stream.close()  # type: ignore[union-attr]
            raise Finish
        self.set_status(answer.status)
        self.set_header("Content-Type", answer.content_type)
        raise Finish(answer.body)

    def send_json(self, value: Any, status: int = 200) -> None:
        """Send the truth."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(value))

    def living(self, kernel_id: str) -> ScriptedKernel:
        """The kernel of that id; replies 404 when it is unknown or dead."""
        kernel = self.gateway.kernels.get(kernel_id)
        if kernel is None or not kernel.alive:
            self.reply(HTTP_404)
        return kernel


def _model(kernel: ScriptedKernel) -> JSON:
    return {
        "id": kernel.id,
        "name": kernel.name,
        "last_activity": datetime.now(UTC).isoformat(),
        "execution_state": kernel.execution_state,
        "connections": len(kernel.sockets),
    }


class UnknownHandler(GatewayHandler):
    async def prepare(self) -> None:
        await super().prepare()
        self.reply(HTTP_404)


class LoginHandler(GatewayHandler):
    """Jupyter Server's form: GET sets ``_xsrf``, POST needs it with the password and sets the session."""

    def get(self) -> None:
        self.finish(f'<form method="post"><input type="hidden" name="_xsrf" value="{self._token()}"></form>')

    def post(self) -> None:
        self.check_xsrf_cookie()
        if self.get_body_argument("password", "") != self.gateway.password:
            self.reply(Answer(401, "<p>Invalid credentials</p>", "text/html"))
        self.set_signed_cookie(COOKIE, "user", path=self.gateway.base_url or "/", httponly=True)
        self.redirect(f"{self.gateway.base_url}/")

    def _token(self) -> str:
        return self.xsrf_token.decode()


class VersionHandler(GatewayHandler):
    def get(self) -> None:
        self.send_json({"version": "2.21.1"})


class KernelspecsHandler(GatewayHandler):
    def get(self) -> None:
        specs = {
            str(name): {
                "name": name,
                "spec": {"display_name": f"Scripted ({name})", "language": "python", "argv": []},
                "resources": {},
            }
            for name in Manner
        }
        self.send_json({"default": "python3", "kernelspecs": specs})


class KernelsHandler(GatewayHandler):
    def get(self) -> None:
        if not self.gateway.list_kernels:
            self.reply(HTTP_403)
        self.send_json([_model(kernel) for kernel in self.gateway.kernels.values() if kernel.alive])

    def post(self) -> None:
        name = (self.body or {}).get("name") or Manner.GOOD
        alive = sum(kernel.alive for kernel in self.gateway.kernels.values())
        if self.gateway.max_kernels is not None and alive >= self.gateway.max_kernels:
            self.reply(MAX_KERNELS)
        if self.gateway.find_manner(name) is None:
            self.reply(NO_SUCH_KERNELSPEC)
        self.send_json(_model(self.gateway.add_kernel(name)), 201)


class KernelHandler(GatewayHandler):
    def get(self, kernel_id: str) -> None:
        self.send_json(_model(self.living(kernel_id)))

    async def delete(self, kernel_id: str) -> None:
        kernel = self.living(kernel_id)
        await kernel.aclose()
        if self.gateway.closes_on_delete:
            for socket in list(kernel.sockets):
                socket.close(CLOSED_ON_DELETE, "kernel deleted")
        del self.gateway.kernels[kernel_id]
        self.set_status(204)
        self.finish()
        self.gateway.changed()


class ActionHandler(GatewayHandler):
    """Interrupt and restart."""

    async def post(self, kernel_id: str) -> None:
        kernel = self.living(kernel_id)
        if self.op == "restart":
            await kernel.restart()
            self.send_json(_model(kernel))
            return
        kernel.interrupt()
        self.set_status(204)
        self.finish()


class ChannelsHandler(GatewayHandler, WebSocketHandler):
    """The websocket of one client, in the subprotocol v1 or in the legacy JSON form."""

    session_id = ""
    kernel: ScriptedKernel | None = None

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return V1 if self.gateway.v1 and V1 in subprotocols else None

    async def get(self, *args: Any, **kwargs: Any) -> None:
        self.living(args[0])
        await super().get(*args, **kwargs)

    def open(self, *args: str, **_kwargs: str) -> None:
        self.session_id = self.get_query_argument("session_id", "") or uuid.uuid4().hex
        self.kernel = self.gateway.kernels[args[0]]
        self.gateway.sockets.add(self)
        self.kernel.attach(self)
        self.gateway.changed()

    async def on_message(self, message: str | bytes) -> None:
        request = self._decode(message)
        channel, kind = request["channel"], request["header"]["msg_type"]
        assert self.kernel is not None
        self.gateway.messages.append(SeenMessage(self.kernel.id, channel, kind, request))
        if channel == "control":
            await self.kernel.answer_control(request)
        else:
            self.kernel.receive(channel, request)
        self.gateway.changed()

    def on_close(self) -> None:
        if self.kernel is not None:
            self.kernel.detach(self)
        self.gateway.sockets.discard(self)
        self.gateway.changed()

    def _decode(self, frame: str | bytes) -> JSON:
        if isinstance(frame, bytes) and self.selected_subprotocol == V1:
            channel, parts = deserialize_msg_from_ws_v1(frame)  # type: ignore[no-untyped-call]
            names = ("header", "parent_header", "metadata", "content")
            values = {name: json.loads(part) for name, part in zip(names, parts, strict=False)}
            return {"channel": channel, "buffers": parts[4:], **values}
        request: JSON = json.loads(frame)
        return request

    def deliver(self, message: JSON) -> "asyncio.Future[None]":
        """Queue a kernel's message; the future ends when it is sent or the socket is gone."""
        if self.selected_subprotocol == V1:
            names = ("header", "parent_header", "metadata", "content")
            parts = [json.dumps(message[name]).encode() for name in names] + message["buffers"]
            frame = serialize_msg_to_ws_v1(parts, message["channel"])  # type: ignore[no-untyped-call]
            return self.deliver_raw(frame)
        if message["buffers"]:
            return self.deliver_raw(serialize_binary_message(message))  # type: ignore[no-untyped-call]
        return self.deliver_raw(json.dumps(message))

    def deliver_raw(self, frame: bytes | str) -> "asyncio.Future[None]":
        """Queue any frame at all."""
        try:
            sent = self.write_message(frame, binary=isinstance(frame, bytes))
        except WebSocketClosedError:
            sent = asyncio.get_running_loop().create_future()
            sent.set_result(None)
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        return sent

    def cut(self) -> None:
        """Close the connection without a close frame."""
        stream = getattr(self.ws_connection, "stream", None)
        if stream is not None:
            stream.close()
