"""``python -m bench [--part NAME]``: measure, side by side in one run, and print the tables."""

import argparse
import asyncio
import os
from pathlib import Path

from bench import cpu, memory, raw, record, service, start
from bench.report import Row, report

PARTS = ("speed", "start", "cpu", "record", "memory")


async def speed(args: argparse.Namespace) -> list[Row]:
    """Latency, throughput and start of the service and of raw kernels."""
    with service.running_service() as running:
        rows = await service.latency(running, args.runs * 8)
        rows += [
            await raw.throughput(args.kernels, args.runs),
            await service.throughput(running, args.kernels, args.runs),
        ]
        return [*rows, await raw.cold_start(args.starts), service.cold_start(running, args.starts)]


async def measure(part: str, args: argparse.Namespace) -> list[Row]:
    """The rows of one part; measurements never share the machine."""
    if part == "speed":
        return await speed(args)
    if part == "start":
        return [*await start.first_results(args.starts), *await start.bursts(args.burst)]
    if part == "record":
        return await record.cost(args.recorded)
    with service.running_service() as running:
        if part == "cpu":
            return await cpu.of_one_run(running, args.runs * 8)
        return memory.idle(running, args.sessions) + memory.floods(running)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--kernels", type=int, default=40, help="kernels of the throughput (40)")
    parser.add_argument("--runs", type=int, default=25, help="runs of each kernel (25)")
    parser.add_argument("--starts", type=int, default=5, help="cold starts (5)")
    parser.add_argument("--burst", type=int, default=30, help="kernels started at once (30)")
    parser.add_argument("--recorded", type=int, default=5000, help="runs of one record (5000)")
    parser.add_argument("--sessions", type=int, default=200, help="idle sessions (200)")
    args = parser.parse_args()
    # Both sides use the kernels' own environment, when it is there.
    kernels = Path(__file__).parents[1] / ".venv-kernel" / "share" / "jupyter"
    os.environ.setdefault("JUPYTER_PATH", str(kernels))
    for part in args.part or PARTS:
        rows = asyncio.run(measure(part, args))
        print(f"## {part}\n\n{report(rows, baseline=raw.SYSTEM)}", flush=True)


if __name__ == "__main__":
    main()
