"""Sessions and their queues: order, slots, expiry, ends, cancellation at any point, recovery, replay."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from runs_kit import ADMIN, ALICE, BOB, MARGIN, Clock, Stack, stack
from scripted_gateway import HTTP_500, MAX_KERNELS, Manner, ScriptedGateway

from interpreter.errors import (
    GatewayError,
    InterpreterError,
    KernelStartTimeoutError,
    NotFoundError,
    RateLimitedError,
    RecordUnavailableError,
    SessionGoneError,
    TooManySessionsError,
    UnavailableError,
)
from interpreter.models import RunRequest, RunStatus, SessionStatus, is_id
from interpreter.runs import ActiveRun
from interpreter.sessions.manager import KERNEL_LOST_AT_RESTART


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as opened:
        yield opened


async def waiting(parts: Stack, session, gate: str = "gate", **request: object) -> ActiveRun:
    """A run that executes and waits at a gate."""
    active = await parts.submit(session, f"print begun\nwait {gate}", **request)
    await parts.gateway.reached(gate)
    return active


async def cancelled(task: asyncio.Task) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


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
    assert [run.number for run in await parts.runs.list(ALICE, session.id)] == list(range(1, 12))
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


async def test_a_bug_in_one_run_does_not_stop_the_queue(
    parts: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await parts.session()
    await waiting(parts, session)
    second, third = [await parts.submit(session, "print a") for _ in range(2)]

    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise KeyError("a bug")

    monkeypatch.setattr(type(parts.workspaces), "snapshot", fail)
    parts.gateway.release("gate")
    statuses = [(await parts.ended(active)).status for active in (second, third)]
    assert statuses[-1] is RunStatus.OK


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
    async with stack(tmp_path, max_sessions=1, kernel_start_timeout=0.3) as parts:
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


# Shutdown and recovery


@pytest.mark.parametrize("outlives_service", [True, False])
async def test_a_stop_ends_every_run_and_records_it(tmp_path: Path, outlives_service: bool) -> None:
    async with ScriptedGateway() as gateway:
        async with stack(tmp_path, gateway=gateway, outlives_service=outlives_service) as parts:
            session = await parts.session()
            running = await waiting(parts, session)
            queued = await parts.submit(session, "print never")
            one_off = await parts.runs.submit_one_off(ALICE, RunRequest("wait gate"))
            parts.gateway.hold("websocket")
            opening = asyncio.create_task(parts.session())
            await parts.gateway.reached("websocket")
        with pytest.raises(UnavailableError):
            await opening
        for active in (running, queued, one_off):
            assert active.run.status is RunStatus.ABORTED
            assert "The service was stopped." in active.run.notices
            assert active.run.recorded
        assert running.run.folded.stdout == "begun\n"
        with pytest.raises(UnavailableError):
            await parts.submit(session, "print a")
        with pytest.raises(UnavailableError):
            await parts.runs.submit_one_off(ALICE, RunRequest("print a"))
        with pytest.raises(UnavailableError):
            await parts.session()
        gateway.release("websocket")
        await gateway.until(lambda: len(gateway.kernels) == (1 if outlives_service else 0))
        async with stack(tmp_path, gateway=gateway, recover=True) as parts:
            for active in (running, queued, one_off):
                assert await parts.recorder.get_run(active.run.id) == active.run


async def test_a_gateway_that_hangs_does_not_keep_the_service_from_stopping(tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        async with stack(tmp_path, gateway=gateway) as parts:
            gateway.hold("start")
            opening = asyncio.create_task(parts.session())
            await gateway.reached("start")
        with pytest.raises(UnavailableError):
            await opening
        gateway.release("start")


async def test_a_session_goes_on_after_a_restart_of_the_service(tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        async with stack(tmp_path, gateway=gateway) as parts:
            session = await parts.session()
            await parts.run(session, "set x 1")
        async with stack(tmp_path, gateway=gateway, recover=True) as parts:
            again = parts.sessions.get(ALICE, session.id)
            run = await parts.run(again, "get x")
            assert (run.folded.result, run.number, run.kernel_restarted) == ("1", 2, False)


async def test_after_a_crash_what_ran_is_interrupted_and_marked(tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        async with stack(tmp_path / "a", gateway=gateway) as parts:
            session = await parts.session()
            await parts.run(session, "set x 1")
            active = await waiting(parts, session)
            shutil.copytree(tmp_path / "a", tmp_path / "b")  # what a kill -9 at this moment leaves
        async with stack(tmp_path / "b", gateway=gateway, recover=True) as parts:
            run = await parts.recorder.get_run(active.run.id)
            assert (run.status, run.notices) == (
                RunStatus.ABORTED,
                ("The service stopped while this code ran.",),
            )
            assert gateway.count("interrupt") > 0
            run = await parts.run(parts.sessions.get(ALICE, session.id), "get x")
            assert (run.status, run.folded.result) == (RunStatus.OK, "1")


@pytest.mark.parametrize("fate", ["dead", "stuck", "gateway down"])
async def test_a_session_whose_kernel_did_not_survive_says_so(
    tmp_path: Path, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interpreter.kernels.launcher.ATTACH_TIMEOUT", 0.3)
    async with ScriptedGateway() as gateway:
        async with stack(tmp_path, gateway=gateway) as parts:
            session = await parts.session()
            await parts.run(session, "set x 1")
        old = gateway.kernel
        if fate == "dead":
            await old.die(Manner.DIES_SILENTLY)
        elif fate == "stuck":
            old.manner = Manner.MUTE
        else:
            await gateway.stop()
        async with stack(tmp_path, gateway=gateway, recover=True) as parts:
            again = parts.sessions.get(ALICE, session.id)
            assert again.status is SessionStatus.DEAD
            if fate == "gateway down":
                await gateway.start()
            run = await parts.run(again, "get x")
            assert run.folded.error.ename == "NameError"
            assert (run.kernel_restarted, run.notices) == (True, (KERNEL_LOST_AT_RESTART,))
            await gateway.until(lambda: sum(kernel.alive for kernel in gateway.kernels.values()) == 1)


async def test_a_gateway_that_is_late_at_the_start_still_gives_the_kernel_back(tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        async with stack(tmp_path, gateway=gateway) as parts:
            session = await parts.session()
            await parts.run(session, "set x 1")
        gateway.answer("get", HTTP_500)
        async with stack(tmp_path, gateway=gateway, recover=True) as parts:
            gateway.heal("get")
            run = await parts.run(parts.sessions.get(ALICE, session.id), "get x")
            assert (run.folded.result, run.kernel_restarted, run.notices) == ("1", False, ())


async def test_what_must_not_go_on_is_ended_with_its_kernel(tmp_path: Path) -> None:
    clock = Clock()
    async with ScriptedGateway() as gateway:
        async with stack(tmp_path / "a", gateway=gateway) as parts:
            expired = await parts.session(idle_timeout=5.0)
            deleted = await parts.session()
            await parts.sessions.delete(ALICE, deleted.id)
            one_off = await parts.runs.submit_one_off(ALICE, RunRequest("wait gate"))
            await gateway.reached("gate")
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            kernels = set(gateway.kernels)
        assert len(kernels) == 2
        clock.ahead += timedelta(seconds=6)
        async with stack(tmp_path / "b", gateway=gateway, clock=clock, recover=True) as parts:
            assert parts.sessions.count() == 0
            assert not gateway.kernels
            assert (await parts.recorder.get_run(one_off.run.id)).status is RunStatus.ABORTED
            with pytest.raises(SessionGoneError) as caught:
                parts.sessions.get(ALICE, deleted.id)
            assert caught.value.code == "session_deleted"
            with pytest.raises(SessionGoneError) as caught:
                parts.sessions.get(ALICE, expired.id)
            assert caught.value.code == "session_expired"
            assert not parts.sessions._slots._taken


async def test_recovered_sessions_take_their_slots(tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        async with stack(tmp_path, gateway=gateway) as parts:
            sessions = [await parts.session() for _ in range(2)]
        async with stack(tmp_path, gateway=gateway, recover=True, max_sessions=2) as parts:
            with pytest.raises(TooManySessionsError):
                await parts.session()
            await parts.sessions.delete(ALICE, sessions[0].id)
            await parts.session()


# Replay


async def test_replay_brings_back_the_state_of_successful_runs(parts: Stack) -> None:
    session = await parts.session()
    for code in ("set x 1", "raise ValueError no", "set y 2\nprint shown", "set x 3"):
        await parts.run(session, code)
    await parts.gateway.kernel.die()
    recorded = len(await parts.recorder.list_runs(session.id))
    done = await parts.runs.replay(ALICE, session.id)
    assert ([run_id[-2:] for run_id in done.run_ids], done.failed_run_id) == (["_1", "_3", "_4"], None)
    run = await parts.run(session, "get x\nget y")
    assert run.folded.result == "2"
    assert [output["data"]["text/plain"] for output in run.folded.outputs] == ["3", "2"]
    assert run.kernel_restarted
    assert run.notices == (
        "The kernel is a fresh one, on which the code of 3 earlier runs was executed again.",
    )
    assert len(await parts.recorder.list_runs(session.id)) == recorded + 1
    assert (await parts.run(session, "get x")).notices == ()


async def test_replay_stops_at_the_first_run_that_fails_now(parts: Stack) -> None:
    session = await parts.session()
    await parts.run(session, "set x 1")
    parts.gateway.kernel.variables["file"] = "there"
    failing = await parts.run(session, "get file")
    await parts.run(session, "set x 2")
    done = await parts.runs.replay(ALICE, session.id)
    assert (len(done.run_ids), done.failed_run_id) == (1, failing.id)
    run = await parts.run(session, "get x")
    assert run.folded.result == "1"
    assert run.notices == (
        "The kernel is a fresh one, on which the code of 1 earlier run was executed again; the replay "
        "stopped at run 2 (NameError: name 'file' is not defined).",
    )


async def test_replay_stops_at_a_run_that_takes_too_long_now(parts: Stack) -> None:
    session = await parts.session()
    await parts.run(session, "set x 1")
    parts.gateway.release("gate")
    slow = await parts.run(session, "wait gate", timeout=0.2)
    parts.gateway.hold("gate")
    done = await parts.runs.replay(ALICE, session.id)
    assert done.failed_run_id == slow.id
    assert "timeout of 0.2 seconds" in done.sentence or "KeyboardInterrupt" in done.sentence
    assert (await parts.run(session, "get x")).folded.result == "1"


async def test_a_replay_that_kills_its_kernel_leaves_a_clean_one(parts: Stack) -> None:
    session = await parts.session()
    await parts.run(session, "set x 1")
    fatal = await parts.run(session, "print a")
    parts.gateway.kernel.manner = Manner.DIES_MID_RUN
    parts.gateway.manner = Manner.GOOD
    done = await parts.runs.replay(ALICE, session.id)
    assert done.kernel_lost
    assert done.failed_run_id in (fatal.id, fatal.id[:-1] + "1")
    run = await parts.run(session, "get x")
    assert (run.folded.error.ename, run.kernel_restarted) == ("NameError", True)
    assert "its state is empty; the replay stopped at run" in run.notices[0]


async def test_runs_wait_for_a_replay_and_an_interrupt_ends_it(parts: Stack) -> None:
    session = await parts.session()
    parts.gateway.release("gate")
    await parts.run(session, "set x 1")
    await parts.run(session, "wait gate")
    parts.gateway.hold("gate")
    replaying = asyncio.create_task(parts.runs.replay(ALICE, session.id))
    await parts.gateway.reached("gate")
    assert session.status is SessionStatus.BUSY
    active = await parts.submit(session, "get x")
    parts.runs.interrupt(ALICE, session.id)
    assert (await replaying).failed_run_id is not None
    assert (await parts.ended(active)).folded.result == "1"


async def test_a_session_can_be_deleted_during_a_replay(parts: Stack) -> None:
    session = await parts.session()
    parts.gateway.release("gate")
    await parts.run(session, "wait gate")
    parts.gateway.hold("gate")
    replaying = asyncio.create_task(parts.runs.replay(ALICE, session.id))
    await parts.gateway.reached("gate")
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await parts.sessions.delete(ALICE, session.id)
    assert loop.time() - begin < MARGIN
    assert (await replaying).run_ids == ()
    assert not parts.gateway.kernels
