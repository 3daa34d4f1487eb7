"""A run of an idle session is accepted in one step. What holds for the others, which may have to wait, holds for it."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from recordkit import eventually
from runs_kit import ALICE, Stack, stack, waiting

from interpreter.errors import ConflictError, RateLimitedError, RecordUnavailableError, SessionGoneError
from interpreter.models import RunStatus
from interpreter.record.disk import Disk
from interpreter.runs import ActiveRun


@pytest.fixture
async def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    # A machine that is busy with other things may be slow.
    monkeypatch.setattr(Disk, "is_quick", property(lambda disk: disk.problem is None))
    async with stack(tmp_path) as opened:
        yield opened


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The files that were synced, as long as the test goes on."""
    synced: list[int] = []
    fdatasync = os.fdatasync

    def sync(descriptor: int) -> None:
        synced.append(descriptor)
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    return synced


async def test_it_takes_no_step_in_which_its_client_could_leave(parts: Stack) -> None:
    session = await parts.session()
    submitting = parts.submit(session, "print a", told_at_end=True)
    with pytest.raises(StopIteration) as accepted:
        submitting.send(None)
    active = accepted.value.value
    assert isinstance(active, ActiveRun)
    assert (await parts.ended(active)).folded.stdout == "a\n"
    assert session.active_runs == 0


@pytest.mark.parametrize(
    "request_", [{}, {"background": True}, {"idempotency_key": "k", "told_at_end": True}], ids=str
)
async def test_who_is_told_before_its_end_is_told_what_no_loss_of_power_undoes(
    parts: Stack, syncs: list[int], request_: dict
) -> None:
    session = await parts.session()
    syncs.clear()
    active = await parts.submit(session, "print a", **request_)
    assert syncs or request_.get("told_at_end")
    assert (await parts.ended(active)).folded.stdout == "a\n"


async def test_the_same_key_is_one_run(parts: Stack) -> None:
    session = await parts.session()
    first = await parts.run(session, "print a", idempotency_key="k", told_at_end=True)
    assert await parts.run(session, "print a", idempotency_key="k", told_at_end=True) == first
    with pytest.raises(ConflictError):
        await parts.submit(session, "print b", idempotency_key="k", told_at_end=True)
    assert parts.gateway.codes == ["print a"]


async def test_it_goes_behind_the_one_that_executes(parts: Stack) -> None:
    session = await parts.session()
    first = await waiting(parts, session, told_at_end=True)
    others = [await parts.submit(session, f"print {number}", told_at_end=True) for number in range(3)]
    assert [active.run.number for active in (first, *others)] == [1, 2, 3, 4]
    assert session.active_runs == 4
    parts.gateway.release("gate")
    assert [(await parts.ended(active)).folded.stdout for active in others] == ["0\n", "1\n", "2\n"]


async def test_its_notebook_soon_shows_that_it_runs(parts: Stack) -> None:
    session = await parts.session()
    await parts.run(session, "print a")  # what was to be shown before is
    await waiting(parts, session, told_at_end=True, timeout=600.0)
    record = await parts.recorder.find_session(session.id)
    assert record is not None
    notebook = record.path.with_suffix(".ipynb")
    await eventually(lambda: b"wait gate" in notebook.read_bytes())
    parts.gateway.release("gate")


async def test_a_full_queue_refuses_it(tmp_path: Path) -> None:
    async with stack(tmp_path, max_queued_runs=1) as parts:
        session = await parts.session()
        runs = [await waiting(parts, session, told_at_end=True)]
        runs.append(await parts.submit(session, "print a", told_at_end=True))
        with pytest.raises(RateLimitedError):
            await parts.submit(session, "print b", told_at_end=True)
        parts.gateway.release("gate")
        assert [(await parts.ended(active)).status for active in runs] == [RunStatus.OK] * 2


async def test_a_full_disk_refuses_it_and_leaves_the_session_as_it_was(
    parts: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await parts.session()
    for problem in (None, "The disk of the record is full"):  # not known yet, then known
        assert str(parts.recorder.problem).startswith(str(problem))
        with monkeypatch.context() as disk:
            disk.setattr(os, "pwrite", _refuse)
            with pytest.raises(RecordUnavailableError):
                await parts.submit(session, "print a", told_at_end=True)
        assert (session.active_runs, session.run_count) == (0, 0)
    assert await parts.recorder.probe() is None
    run = await parts.run(session, "print b", told_at_end=True)
    assert (run.number, run.status, run.folded.stdout) == (1, RunStatus.OK, "b\n")
    assert parts.gateway.codes == ["print b"]


def _refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_it_waits_for_what_is_being_written(parts: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that write to one journal would write over each other."""
    session = await parts.session()
    asked, goes_on = threading.Event(), threading.Event()
    fdatasync = os.fdatasync

    def sync_slowly(descriptor: int) -> None:
        asked.set()
        assert goes_on.wait(30)
        fdatasync(descriptor)

    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", sync_slowly)
        noting = asyncio.create_task(parts.recorder.note_kernel(session.id, "tested", "by nobody"))
        assert await asyncio.to_thread(asked.wait, 30)
        submitting = asyncio.create_task(parts.submit(session, "print a", told_at_end=True))
        await asyncio.sleep(0)  # it has begun
        goes_on.set()
        assert (await parts.ended(await submitting)).folded.stdout == "a\n"
        await noting
    assert (await parts.recorder.verify(session.id)).valid


async def test_a_session_that_has_ended_takes_none(parts: Stack) -> None:
    session = await parts.session()
    await waiting(parts, session)
    ending = asyncio.create_task(parts.sessions.delete(ALICE, session.id))
    await asyncio.sleep(0)
    with pytest.raises(SessionGoneError):
        await parts.submit(session, "print a", told_at_end=True)
    await ending
    assert not any("print a" in code for code in parts.gateway.codes)
