"""What the record costs per run, from the first run of a session to the 5,000th."""

import statistics
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench.report import Row
from interpreter.models import Folded, Run, RunStatus, SessionInfo, new_id, run_id_of
from interpreter.record import Recorder

WINDOW = 100


def _now() -> datetime:
    return datetime.now(UTC)


def _run(session_id: str, number: int) -> Run:
    return Run(
        id=run_id_of(session_id, number),
        session_id=session_id,
        owner_id="tok_bench",
        status=RunStatus.QUEUED,
        code=f"x = {number}\nx + 1",
        created_at=_now(),
        timeout=60,
    )


def _ended(run: Run) -> Run:
    output = {
        "output_type": "execute_result",
        "metadata": {},
        "data": {"text/plain": "2"},
        "execution_count": run.number,
    }
    folded = Folded(outputs=(output,), result="2", execution_count=run.number)
    now = _now()
    return replace(run, status=RunStatus.OK, started_at=now, ended_at=now, duration_ms=1, folded=folded)


async def cost(runs: int) -> list[Row]:
    """Milliseconds to accept and finish one run, medians of the first and of the last runs."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        recorder = Recorder(Path(folder) / "notebooks", Path(folder) / "state", clock=_now)
        (Path(folder) / "state").mkdir()
        await recorder.start()
        session_id, now = new_id(), _now()
        info = SessionInfo(session_id, "tok_bench", "bench", "python3", "python", now, 60, 60)
        await recorder.begin_session(info)
        seconds = []
        for number in range(1, runs + 1):
            run = _run(session_id, number)
            begin = time.perf_counter()
            await recorder.accept_run(run, idempotency_key=None, request_hash=None)
            await recorder.finish_run(_ended(run))
            seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        await recorder.notebook(session_id)
        rendering = time.perf_counter() - begin
        await recorder.aclose()
    first, last = (statistics.median(part) * 1000 for part in (seconds[:WINDOW], seconds[-WINDOW:]))
    return [
        Row("record of one run, median of 100", "runs 1 to 100", first, "ms", WINDOW),
        Row("record of one run, median of 100", f"runs up to {runs}", last, "ms", WINDOW),
        Row("the whole notebook, on request", f"{runs} runs", rendering * 1000, "ms", 1),
    ]
