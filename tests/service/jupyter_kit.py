"""The Jupyter routes on a real socket, over the real parts and a scripted gateway."""

import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from prometheus_client import CollectorRegistry
from runs_kit import Clock, Stack, stack
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders
from tornado.testing import bind_unused_port
from tornado.websocket import WebSocketClientConnection, websocket_connect

from interpreter.api.routes import make_application, make_toolbox
from interpreter.api.services import Services
from interpreter.frontends import jupyter
from interpreter.messages import V1_SUBPROTOCOL
from interpreter.models import Role
from interpreter.settings import Settings
from interpreter.store import Store
from interpreter.tokens import TokenOptions, TokenStore
from interpreter.web import STATIC_PATH, TEMPLATE_PATH

UPGRADE = {"User-Agent": "Python/3.12 websockets/15"}  # a client that shows only text and PNG


@dataclass
class Socket:
    """A client's websocket."""

    connection: WebSocketClientConnection

    def send(self, msg_type: str, content: Mapping[str, Any], **header: Any) -> str:
        """A legacy request as Open WebUI sends it: an empty date, no buffers. Its message id."""
        msg_id = uuid.uuid4().hex
        sent = {
            "header": {"msg_id": msg_id, "msg_type": msg_type, "session": "s", "date": "", **header},
            "parent_header": {},
            "metadata": {},
            "content": content,
        }
        self.connection.write_message(json.dumps(sent))
        return msg_id

    def execute(self, code: str, **content: Any) -> str:
        """Its message id."""
        return self.send("execute_request", {"code": code, **content})

    async def read(self) -> dict[str, Any] | None:
        """The next message, None when the socket was closed."""
        frame = await self.connection.read_message()
        if frame is None:
            return None
        assert isinstance(frame, str)
        message: dict[str, Any] = json.loads(frame)
        assert {"header", "parent_header", "content", "metadata", "channel", "buffers"} <= set(message)
        assert message["msg_type"] == message["header"]["msg_type"]
        assert message["msg_id"] == message["header"]["msg_id"]
        message["size"] = len(frame.encode())
        return message

    async def answers(self, msg_id: str) -> list[dict[str, Any]]:
        """All messages of a request, up to its idle."""
        found = []
        while (message := await self.read()) is not None:
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            found.append(message)
            if message["content"].get("execution_state") == "idle":
                return found
        raise AssertionError("the websocket was closed")

    async def run(self, code: str, **content: Any) -> list[dict[str, Any]]:
        """Execute; all messages up to idle."""
        return await self.answers(self.execute(code, **content))


def kinds(messages: list[dict[str, Any]]) -> list[str]:
    """The types of messages, with a status' state in its place."""
    return [m["content"].get("execution_state", m["msg_type"]) for m in messages]


def text(messages: list[dict[str, Any]], name: str = "stdout") -> str:
    """What was printed."""
    streams = [m["content"] for m in messages if m["msg_type"] == "stream"]
    return "".join(content["text"] for content in streams if content["name"] == name)


def contents(messages: list[dict[str, Any]], msg_type: str) -> list[dict[str, Any]]:
    """The contents of the messages of one type."""
    return [m["content"] for m in messages if m["msg_type"] == msg_type]


@dataclass
class Front:
    """The running routes."""

    url: str
    stack: Stack
    tokens: TokenStore
    secrets: dict[str, str] = field(default_factory=dict)

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str = "run", **headers: str
    ) -> HTTPResponse:
        """One request with an Authorization header; ``token=""`` sends none."""
        sent = HTTPHeaders({name.replace("_", "-"): value for name, value in headers.items()})
        if token:
            sent["Authorization"] = f"token {self.secrets[token]}"
        request = HTTPRequest(
            self.url + path,
            method=method,
            headers=sent,
            body=json.dumps(body) if body is not None else None,
            allow_nonstandard_methods=True,
            follow_redirects=False,
        )
        return await AsyncHTTPClient().fetch(request, raise_error=False)

    async def start_kernel(self, token: str = "run", **body: Any) -> str:
        """A kernel's id."""
        made = await self.ask("POST", "/api/kernels", body, token=token)
        assert made.code == 201, made.body
        kernel_id: str = json.loads(made.body)["id"]
        return kernel_id

    async def connect(
        self,
        kernel_id: str,
        token: str = "run",
        *,
        session_id: str = "",
        v1: bool = False,
        headers: Mapping[str, str] = UPGRADE,
    ) -> Socket:
        """A websocket with the token in its URL."""
        named = {"token": self.secrets[token] if token else "", "session_id": session_id}
        query = urlencode({name: value for name, value in named.items() if value})
        url = f"{self.url.replace('http', 'ws')}/api/kernels/{kernel_id}/channels?{query}"
        request = HTTPRequest(url, headers=HTTPHeaders(headers))
        protocols = [V1_SUBPROTOCOL] if v1 else None
        return Socket(await websocket_connect(request, subprotocols=protocols, max_message_size=1024**3))

    @asynccontextmanager
    async def kernel(self, token: str = "run", **body: Any) -> AsyncIterator[Socket]:
        """A kernel and a websocket to it."""
        socket = await self.connect(await self.start_kernel(token, **body), token)
        try:
            yield socket
        finally:
            socket.connection.close()


@asynccontextmanager
async def front(folder: Path, **settings: Any) -> AsyncIterator[Front]:
    """The routes with tokens ``run``, ``other``, ``review``, ``admin``, ``keep`` and ``loud``."""
    async with stack(folder, **settings) as parts, AsyncExitStack() as exits:
        store = Store("sqlite://")
        await store.start()
        exits.push_async_callback(store.aclose)
        tokens = TokenStore(store, clock=Clock())
        services = Services(
            Settings(**settings),
            tokens,
            parts.sessions,
            parts.runs,
            parts.recorder,
            parts.workspaces,
            {},
            CollectorRegistry(),
            parts.clock,
        )
        toolbox = make_toolbox(services)
        application = make_application(
            services,
            template_path=TEMPLATE_PATH,
            static_path=STATIC_PATH,
            toolbox=toolbox,
            extra_routes=jupyter.make_routes(toolbox),
        )
        parts.workspaces.prepare()
        listener, port = bind_unused_port()
        server = HTTPServer(application)
        server.add_socket(listener)

        async def stop() -> None:
            server.stop()
            await server.close_all_connections()

        exits.push_async_callback(stop)
        made = Front(f"http://127.0.0.1:{port}", parts, tokens)
        for name, role, options in (
            ("run", Role.RUN, TokenOptions()),
            ("other", Role.RUN, TokenOptions()),
            ("review", Role.REVIEW, TokenOptions()),
            ("admin", Role.ADMIN, TokenOptions()),
            ("keep", Role.RUN, TokenOptions(keep_state=True)),
            ("loud", Role.RUN, TokenOptions(stderr_to_stdout=True)),
        ):
            _, made.secrets[name] = await tokens.create(name, role, None, options)
        yield made
        await parts.sessions.aclose()
