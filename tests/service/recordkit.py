"""Sessions and runs for tests of the record, and a clock that moves one millisecond at each look."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat

from interpreter.models import Folded, Run, RunStatus, SessionInfo, new_id, run_id_of
from interpreter.record import Recorder

BEGIN = datetime(2026, 1, 31, 23, 59, 0, tzinfo=UTC)


class Clock:
    def __init__(self, now: datetime = BEGIN) -> None:
        self.now = now

    def __call__(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now


@asynccontextmanager
async def recording(folder: Path, clock: Clock | None = None) -> AsyncIterator[Recorder]:
    recorder = Recorder(folder / "notebooks", folder / "state", clock=clock or Clock())
    await recorder.start()
    try:
        yield recorder
    finally:
        await recorder.aclose()


def session_info(clock: Clock | None = None, **changes) -> SessionInfo:
    created_at = clock() if clock else BEGIN
    return replace(
        SessionInfo(new_id(), "tok_1", "alice", "python3", "python", created_at, 60.0, 600.0), **changes
    )


def accepted(info: SessionInfo, number: int, code: str = "1+1") -> Run:
    return Run(
        id=run_id_of(info.id, number),
        session_id=info.id,
        owner_id=info.owner_id,
        status=RunStatus.QUEUED,
        code=code,
        created_at=BEGIN,
        timeout=60.0,
    )


def ended(run: Run, text: str = "2", status: RunStatus = RunStatus.OK) -> Run:
    outputs = ({"output_type": "stream", "name": "stdout", "text": text},) if text else ()
    folded = Folded(outputs=outputs, stdout=text, execution_count=run.number)
    at = BEGIN + timedelta(seconds=run.number)
    return replace(run, status=status, folded=folded, started_at=BEGIN, ended_at=at, duration_ms=7)


async def record_run(
    recorder: Recorder, info: SessionInfo, number: int, code: str = "1+1", text: str = "2"
) -> Run:
    run = accepted(info, number, code)
    await recorder.accept_run(run, idempotency_key=None, request_hash=None)
    run = ended(run, text)
    assert await recorder.finish_run(run)
    return run


def check_notebook(content: bytes):
    notebook = nbformat.reads(content.decode(), as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    return notebook


async def eventually(holds: Callable[[], bool], within: float = 60.0) -> None:
    """Wait for something that only the disk tells; fails after ``within`` seconds."""
    async with asyncio.timeout(within):
        while not holds():
            await asyncio.sleep(0.01)
