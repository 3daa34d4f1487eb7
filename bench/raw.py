"""The baseline: what kernels cost when ``AsyncKernelClient`` speaks to them over raw ZeroMQ.

Nothing is faster than this on the same machine, so the service is judged by its ratio to it.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from bench.report import Row

SYSTEM = "raw ZeroMQ"
READY_TIMEOUT = 60.0
RUN_TIMEOUT = 60.0
WARM_UP_RUNS = 5


@asynccontextmanager
async def started_kernel(kernel_name: str = "python3") -> AsyncIterator[AsyncKernelClient]:
    """A kernel over ipc with a client that is ready; the kernel is ended on the way out."""
    manager = AsyncKernelManager(kernel_name=kernel_name, transport="ipc")
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


async def latency(runs: int = 100) -> Row:
    """Milliseconds of ``1+1`` in a warm kernel, the median of so many runs."""
    async with started_kernel() as client:
        for _ in range(WARM_UP_RUNS):
            await run(client, "1+1")
        seconds = [await _timed_run(client) for _ in range(runs)]
    return Row("latency of 1+1, median", SYSTEM, statistics.median(seconds) * 1000, "ms", runs)


async def _timed_run(client: AsyncKernelClient) -> float:
    begin = time.perf_counter()
    await run(client, "1+1")
    return time.perf_counter() - begin


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
