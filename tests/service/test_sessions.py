"""Sessions: slots, clients that leave at any point, expiry."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from runs_kit import ADMIN, ALICE, BOB, Stack, cancelled, stack, waiting
from scripted_gateway import HTTP_500, MAX_KERNELS

from interpreter.errors import (
    GatewayError,
    InterpreterError,
    KernelStartTimeoutError,
    NotFoundError,
    RecordUnavailableError,
    SessionGoneError,
    TooManySessionsError,
)
from interpreter.models import RunRequest, RunStatus, SessionStatus, is_id
from interpreter.runs import ActiveRun


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as opened:
        yield opened


# Slots


async def test_of_fifty_creates_at_once_exactly_max_sessions_succeed(tmp_path: Path) -> None:
    async with stack(tmp_path, max_sessions=5) as parts:
        results = await asyncio.gather(*(parts.session() for _ in range(50)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, TooManySessionsError)]
        made = [result for result in results if not isinstance(result, Exception)]
        assert (len(made), len(refused)) == (5, 45)
        assert "max_sessions (5)" in refused[0].message
        assert refused[0].retry_after
        assert len(parts.gateway.kernels) == 5
        await asyncio.gather(*(parts.sessions.delete(ALICE, session.id) for session in made))
        assert len(await asyncio.gather(*(parts.session() for _ in range(5)))) == 5


async def test_max_sessions_per_token_counts_each_token(tmp_path: Path) -> None:
    async with stack(tmp_path, max_sessions_per_token=1) as parts:
        await parts.session(ALICE)
        with pytest.raises(TooManySessionsError, match="max_sessions_per_token"):
            await parts.session(ALICE)
        await parts.session(BOB)


@pytest.mark.parametrize("how", ["gateway refuses", "gateway full", "unknown kernel", "no start", "record"])
async def test_a_slot_comes_back_after_every_failure(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack(tmp_path, max_sessions=1, kernel_start_timeout=0.8) as parts:
        options, expected = {}, GatewayError
        if how == "gateway refuses":
            parts.gateway.answer("start", HTTP_500, times=1)
        elif how == "gateway full":
            parts.gateway.answer("start", MAX_KERNELS, times=1)
        elif how == "unknown kernel":
            options, expected = {"kernel_name": "nope"}, InterpreterError
        elif how == "no start":
            options, expected = {"kernel_name": "mute"}, KernelStartTimeoutError
        else:
            expected = RecordUnavailableError

            async def refuse(_info: object) -> None:
                monkeypatch.undo()
                raise RecordUnavailableError("The record can't be written.")

            monkeypatch.setattr(parts.recorder, "begin_session", refuse)
        with pytest.raises(expected):
            await parts.session(**options)
        await parts.gateway.until(lambda: not parts.gateway.kernels)
        assert not [folder for folder in parts.workspaces.root.glob("*") if is_id(folder.name)]
        assert (await parts.run(await parts.session(), "print a")).status is RunStatus.OK


@pytest.mark.parametrize("op", ["kernelspecs", "start", "websocket"])
async def test_a_slot_comes_back_when_the_client_leaves_while_the_kernel_starts(
    tmp_path: Path, op: str
) -> None:
    async with stack(tmp_path, max_sessions=1) as parts:
        parts.gateway.hold(op)
        creating = asyncio.create_task(parts.session())
        await parts.gateway.reached(op)
        await cancelled(creating)
        parts.gateway.release(op)
        while parts.sessions._slots._taken:
            await asyncio.sleep(0)
        await parts.session()
        await parts.gateway.until(lambda: len(parts.gateway.kernels) == 1)


async def test_a_client_that_leaves_at_any_point_leaves_nothing_behind(tmp_path: Path) -> None:
    """Cancel a session's whole life after 1, 2, 3 ... steps of the loop."""
    async with stack(tmp_path, max_sessions=1) as parts:
        steps, whole = 0, False
        while not whole:
            steps += 1 + steps // 8
            life = asyncio.create_task(parts.session())
            for _ in range(steps):
                await asyncio.sleep(0)
            life.cancel()
            whole = (await asyncio.gather(life, return_exceptions=True))[
                0
            ].__class__ is not asyncio.CancelledError
            if whole:
                break
            while parts.sessions._slots._taken:
                await asyncio.sleep(0.001)
            assert parts.sessions.count() == 0
        assert steps > 5
        await parts.gateway.until(lambda: len(parts.gateway.kernels) == 1)
        open_ones = [r for r in await parts.recorder.list_sessions() if r.ended_reason is None]
        assert len(open_ones) == 1


async def test_a_run_whose_client_leaves_at_any_point_gets_an_end_in_the_record(parts: Stack) -> None:
    session = await parts.session()
    steps = accepted = 0
    while accepted < 3:
        steps += 1 + steps // 8
        before = session.run_count
        submitting = asyncio.create_task(parts.submit(session, "wait never"))
        for _ in range(steps):
            await asyncio.sleep(0)
        submitting.cancel()
        (result,) = await asyncio.gather(submitting, return_exceptions=True)
        if isinstance(result, ActiveRun):
            accepted += 1
            await parts.runs.cancel(ALICE, result.run.id)
        while session.active_runs:
            await asyncio.sleep(0.001)
        assert session.run_count - before in (0, 1)
    runs = await parts.recorder.list_runs(session.id)
    assert len(runs) == session.run_count > 3
    assert {run.status for run in runs} == {RunStatus.CANCELLED}
    assert (await parts.recorder.verify(session.id)).valid


async def test_a_background_run_whose_client_leaves_goes_on(parts: Stack) -> None:
    session = await parts.session()
    submitting = asyncio.create_task(parts.submit(session, "print done", background=True))
    await asyncio.sleep(0)
    await cancelled(submitting)
    while session.run_count == 0 or session.active_runs:
        await asyncio.sleep(0.001)
    (run,) = await parts.recorder.list_runs(session.id)
    assert (run.status, run.folded.stdout) == (RunStatus.OK, "done\n")


async def test_a_one_off_whose_client_leaves_frees_its_slot(tmp_path: Path) -> None:
    async with stack(tmp_path, max_sessions=1) as parts:
        parts.gateway.hold("websocket")
        submitting = asyncio.create_task(parts.runs.submit_one_off(ALICE, RunRequest("wait never")))
        await parts.gateway.reached("websocket")
        await cancelled(submitting)
        parts.gateway.release("websocket")
        while parts.sessions._slots._taken:
            await asyncio.sleep(0.001)
        (record,) = await parts.recorder.list_sessions()
        (run,) = await parts.recorder.list_runs(record.info.id)
        assert (run.status, record.ended_reason) == (RunStatus.CANCELLED, "finished")


# Expiry


async def test_an_idle_session_expires_and_a_busy_one_does_not(parts: Stack) -> None:
    idle, busy = await parts.session(), await parts.session(idle_timeout=10.0)
    active = await waiting(parts, busy)
    parts.clock.ahead += timedelta(seconds=3601)
    assert parts.sessions.list(ALICE) == [busy]
    await parts.sessions.cull()
    assert parts.sessions.count() == 1
    with pytest.raises(SessionGoneError) as caught:
        parts.sessions.get(ALICE, idle.id)
    assert caught.value.code == "session_expired"
    assert idle.status is SessionStatus.EXPIRED
    parts.gateway.release("gate")
    await parts.ended(active)
    assert parts.sessions.get(ALICE, busy.id) is busy
    parts.clock.ahead += timedelta(seconds=11)
    await parts.sessions.cull()
    assert not parts.gateway.kernels
    assert (await parts.recorder.find_session(busy.id)).ended_reason == "expired"


async def test_an_expired_session_is_gone_before_the_culler_comes(parts: Stack) -> None:
    session = await parts.session()
    parts.clock.ahead += timedelta(seconds=3601)
    with pytest.raises(SessionGoneError) as caught:
        parts.sessions.get(ALICE, session.id)
    assert caught.value.code == "session_expired"
    await parts.gateway.until(lambda: not parts.gateway.kernels)


async def test_who_may_see_a_session_and_what_it_is_called_afterwards(parts: Stack) -> None:
    session = await parts.session()
    for session_id in (session.id, "unknown"):
        with pytest.raises(NotFoundError) as caught:
            parts.sessions.get(BOB, session_id)
        assert not isinstance(caught.value, SessionGoneError)
    assert parts.sessions.get(ADMIN, session.id) is session
    assert (parts.sessions.list(BOB), parts.sessions.list(ADMIN)) == ([], [session])
    await parts.sessions.delete(ALICE, session.id)
    with pytest.raises(SessionGoneError) as gone:
        parts.sessions.get(ALICE, session.id)
    assert gone.value.code == "session_deleted"
    with pytest.raises(NotFoundError) as caught:
        parts.sessions.get(BOB, session.id)
    assert not isinstance(caught.value, SessionGoneError)
