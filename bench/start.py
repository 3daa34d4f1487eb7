"""Starts: a burst of kernels with pandas imported, and the memory of an idle one; forked beside cold.

Both kinds run in the sandbox, started by the same provisioner through jupyter_client alone.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager

from bench.raw import READY_TIMEOUT, run
from bench.report import Row
from interpreter.gateway_extension.sandbox import processes

COLD, FORKED = "cold in the sandbox", "forked in the sandbox"
IMPORTS = "import numpy, pandas, matplotlib.pyplot"
OWN_PYTHON = Path(__file__).parents[1] / ".venv-kernel/bin/python"


def _write_kernelspec(folder: Path, *, forked: bool) -> None:
    python = str(OWN_PYTHON) if OWN_PYTHON.exists() else sys.executable
    provisioner = {"provisioner_name": "bubblewrap-provisioner", "config": {"fork_server": forked}}
    spec = {
        "argv": [python, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Bench",
        "language": "python",
        "metadata": {"kernel_provisioner": provisioner},
    }
    (folder / "bench").mkdir()
    (folder / "bench/kernel.json").write_text(json.dumps(spec))


class Kernels:
    """Starts kernels of one kernelspec and ends them all."""

    def __init__(self, folder: str) -> None:
        self._specs = KernelSpecManager(kernel_dirs=[folder], ensure_native_kernel=False)
        self._running: list[tuple[AsyncKernelManager, AsyncKernelClient]] = []

    @property
    def managers(self) -> list[AsyncKernelManager]:
        """Of all kernels that run."""
        return [manager for manager, _ in self._running]

    async def start(self) -> AsyncKernelManager:
        """A kernel that has imported `IMPORTS`."""
        manager = AsyncKernelManager(kernel_name="bench", kernel_spec_manager=self._specs)
        await manager.start_kernel(env={})
        client: AsyncKernelClient = manager.client()
        self._running.append((manager, client))
        client.start_channels()
        await client.wait_for_ready(timeout=READY_TIMEOUT)
        await run(client, IMPORTS)
        return manager

    async def end(self) -> None:
        """End all kernels."""
        for manager, client in self._running:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)
        self._running = []


@asynccontextmanager
async def _kernels(*, forked: bool) -> AsyncIterator[Kernels]:
    with tempfile.TemporaryDirectory() as folder:
        _write_kernelspec(Path(folder), forked=forked)
        kernels = Kernels(folder)
        try:
            await kernels.start()  # the zygote, or the disk's cache
            yield kernels
        finally:
            await kernels.end()


def private_bytes(manager: Any) -> int:
    """Memory of a kernel's sandbox that no process outside of it shares (USS, all its processes)."""
    sandbox = manager.provisioner._sandbox
    total = 0
    for pid in processes.tree(*sandbox._roots()):
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("Private_"))
    return total * 1024


def _processor_seconds(managers: Sequence[Any]) -> float:
    """Of this process, of the zygotes and of all sandboxes: what the load of others hardly changes."""
    total = time.process_time()
    zygotes = set()
    for manager in managers:
        sandbox = manager.provisioner._sandbox
        counted = sandbox._cgroup.cpu_seconds() if sandbox._cgroup is not None else None
        total += processes.cpu_seconds(processes.tree(*sandbox._roots())) if counted is None else counted
        if sandbox.forking is not None:
            zygotes.add(sandbox.forking.zygote.pid)
    return total + processes.cpu_seconds(sorted(zygotes))


async def burst(count: int) -> list[Row]:
    """Seconds until ``count`` kernels, asked for at once, have imported pandas; MB of each when idle."""
    rows = []
    for system, forked in ((COLD, False), (FORKED, True)):
        async with _kernels(forked=forked) as kernels:
            processors = _processor_seconds(kernels.managers)
            begin = time.perf_counter()
            managers = await asyncio.gather(*(kernels.start() for _ in range(count)))
            seconds = time.perf_counter() - begin
            processors = _processor_seconds(kernels.managers) - processors
            memory = statistics.median(private_bytes(manager) for manager in managers)
        rows.append(Row(f"burst of {count} kernels, pandas imported", system, seconds, "s", count))
        rows.append(Row("processor time of that burst", system, processors, "s", count))
        rows.append(
            Row("private memory of an idle kernel, pandas imported", system, memory / 1e6, "MB", count)
        )
    return rows
