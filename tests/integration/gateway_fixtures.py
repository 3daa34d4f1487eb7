"""A small client of the real gateway, for the tests of the gateway's own side."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1, serialize_msg_to_ws_v1
from stock_servers import START_TIMEOUT, reserved_port
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from interpreter.kernels.embedded import EmbeddedGateway, gateway_config_dir
from interpreter.settings import Settings

V1 = "v1.kernel.websocket.jupyter.org"


@dataclass
class Reply:
    """What the gateway answered."""

    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Channels:
    """A kernel's websocket; `received` holds all messages so far as (channel, message)."""

    socket: WebSocketClientConnection
    received: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def send(self, msg_type: str, content: dict[str, Any], channel: str = "shell") -> str:
        msg_id = uuid4().hex
        header = {
            "msg_id": msg_id,
            "msg_type": msg_type,
            "username": "",
            "session": "test",
            "date": "2026-01-01T00:00:00Z",
            "version": "5.4",
        }
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        self.socket.write_message(serialize_msg_to_ws_v1(parts, channel), binary=True)
        return msg_id

    async def read(self) -> tuple[str, dict[str, Any]] | None:
        """The next message; None when the websocket was closed."""
        frame = await self.socket.read_message()
        if frame is None:
            return None
        channel, parts = deserialize_msg_from_ws_v1(frame)
        names = ("header", "parent_header", "metadata", "content")
        message = {name: json.loads(part) for name, part in zip(names, parts, strict=False)}
        message["size"] = len(frame)
        self.received.append((channel, message))
        return channel, message

    async def run(self, code: str) -> list[dict[str, Any]]:
        """Executes; returns the iopub messages of the run, without status and input, then the reply."""
        msg_id = self.send("execute_request", {"code": code, "allow_stdin": False, "stop_on_error": True})
        outputs: list[dict[str, Any]] = []
        reply, idle = None, False
        while reply is None or not idle:
            item = await self.read()
            assert item is not None, "the websocket was closed"
            channel, message = item
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            kind = message["header"]["msg_type"]
            if channel == "shell":
                reply = message
            elif kind == "status":
                idle = message["content"]["execution_state"] == "idle"
            elif kind != "execute_input":
                outputs.append(message)
        return [*outputs, reply]

    async def text(self, code: str) -> str:
        """What the code printed to stdout."""
        return "".join(
            m["content"]["text"]
            for m in await self.run(code)
            if m["header"]["msg_type"] == "stream" and m["content"]["name"] == "stdout"
        )

    async def begin(self, code: str) -> str:
        """Starts code that does not end; returns when it runs.

        A C loop keeps the kernel's output thread from running, so the cell first waits for it.
        """
        first = (
            "import threading\n"
            "print('begun', flush=True)\n"
            "sent = threading.Event()\n"
            "get_ipython().kernel.iopub_thread.schedule(sent.set)\n"
            "sent.wait()\n"
        )
        msg_id = self.send("execute_request", {"code": first + code})
        while (item := await self.read()) is not None:
            if item[1]["header"]["msg_type"] == "stream":
                return msg_id
        raise AssertionError("the websocket was closed")

    async def drain(self) -> None:
        """Reads until the websocket is closed."""
        while await self.read() is not None:
            pass
        self.socket.close()


@dataclass(frozen=True)
class GatewayClient:
    """Speaks REST and websocket to one gateway."""

    url: str
    token: str
    root: Path

    async def ask(
        self, method: str, path: str, body: Any = None, *, authorization: str | None = None
    ) -> Reply:
        request = HTTPRequest(
            self.url + path,
            method=method,
            body=None if body is None else json.dumps(body),
            headers={"Authorization": authorization or f"token {self.token}"},
            allow_nonstandard_methods=True,
            request_timeout=90,
        )
        response = await AsyncHTTPClient().fetch(request, raise_error=False)
        return Reply(response.code, response.body.decode())

    async def start_kernel(self, **body: Any) -> str:
        reply = await self.ask("POST", "/api/kernels", {"name": "python3", **body})
        assert reply.status == 201, reply.text
        kernel_id: str = reply.json["id"]
        return kernel_id

    async def connect(self, kernel_id: str, session_id: str | None = None) -> Channels:
        url = f"{self.url}/api/kernels/{kernel_id}/channels?session_id={session_id or uuid4().hex}"
        request = HTTPRequest(
            url.replace("http", "ws", 1), headers={"Authorization": f"token {self.token}"}, request_timeout=90
        )
        connection = await websocket_connect(request, subprotocols=[V1], max_message_size=1024**3)
        return Channels(connection)

    @contextlib.asynccontextmanager
    async def kernel(self, **body: Any) -> AsyncIterator[tuple[str, Channels]]:
        kernel_id = await self.start_kernel(**body)
        channels = await self.connect(kernel_id)
        try:
            yield kernel_id, channels
        finally:
            channels.socket.close()
            await self.ask("DELETE", f"/api/kernels/{kernel_id}")


@contextlib.asynccontextmanager
async def embedded_gateway(
    folder: Path, on_exit: Callable[[], None] = lambda: None, **settings: Any
) -> AsyncIterator[tuple[EmbeddedGateway, GatewayClient]]:
    """The service's own gateway."""
    gateway = EmbeddedGateway(
        Settings(**settings),
        state_dir=folder / "state",
        workspace_root=folder / "workspaces",
        on_exit=on_exit,
    )
    try:
        await gateway.start()
        yield gateway, GatewayClient(gateway.url, gateway.token, folder / "workspaces")
    finally:
        await gateway.aclose()


def kernelspecs_folder() -> str:
    """``share/jupyter`` of the kernels' environment."""
    return str(Path(__file__).parents[2] / ".venv-kernel" / "share" / "jupyter")


@contextlib.asynccontextmanager
async def admins_gateway(folder: Path, *options: str, **environment: str) -> AsyncIterator[GatewayClient]:
    """A stock Kernel Gateway with the file from `gateway_config`, as an admin would start it."""
    with reserved_port() as port:
        async with _gateway_at(port, folder, *options, **environment) as client:
            yield client


@contextlib.asynccontextmanager
async def _gateway_at(
    port: int, folder: Path, *options: str, **environment: str
) -> AsyncIterator[GatewayClient]:
    config = gateway_config_dir() / "jupyter_kernel_gateway_config.py"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-c",
        "from kernel_gateway.gatewayapp import launch_instance; launch_instance()",
        f"--config={config}",
        f"--KernelGatewayApp.port={port}",
        *options,
        env={**os.environ, "KG_AUTH_TOKEN": "admins-own", "JUPYTER_RUNTIME_DIR": str(folder), **environment},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    client = GatewayClient(f"http://127.0.0.1:{port}", "admins-own", folder)
    try:
        async with asyncio.timeout(START_TIMEOUT):
            while (await _status(client)) != 200:
                assert process.returncode is None
                await asyncio.sleep(0.05)
        yield client
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _status(client: GatewayClient) -> int:
    try:
        return (await client.ask("GET", "/api")).status
    except OSError:
        return 0


def descendants(pid: int) -> list[psutil.Process]:
    """The process and all below it."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


async def wait_gone(processes: list[psutil.Process], timeout: float = 60) -> list[psutil.Process]:
    """Waits until they have ended; returns those that have not."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout)
    return alive
