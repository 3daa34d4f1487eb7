"""Processor time of one ``1+1`` in each process: comparable on a busy machine, where latency is not."""

import statistics
from collections.abc import Callable, Iterable, Mapping

import psutil

from bench import raw
from bench.report import Row
from bench.service import SYSTEM, Service, is_gateway

BATCH = 50
NAME = "processor time of 1+1"


async def of_one_run(service: Service, runs: int) -> list[Row]:
    """Milliseconds per run and process, medians of batches, the raw client and the service in turn."""
    client = service.client()
    session_id = client.new_session()
    before = set(psutil.Process().children(recursive=True))
    samples: dict[tuple[str, str], list[float]] = {}
    async with raw.started_kernel() as kernel:
        raw_kernel = set(psutil.Process().children(recursive=True)) - before
        parts = _parts_of(service)
        for batch in range(runs // BATCH + 1):
            spent = _spent({"client": [psutil.Process()], "kernel": raw_kernel})
            for _ in range(BATCH):
                await raw.run(kernel, "1+1")
            measured = {(part, raw.SYSTEM): value for part, value in spent().items()}
            spent = _spent({"client": [psutil.Process()], **parts})
            for _ in range(BATCH):
                client.run(session_id, "1+1")
            measured |= {(part, SYSTEM): value for part, value in spent().items()}
            if batch:  # the first one warms up
                for key, value in measured.items():
                    samples.setdefault(key, []).append(value)
    client.delete(session_id)
    return [
        Row(f"{NAME}, {part}", system, statistics.median(values), "ms", BATCH * len(values))
        for (part, system), values in samples.items()
    ]


def _parts_of(service: Service) -> dict[str, list[psutil.Process]]:
    """The service's processes: itself, its gateway, and what runs the kernel."""
    children = service.process.children(recursive=True)
    return {
        "service": [service.process],
        "gateway": [child for child in children if is_gateway(child)],
        "kernel": [child for child in children if not is_gateway(child)],
    }


def _spent(parts: Mapping[str, Iterable[psutil.Process]]) -> Callable[[], dict[str, float]]:
    """Call the result after `BATCH` runs: milliseconds of user and system time per run since now."""
    before = {part: _seconds(processes) for part, processes in parts.items()}

    def since() -> dict[str, float]:
        return {
            part: (_seconds(processes) - before[part]) * 1000 / BATCH for part, processes in parts.items()
        }

    return since


def _seconds(processes: Iterable[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)
