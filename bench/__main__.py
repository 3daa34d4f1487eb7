"""``python -m bench [--kernels N] [--runs N] [--starts N]``: measure and print the report."""

import argparse
import asyncio

from bench import raw
from bench.report import Row, report


async def measure(kernels: int, runs: int, starts: int) -> list[Row]:
    """Every row, one after another: measurements never share the machine."""
    return [
        await raw.latency(runs * 4),
        await raw.throughput(kernels, runs),
        await raw.cold_start(starts),
    ]


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--kernels", type=int, default=40, help="kernels of the throughput (default 40)")
    parser.add_argument("--runs", type=int, default=25, help="runs of each kernel (default 25)")
    parser.add_argument("--starts", type=int, default=5, help="cold starts (default 5)")
    args = parser.parse_args()
    rows = asyncio.run(measure(args.kernels, args.runs, args.starts))
    print(report(rows, baseline=raw.SYSTEM))


if __name__ == "__main__":
    main()
