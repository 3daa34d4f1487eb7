"""A stock Kernel Gateway and a stock Jupyter Server, in each way of asking for credentials."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from jupyter_server.auth import passwd

from interpreter.errors import GatewayError
from interpreter.kernels.gateway import Gateway
from interpreter.kernels.kernel import Kernel
from interpreter.kernels.target import GatewayTarget
from interpreter.messages import Message

START_TIMEOUT = 60.0
SECRET = "a secret of the test"

KERNEL_GATEWAY = ("kernel_gateway", "--KernelGatewayApp.port={port}", "--KernelGatewayApp.port_retries=0")
SERVER = (
    "jupyter_server",
    "--ServerApp.port={port}",
    "--ServerApp.port_retries=0",
    "--ServerApp.open_browser=False",
    "--ServerApp.base_url=/some/base/",
    "--allow-root",
)
GATEWAYS = {
    "Kernel Gateway, none": (KERNEL_GATEWAY, "none", ""),
    "Kernel Gateway, token": ((*KERNEL_GATEWAY, f"--KernelGatewayApp.auth_token={SECRET}"), "token", ""),
    "Jupyter Server, none": ((*SERVER, "--IdentityProvider.token="), "none", "/some/base"),
    "Jupyter Server, token": ((*SERVER, f"--IdentityProvider.token={SECRET}"), "token", "/some/base"),
    "Jupyter Server, password": (
        (*SERVER, f"--PasswordIdentityProvider.hashed_password={passwd(SECRET, algorithm='sha1')}"),
        "password",
        "/some/base",
    ),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running(name: str, folder: Path) -> AsyncIterator[GatewayTarget]:
    """The gateway as a process of its own, and how to ask it."""
    (module, *options), auth, base = GATEWAYS[name]
    port = free_port()
    folders = {f"JUPYTER_{kind}_DIR": str(folder) for kind in ("CONFIG", "DATA", "RUNTIME")}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *(option.format(port=port) for option in options)],
        env={**os.environ, **folders},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}{base}"
    target = GatewayTarget(url, auth, token=SECRET, password=SECRET)
    try:
        async with asyncio.timeout(START_TIMEOUT):
            while not await answers(port):
                assert process.poll() is None
                await asyncio.sleep(0.05)
        yield target
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


@pytest.mark.parametrize("name", GATEWAYS)
async def test_code_runs_behind_each_real_gateway(name: str, tmp_path: Path) -> None:
    async with running(name, tmp_path) as target:
        gateway = Gateway(target)
        assert re.match(r"Jupyter server [\d.]+ with .*python3", await gateway.check("python3"))
        kernel = await Kernel.start(gateway, "python3", timeout=60)
        seen: list[Message] = []
        execution = kernel.execute("print(6 * 7)", seen.append)
        await execution.wait()
        assert execution.reply is not None
        assert execution.reply["status"] == "ok"
        assert [m.content["text"] for m in seen if m.msg_type == "stream"] == ["42\n"]
        await kernel.shutdown()
        assert await gateway.has_kernel(kernel.id) is False
        await gateway.settle()
        gateway.close()


@pytest.mark.parametrize(
    ("name", "wrong", "setting"),
    [
        ("Kernel Gateway, token", {"auth": "none"}, "gateway_auth"),
        ("Kernel Gateway, token", {"auth": "token", "token": "wrong"}, "gateway_token"),
        ("Jupyter Server, password", {"auth": "password", "password": "wrong"}, "gateway_password"),
    ],
    ids=["nothing", "wrong token", "wrong password"],
)
async def test_a_refusal_names_the_setting(
    name: str, wrong: dict[str, str], setting: str, tmp_path: Path
) -> None:
    async with running(name, tmp_path) as target:
        gateway = Gateway(GatewayTarget(target.url, **wrong))
        with pytest.raises(GatewayError, match=setting):
            await gateway.check("python3")
        await gateway.settle()
        gateway.close()
