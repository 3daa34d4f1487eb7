"""The baseline: what kernels cost when ``AsyncKernelClient`` speaks to them over raw ZeroMQ.

They are those of ipykernel's own kernelspec: what the service's kernelspec adds is its own cost, or gain. Both are of
the same environment.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from bench.report import Row

SYSTEM = "raw ZeroMQ"
OWN_KERNEL = f"{SYSTEM}, the service's kernelspec"
READY_TIMEOUT = 60.0
RUN_TIMEOUT = 60.0
WARM_UP_RUNS = 5


def new_manager(*, stock: bool = True, **options: Any) -> AsyncKernelManager:
    """Of a kernel over ipc as ipykernel installs it, or (not ``stock``) one of the service's kernelspec."""
    manager = AsyncKernelManager(transport="ipc", **options)
    if stock:
        spec = manager.kernel_spec
        assert spec is not None
        spec.argv = [spec.argv[0], *get_kernel_dict()["argv"][1:]]
        spec.env, spec.metadata = {}, {}
    return manager


@asynccontextmanager
async def started_kernel(*, stock: bool = True) -> AsyncIterator[AsyncKernelClient]:
    """A kernel over ipc with a client that is ready; the kernel is ended on the way out."""
    manager = new_manager(stock=stock)
    await manager.start_kernel()
    client: AsyncKernelClient = manager.client()
    try:
        client.start_channels()
        await client.wait_for_ready(timeout=READY_TIMEOUT)
        yield client
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


async def run(client: AsyncKernelClient, code: str) -> None:
    """Run code until both its reply and its idle were seen, as the service must.

    Raises RuntimeError when the reply is not ok, TimeoutError after RUN_TIMEOUT seconds.
    """
    msg_id = client.execute(code, allow_stdin=False)
    async with asyncio.timeout(RUN_TIMEOUT):
        await _until_idle(client, msg_id)
        reply = await _reply(client, msg_id)
    if reply["content"]["status"] != "ok":
        raise RuntimeError(f"{code!r} ended with {reply['content']['status']}")


async def _until_idle(client: AsyncKernelClient, msg_id: str) -> None:
    while True:
        message = await client.get_iopub_msg()
        is_ours = message["parent_header"].get("msg_id") == msg_id
        if is_ours and message["content"].get("execution_state") == "idle":
            return


async def _reply(client: AsyncKernelClient, msg_id: str) -> dict[str, Any]:
    while True:
        message: dict[str, Any] = await client.get_shell_msg()
        if message["parent_header"].get("msg_id") == msg_id:
            return message


async def throughput(kernels: int = 40, runs: int = 25) -> Row:
    """Runs per second when every kernel does its runs one after another, all kernels at once."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(started_kernel()) for _ in range(kernels)]
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(_repeat(client, runs))
        seconds = time.perf_counter() - begin
    return Row(f"throughput, {kernels} kernels", SYSTEM, kernels * runs / seconds, "runs/s", kernels * runs)


async def _repeat(client: AsyncKernelClient, runs: int) -> None:
    for _ in range(runs):
        await run(client, "1+1")


async def cold_start(starts: int = 5) -> Row:
    """Seconds from no kernel to the first result, the median of so many starts."""
    seconds = []
    for _ in range(starts):
        begin = time.perf_counter()
        async with started_kernel() as client:
            await run(client, "1+1")
            seconds.append(time.perf_counter() - begin)
    return Row("cold start to first result, median", SYSTEM, statistics.median(seconds), "s", starts)
