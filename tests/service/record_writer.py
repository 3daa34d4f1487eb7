"""Writes runs as fast as it can and prints what was acknowledged, until it is killed."""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

from recordkit import accepted, ended, session_info

from interpreter.record import Recorder


async def write(recorder: Recorder, size: int, *, one_off: bool) -> None:
    info = session_info(one_off=one_off)
    await recorder.begin_session(info)
    number = 0
    while True:
        number += 1
        run = accepted(info, number, code=f"code {number}")
        early = number % 2 == 0
        await recorder.accept_run(run, idempotency_key=None, request_hash=None, early=early)
        print("accepted", run.id, flush=True)
        if await recorder.finish_run(ended(run, text=f"{number} " + "x" * size)):
            print("ended", run.id, flush=True)
        if one_off:
            await recorder.end_session(info.id, "deleted")
            info, number = session_info(one_off=True), 0
            await recorder.begin_session(info)


async def main(folder: Path) -> None:
    recorder = Recorder(folder / "notebooks", folder / "state", clock=lambda: datetime.now(UTC))
    await recorder.start()
    await asyncio.gather(
        write(recorder, 10, one_off=False),
        write(recorder, 100_000, one_off=False),
        write(recorder, 10, one_off=True),
    )


asyncio.run(main(Path(sys.argv[1])))
