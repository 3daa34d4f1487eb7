"""A stock Kernel Gateway and a stock Jupyter Server, in each way of asking for credentials."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from jupyter_server.auth import passwd
from stock_servers import START_TIMEOUT, reserved_port

from interpreter.errors import GatewayError
from interpreter.kernels.gateway import Gateway
from interpreter.kernels.kernel import Kernel
from interpreter.kernels.target import GatewayTarget
from interpreter.messages import Message

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "a secret of the test"

Started = Callable[[str], Awaitable[GatewayTarget]]

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


@asynccontextmanager
async def running(name: str, folder: Path) -> AsyncIterator[GatewayTarget]:
    """The gateway as a process of its own, and how to ask it."""
    with reserved_port() as port:
        async with running_at(port, name, folder) as target:
            yield target


@asynccontextmanager
async def running_at(port: int, name: str, folder: Path) -> AsyncIterator[GatewayTarget]:
    (module, *options), auth, base = GATEWAYS[name]
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Started]:
    """Gives the gateway of a name; it is started once, and runs until the last test has ended."""
    targets: dict[str, GatewayTarget] = {}
    async with AsyncExitStack() as stack:

        async def start(name: str) -> GatewayTarget:
            if name not in targets:
                opening = running(name, tmp_path_factory.mktemp("gateway"))
                targets[name] = await stack.enter_async_context(opening)
            return targets[name]

        yield start


@pytest.mark.parametrize("name", GATEWAYS)
async def test_code_runs_behind_each_real_gateway(name: str, started: Started) -> None:
    gateway = Gateway(await started(name))
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
    name: str, wrong: dict[str, str], setting: str, started: Started
) -> None:
    gateway = Gateway(GatewayTarget((await started(name)).url, **wrong))
    with pytest.raises(GatewayError, match=setting):
        await gateway.check("python3")
    await gateway.settle()
    gateway.close()
