"""The queue of a session: order, cancel, interrupt, restart, delete."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runs_kit import ADMIN, ALICE, BOB, Stack, cancelled, stack, waiting

from interpreter.errors import (
    NotFoundError,
    RateLimitedError,
    SessionGoneError,
)
from interpreter.models import RunRequest, RunStatus, SessionStatus


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as opened:
        yield opened


# Order


async def test_runs_of_a_session_go_first_in_first_out(parts: Stack) -> None:
    session = await parts.session()
    first = await waiting(parts, session)
    others = [await parts.submit(session, f"print {number}") for number in range(10)]
    assert session.status is SessionStatus.BUSY
    assert {active.run.status for active in others} == {RunStatus.QUEUED}
    parts.gateway.release("gate")
    for number, active in enumerate(others):
        assert (await parts.ended(active)).folded.stdout == f"{number}\n"
    assert parts.gateway.codes == [first.run.code, *(f"print {number}" for number in range(10))]
    assert [run.number for run in await parts.runs_of(ALICE, session.id)] == list(range(1, 12))
    assert session.status is SessionStatus.IDLE


async def test_concurrent_submits_keep_the_order_in_which_they_came(parts: Stack) -> None:
    session = await parts.session()
    actives = await asyncio.gather(*(parts.submit(session, f"print {number}") for number in range(20)))
    for number, active in enumerate(actives):
        run = await parts.ended(active)
        assert (run.number, run.folded.stdout) == (number + 1, f"{number}\n")


async def test_sessions_never_wait_for_each_other(parts: Stack) -> None:
    held = await waiting(parts, await parts.session())
    other = await parts.session(BOB)
    assert (await parts.run(other, "print free")).folded.stdout == "free\n"
    assert not held.finished


async def test_a_full_queue_refuses_and_takes_again_later(tmp_path: Path) -> None:
    async with stack(tmp_path, max_queued_runs=2) as parts:
        session = await parts.session()
        await waiting(parts, session)
        queued = [await parts.submit(session, "print a") for _ in range(2)]
        with pytest.raises(RateLimitedError) as caught:
            await parts.submit(session, "print b")
        assert (caught.value.code, caught.value.retry_after) == ("queue_full", 1)
        parts.gateway.release("gate")
        for active in queued:
            await parts.ended(active)
        assert (await parts.run(session, "print b")).status is RunStatus.OK


async def test_the_runs_of_a_token_end_with_it_and_no_others(parts: Stack) -> None:
    mine, other = await parts.session(), await parts.session(BOB)
    runs = [await waiting(parts, mine), await parts.submit(mine, "print never")]
    kept = await waiting(parts, other, "another")

    async def has_ended(token_id: str) -> bool:
        return token_id == ALICE.token_id

    await parts.runs.cancel_all_of(has_ended)
    for active in runs:
        run = await parts.ended(active)
        assert run.status is RunStatus.CANCELLED
        assert "revoked" in " ".join(run.notices)
    assert not kept.finished


async def test_a_bug_in_one_run_does_not_stop_the_queue(
    parts: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await parts.session()
    waits = await waiting(parts, session)
    second, third = [await parts.submit(session, "print a") for _ in range(2)]

    async def fail(_files: object) -> None:
        monkeypatch.undo()
        raise KeyError("a bug")

    files = type(parts.workspaces.files(session))
    monkeypatch.setattr(files, "glance", lambda _files: None)
    monkeypatch.setattr(files, "snapshot", fail)
    parts.gateway.release("gate")
    first = await parts.ended(waits)
    assert first.status is RunStatus.ABORTED  # the bug met the first look at the files after the wait
    for active in (second, third):
        assert (await parts.ended(active)).status is RunStatus.OK


# Cancel, interrupt, restart, delete


async def test_cancel_of_a_running_run_interrupts_it(parts: Stack) -> None:
    session = await parts.session()
    active = await waiting(parts, session)
    run = await parts.runs.cancel(ALICE, active.run.id, reason="Enough.")
    assert (run.status, run.folded.stdout, run.notices) == (RunStatus.CANCELLED, "begun\n", ("Enough.",))
    assert await parts.ended(active) == run
    assert not (await parts.run(session, "print next")).kernel_restarted


async def test_cancel_of_a_queued_run_ends_it_at_once_and_it_never_executes(parts: Stack) -> None:
    session = await parts.session()
    first = await waiting(parts, session)
    queued = await parts.submit(session, "print never")
    run = await parts.runs.cancel(ALICE, queued.run.id)
    assert (run.status, run.started_at, run.duration_ms) == (RunStatus.CANCELLED, None, 0)
    assert await parts.ended(queued) == run
    assert not first.finished
    parts.gateway.release("gate")
    await parts.ended(first)
    assert "print never" not in parts.gateway.codes


async def test_who_cancels_may_leave_and_the_run_still_ends(parts: Stack) -> None:
    session = await parts.session()
    await waiting(parts, session)
    queued = await parts.submit(session, "print never")
    cancelling = asyncio.create_task(parts.runs.cancel(ALICE, queued.run.id))
    await asyncio.sleep(0)
    await cancelled(cancelling)
    assert (await parts.ended(queued)).status is RunStatus.CANCELLED


async def test_cancel_of_an_ended_run_changes_nothing_and_of_a_strangers_is_not_found(parts: Stack) -> None:
    session = await parts.session()
    run = await parts.run(session, "print a")
    assert await parts.runs.cancel(ALICE, run.id) == run
    active = await waiting(parts, session)
    for run_id in (run.id, active.run.id, "run_unknown_1"):
        with pytest.raises(NotFoundError):
            await parts.runs.cancel(BOB, run_id)
    assert (await parts.runs.cancel(ADMIN, active.run.id)).status is RunStatus.CANCELLED


async def test_interrupt_ends_what_executes_and_leaves_the_queue(parts: Stack) -> None:
    session = await parts.session()
    active = await waiting(parts, session)
    queued = await parts.submit(session, "print next")
    parts.runs.interrupt(ALICE, session.id)
    run = await parts.ended(active)
    assert (run.status, run.folded.stdout) == (RunStatus.INTERRUPTED, "begun\n")
    assert run.notices == ("The run was interrupted on request.",)
    assert (await parts.ended(queued)).status is RunStatus.OK
    parts.runs.interrupt(ALICE, session.id)  # nothing executes
    with pytest.raises(NotFoundError):
        parts.runs.interrupt(BOB, session.id)


async def test_restart_ends_all_runs_and_the_state_is_gone_without_surprise(parts: Stack) -> None:
    session = await parts.session()
    await parts.run(session, "set x 1\ndisplay d old")
    kernel_id = session.kernel.id
    active = await waiting(parts, session)
    queued = await parts.submit(session, "print never")
    await parts.runs.restart(ALICE, session.id)
    running, waited = await parts.ended(active), await parts.ended(queued)
    assert (running.status, running.folded.stdout) == (RunStatus.INTERRUPTED, "begun\n")
    assert running.kernel_restarted
    assert waited.status is RunStatus.INTERRUPTED
    assert running.notices[0] == "The kernel was restarted on request."
    assert "print never" not in parts.gateway.codes
    run = await parts.run(session, "get x")
    assert (run.folded.error.ename, run.kernel_restarted) == ("NameError", False)
    assert session.kernel.id == kernel_id
    assert session.status is SessionStatus.IDLE


async def test_a_run_that_comes_during_a_restart_runs_on_the_clean_kernel(parts: Stack) -> None:
    session = await parts.session()
    await parts.run(session, "set x 1")
    parts.gateway.hold("restart")
    restarting = asyncio.create_task(parts.runs.restart(ALICE, session.id))
    await parts.gateway.reached("restart")
    assert session.status is SessionStatus.STARTING
    active = await parts.submit(session, "get x")
    parts.gateway.release("restart")
    await restarting
    assert (await parts.ended(active)).folded.error.ename == "NameError"


async def test_delete_ends_all_runs_and_the_kernel_is_gone(parts: Stack) -> None:
    session = await parts.session()
    active = await waiting(parts, session)
    queued = await parts.submit(session, "print never")
    folder = parts.workspaces.root / session.id
    assert folder.is_dir()
    await parts.sessions.delete(ALICE, session.id)
    assert not parts.gateway.kernels
    assert not folder.exists()
    running, waited = await parts.ended(active), await parts.ended(queued)
    assert {running.status, waited.status} == {RunStatus.CANCELLED}
    assert running.folded.stdout == "begun\n"
    assert running.notices == ("The session was deleted.",)
    assert (await parts.recorder.find_session(session.id)).ended_reason == "deleted"
    assert (await parts.recorder.verify(session.id)).valid
    for act in (
        lambda: parts.runs.submit(ALICE, session, RunRequest("print a")),
        lambda: parts.runs.restart(ALICE, session.id),
        lambda: parts.sessions.delete(ALICE, session.id),
    ):
        with pytest.raises(SessionGoneError):
            await act()


async def test_two_deletes_at_once_end_one_session_once(parts: Stack) -> None:
    session = await parts.session()
    results = await asyncio.gather(
        *(parts.sessions.delete(ALICE, session.id) for _ in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), SessionGoneError, SessionGoneError]
    assert parts.gateway.count("delete") == 1


async def test_a_delete_whose_client_leaves_goes_on(parts: Stack) -> None:
    session = await parts.session()
    parts.gateway.hold("delete")
    deleting = asyncio.create_task(parts.sessions.delete(ALICE, session.id))
    await parts.gateway.reached("delete")
    await cancelled(deleting)
    parts.gateway.release("delete")
    await parts.gateway.until(lambda: not parts.gateway.kernels)


async def test_a_delete_while_a_run_is_being_accepted_ends_that_run(
    parts: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await parts.session()
    reached, go = asyncio.Event(), asyncio.Event()
    accept = parts.recorder.accept_run

    async def slow(*args: object, **options: object) -> None:
        reached.set()
        await go.wait()
        await accept(*args, **options)

    monkeypatch.setattr(parts.recorder, "accept_run", slow)
    submitting = asyncio.create_task(parts.submit(session, "print never"))
    await reached.wait()
    deleting = asyncio.create_task(parts.sessions.delete(ALICE, session.id))
    await asyncio.sleep(0)
    go.set()
    run = await parts.ended(await submitting)
    await deleting
    assert (run.status, parts.gateway.codes) == (RunStatus.CANCELLED, [])
    assert (await parts.recorder.verify(session.id)).valid


async def test_a_look_at_the_files_that_hangs_keeps_nobody_from_stopping_the_run(
    parts: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await parts.session()
    reached = asyncio.Event()

    async def hang(_files: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    files = type(parts.workspaces.files(session))
    monkeypatch.setattr(files, "glance", lambda _files: None)
    monkeypatch.setattr(files, "snapshot", hang)
    active = await parts.submit(session, "print never")
    await reached.wait()
    run = await parts.runs.cancel(ALICE, active.run.id)
    assert (run.status, parts.gateway.codes) == (RunStatus.CANCELLED, [])
