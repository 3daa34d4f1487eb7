"""Clients that leave the gateway before it has connected them to their kernel. Real gateway and kernels."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import pytest_asyncio
from gateway_fixtures import Channels, GatewayClient, admins_gateway, kernelspecs_folder

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE = 4  # seconds after which this gateway gives up a kernel that does not answer
MANY = 400  # messages, more than a channel that nobody reads would take


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayClient]:
    """A gateway that is less patient than usual."""
    folder = tmp_path_factory.mktemp("gw")
    option = f"--MappingKernelManager.kernel_info_timeout={PATIENCE}"
    async with admins_gateway(folder, option, JUPYTER_PATH=kernelspecs_folder()) as client:
        yield client


@contextlib.contextmanager
def _stopped(kernel_id: str) -> Iterator[None]:
    """Let the kernel's process answer nothing."""
    names = ((process.pid, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    (pid,) = [pid for pid, command in names if any(kernel_id in word for word in command)]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _leave(channels: Channels) -> None:
    channels.socket.close()
    await channels.drain()


async def _fall_off(channels: Channels) -> None:
    """Leave without a word: a closing frame would be read only when the gateway has connected us."""
    channels.socket.protocol.stream.close()  # type: ignore[union-attr]
    await _leave(channels)


@pytest.mark.parametrize("leave", [_fall_off, Channels.drain], ids=["falls off", "is given up"])
async def test_output_does_not_wait_for_a_client_that_was_never_connected(
    gateway: GatewayClient, leave: Callable[[Channels], Awaitable[None]]
) -> None:
    async with gateway.kernel() as (kernel_id, first):
        await first.run("import time")
        with _stopped(kernel_id):
            await leave(await gateway.connect(kernel_id, "same"))
        await _leave(first)
        again = await gateway.connect(kernel_id, "same")
        lines = (
            f"end, count = time.monotonic() + {PATIENCE} + 2, 0\n"
            f"while time.monotonic() < end or count < {MANY}:\n"
            "    print('x' * 20_000, flush=True); count += 1\n"
            "    time.sleep(0.01)\n"
            "print(count)"
        )
        async with asyncio.timeout(100):
            *seen, count = (await again.text(lines)).split()
        assert len(seen) == int(count) >= MANY
        assert (await gateway.ask("GET", f"/api/kernels/{kernel_id}")).json["connections"] == 1
        await _leave(again)


async def test_what_was_kept_is_still_there_when_its_client_left_early(
    gateway: GatewayClient, tmp_path: Path
) -> None:
    async with gateway.kernel() as (kernel_id, other):
        first = await gateway.connect(kernel_id, "same")
        wait = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        first.send("execute_request", {"code": f"{wait}print('kept')"})
        while (await first.read())[1]["header"]["msg_type"] != "execute_input":  # type: ignore[index]
            pass
        await _leave(other)
        await _leave(first)
        (tmp_path / "go").touch()
        async with asyncio.timeout(60):
            while (await gateway.ask("GET", f"/api/kernels/{kernel_id}")).json["execution_state"] != "idle":
                pass
        with _stopped(kernel_id):
            await _fall_off(await gateway.connect(kernel_id, "same"))
            async with asyncio.timeout(60):
                while (await gateway.ask("GET", f"/api/kernels/{kernel_id}")).json["connections"] != 0:
                    pass
        again = await gateway.connect(kernel_id, "same")
        async with asyncio.timeout(60):
            while not any(message["header"]["msg_type"] == "stream" for _, message in again.received):
                assert await again.read() is not None
        assert again.received[-1][1]["content"]["text"] == "kept\n"
        await _leave(again)


async def test_a_client_that_leaves_before_the_kernel_answers_is_not_counted(gateway: GatewayClient) -> None:
    kernel_id = await gateway.start_kernel()
    with _stopped(kernel_id):
        for _ in range(3):
            address = urlsplit(gateway.url)
            _, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(
                f"GET /api/kernels/{kernel_id}/channels?session_id=early HTTP/1.1\r\nHost: {address.netloc}\r\n"
                f"Authorization: token {gateway.token}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n\r\n".encode()
            )
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    opened = await gateway.connect(kernel_id)
    assert await opened.text("print(1)") == "1\n"
    assert (await gateway.ask("GET", f"/api/kernels/{kernel_id}")).json["connections"] == 1
    await _leave(opened)
    await gateway.ask("DELETE", f"/api/kernels/{kernel_id}")
