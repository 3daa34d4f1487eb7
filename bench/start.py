"""Starts: a session from the warm pool, a burst of sessions, and the memory of an idle kernel.

The baseline is a raw kernel, started by jupyter_client without a sandbox. All systems are measured in one
run; the service answers over REST, with auth, the record and the sandbox on.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

import psutil
from jupyter_client.asynchronous.client import AsyncKernelClient

from bench import raw
from bench.report import Row
from bench.service import SYSTEM, Client, Service, cold_start, is_gateway, running_service

FORKED = f"{SYSTEM}, fork server"
POOLED = f"{SYSTEM}, warm pool"
POOLED_FORKED = f"{SYSTEM}, warm pool and fork server"
IMPORTS = "import numpy, pandas, matplotlib.pyplot"
FILL_TIMEOUT = 120.0


async def first_results(starts: int) -> list[Row]:
    """Seconds from no session to its first result, the median of so many starts."""
    rows = [await raw.cold_start(starts)]
    for system, settings in (
        (SYSTEM, {}),
        (FORKED, {"fork_server": "1"}),
        (POOLED, {"pool_size": str(2 * starts), "pool_min": str(starts)}),
        (POOLED_FORKED, {"pool_size": str(2 * starts), "pool_min": str(starts), "fork_server": "1"}),
    ):
        with running_service(**settings) as service:
            _wait_for_kernels(service, int(settings.get("pool_min", "0")))
            row = cold_start(service, starts)
        rows.append(Row(row.name, system, row.value, row.unit, row.samples))
    return rows


async def bursts(count: int) -> list[Row]:
    """``count`` sessions asked for at once, until all have imported pandas; and what each then needs."""
    rows = await _raw_burst(count)
    for system, fork_server in ((SYSTEM, "0"), (FORKED, "1")):
        with running_service(fork_server=fork_server) as service:
            rows += _service_burst(service, system, count)
    return rows


async def _raw_burst(count: int) -> list[Row]:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        before = _children()
        begin = time.perf_counter()
        await asyncio.gather(*(_start_raw(stack, f"{folder}/{number}") for number in range(count)))
        seconds = time.perf_counter() - begin
        kernels = [process for process in _children() if process not in before]
        return _rows(raw.SYSTEM, count, seconds, _processor_seconds(kernels), _private_bytes(kernels) / count)


async def _start_raw(stack: AsyncExitStack, sockets: str) -> None:
    """``sockets``: of each kernel others; those that start at once would choose the same."""
    manager = raw.new_manager(ip=sockets)
    stack.push_async_callback(manager.shutdown_kernel, now=True)
    await manager.start_kernel()
    client: AsyncKernelClient = manager.client()
    stack.callback(client.stop_channels)
    client.start_channels()
    await client.wait_for_ready(timeout=raw.READY_TIMEOUT)
    await raw.run(client, IMPORTS)


def _service_burst(service: Service, system: str, count: int) -> list[Row]:
    def start(client: Client) -> str:
        session_id = client.new_session()
        if client.run(session_id, IMPORTS)["status"] != "ok":
            raise RuntimeError("the imports failed")
        return session_id

    clients = [service.client() for _ in range(count)]
    client = clients[0]
    client.delete(start(client))  # the disk's cache
    processors = _processor_seconds([service.process, *_children(service)])
    with ThreadPoolExecutor(count) as pool:
        begin = time.perf_counter()
        ids = list(pool.map(start, clients))
        seconds = time.perf_counter() - begin
    everything = [service.process, *_children(service)]
    processors = _processor_seconds(everything) - processors
    shared = [p for p in everything[1:] if is_gateway(p) or _is_zygote(p)]
    kernels = [process for process in everything[1:] if process not in shared]
    rows = _rows(system, count, seconds, processors, _private_bytes(kernels) / count)
    if zygotes := [process for process in shared if _is_zygote(process)]:
        memory = sum(process.memory_info().rss for process in zygotes) / 1e6
        rows.append(Row("memory of the fork server itself", system, memory, "MB", 1))
    for session_id in ids:
        client.delete(session_id)
    return rows


def _rows(system: str, count: int, seconds: float, processors: float, memory: float) -> list[Row]:
    return [
        Row(f"burst of {count} kernels, pandas imported", system, seconds, "s", count),
        Row("processor time of that burst", system, processors, "s", count),
        Row("private memory of an idle kernel, pandas imported", system, memory / 1e6, "MB", count),
    ]


def _children(service: Service | None = None) -> list[psutil.Process]:
    process = psutil.Process() if service is None else service.process
    return process.children(recursive=True)


def _is_zygote(process: psutil.Process) -> bool:
    return any("zygote_main" in word for word in process.cmdline())


def _wait_for_kernels(service: Service, count: int) -> None:
    """Until so many kernels of the pool are ready."""
    client, deadline = service.client(), time.monotonic() + FILL_TIMEOUT
    while client.metric("interpreter_pool_kernels") < count:
        if time.monotonic() > deadline:
            raise RuntimeError("the pool is not filled")
        time.sleep(0.1)


def _private_bytes(kernels: Iterable[psutil.Process]) -> float:
    """Memory that no other process shares (USS)."""
    return float(sum(process.memory_full_info().uss for process in kernels))


def _processor_seconds(all_processes: Iterable[psutil.Process]) -> float:
    """Of these and of their children that have ended: what the load of others hardly changes."""
    return float(sum(sum(process.cpu_times()[:4]) for process in all_processes))
