"""Each bad manner of a kernel: the run ends on time with the right words, and the next one works."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from runs_kit import ALICE, GRACE, MARGIN, Stack, stack
from scripted_gateway import Manner, ScriptedGateway

from interpreter.errors import GatewayError, KernelStartTimeoutError
from interpreter.models import RunRequest, RunStatus

TIMEOUT = 0.5


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as opened:
        yield opened


@contextmanager
def within(seconds: float):
    """The block takes no longer, give or take what a busy machine adds."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    yield
    assert loop.time() - begin < seconds + MARGIN


async def misbehaving(parts: Stack, manner: Manner):
    """A session that holds state in a kernel which from now on behaves so."""
    session = await parts.session()
    assert (await parts.run(session, "set x 1")).status is RunStatus.OK
    parts.kernel_of(session).manner = manner
    return session


async def works(parts: Stack, session, *, fresh: bool) -> str:
    """The next run works on the kernel of before, or on a fresh one and says so; its notice."""
    if not fresh:
        parts.kernel_of(session).manner = Manner.GOOD
    run = await parts.run(session, "print next\nget x")
    assert run.folded.stdout == "next\n"
    assert run.kernel_restarted is fresh
    if not fresh:
        assert (run.status, run.folded.result, run.notices) == (RunStatus.OK, "1", ())
        return ""
    assert (run.status, run.folded.error.ename) == (RunStatus.ERROR, "NameError")
    assert len(run.notices) == 1
    return run.notices[0]


@pytest.mark.parametrize(
    "manner",
    [
        Manner.IDLE_FIRST,
        Manner.REPLY_FIRST,
        Manner.FORKED_IDLE,
        Manner.FOREIGN_PARENT,
        Manner.GARBAGE,
        Manner.DROPS_SOCKET,
    ],
)
async def test_a_harmless_manner_changes_nothing(parts: Stack, manner: Manner) -> None:
    session = await misbehaving(parts, manner)
    run = await parts.run(session, "print a\nprint b\nresult 2")
    assert (run.status, run.folded.stdout, run.folded.result) == (RunStatus.OK, "a\nb\n", "2")
    assert (run.folded.error, run.notices, run.kernel_restarted) == (None, (), False)
    await works(parts, session, fresh=False)


async def test_an_aborted_request_is_aborted(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.ABORTED)
    run = await parts.run(session, "print a")
    assert (run.status, run.folded.outputs, run.kernel_restarted) == (RunStatus.ABORTED, (), False)
    await works(parts, session, fresh=False)


@pytest.mark.parametrize(
    ("manner", "status"),
    [(Manner.NEVER_IDLE, RunStatus.OK), (Manner.NEVER_REPLIES, RunStatus.ABORTED)],
)
async def test_half_an_end_ends_the_run_soon_and_says_so(
    parts: Stack, manner: Manner, status: RunStatus
) -> None:
    session = await misbehaving(parts, manner)
    with within(1):
        run = await parts.run(session, "print a")
    assert (run.status, run.folded.stdout, run.kernel_restarted) == (status, "a\n", False)
    assert run.notices == (
        "The kernel did not tell the end of the run as it should; some output may be missing.",
    )
    await works(parts, session, fresh=False)


@pytest.mark.parametrize("manner", [Manner.MUTE, Manner.IGNORES_INTERRUPT])
async def test_a_kernel_that_does_not_listen_is_restarted(parts: Stack, manner: Manner) -> None:
    session = await misbehaving(parts, manner)
    kernel = parts.kernel_of(session)
    active = await parts.submit(session, "print begun\nwait gate", timeout=TIMEOUT)
    with within(TIMEOUT + GRACE):
        run = await parts.ended(active)
    assert (run.status, run.kernel_restarted) == (RunStatus.TIMEOUT, True)
    assert run.folded.stdout == ("" if manner is Manner.MUTE else "begun\n")
    assert run.notices == (
        "The run took longer than its timeout of 0.5 seconds and was interrupted.",
        "The kernel was restarted: earlier variables and imports are gone.",
    )
    kernel.manner = Manner.GOOD
    assert await works(parts, session, fresh=True) == (
        "The run before did not stop when it was interrupted. "
        "The kernel was restarted: earlier variables and imports are gone."
    )


async def test_a_queued_run_never_meets_the_stuck_kernel(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.IGNORES_INTERRUPT)
    kernel = parts.kernel_of(session)
    parts.gateway.hold("restart")
    stuck = await parts.submit(session, "wait gate", timeout=0.1)
    queued = await parts.submit(session, "print queued")
    assert (await parts.ended(stuck)).status is RunStatus.TIMEOUT
    await parts.gateway.reached("restart")
    kernel.manner = Manner.GOOD
    parts.gateway.release("restart")
    run = await parts.ended(queued)
    assert (run.status, run.folded.stdout, run.kernel_restarted) == (RunStatus.OK, "queued\n", True)


@pytest.mark.parametrize("manner", [Manner.SWALLOWS_INTERRUPT, Manner.GOOD, Manner.NEEDS_NUDGE])
async def test_what_the_reply_says_after_the_timeout_does_not_count(parts: Stack, manner: Manner) -> None:
    session = await misbehaving(parts, manner)
    with within(TIMEOUT + GRACE):
        run = await parts.run(session, "print begun\nwait gate\nprint never", timeout=TIMEOUT)
    assert (run.status, run.folded.stdout, run.kernel_restarted) == (RunStatus.TIMEOUT, "begun\n", False)
    assert run.notices == ("The run took longer than its timeout of 0.5 seconds and was interrupted.",)
    await works(parts, session, fresh=False)


async def test_a_flood_ends_with_the_timeout_and_is_cut(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.FLOODS)
    with within(TIMEOUT + GRACE):
        run = await parts.run(session, "print begun", timeout=TIMEOUT)
    assert (run.status, run.kernel_restarted) == (RunStatus.TIMEOUT, False)
    assert run.folded.stdout.startswith("begun\nfff")
    await works(parts, session, fresh=False)


@pytest.mark.parametrize(
    ("manner", "sentence"),
    [
        (Manner.DIES_MID_RUN, "The kernel died."),
        (Manner.DIES_AND_CLOSES, "The kernel died."),
        (Manner.RESTARTS_MID_RUN, "The kernel died."),
        (
            Manner.DIES_SILENTLY,
            "The kernel died, or somebody ended it: the gateway does not know it any more.",
        ),
    ],
)
async def test_every_death_is_told_within_seconds(parts: Stack, manner: Manner, sentence: str) -> None:
    session = await misbehaving(parts, manner)
    with within(1):
        run = await parts.run(session, "print last words")
    assert (run.status, run.folded.stdout) == (RunStatus.KERNEL_DIED, "last words\n")
    assert (run.folded.error.ename, run.folded.error.evalue) == ("KernelDied", sentence)
    assert run.kernel_restarted
    assert run.notices == (sentence, "The kernel was restarted: earlier variables and imports are gone.")
    assert await works(parts, session, fresh=True) == (
        f"{sentence} The kernel is a fresh one: earlier variables and imports are gone."
    )
    await parts.gateway.until(lambda: sum(kernel.alive for kernel in parts.gateway.kernels.values()) == 1)


async def test_the_cause_of_a_death_is_told_as_the_gateway_knows_it(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.GOOD)
    kernel = parts.kernel_of(session)
    active = await parts.submit(session, "wait gate")
    await parts.gateway.reached("gate")
    cause = {"exit_code": -9, "signal": "SIGKILL", "reason": "it used more than its memory limit"}
    await kernel.send("iopub", "status", {"execution_state": "dead", "interpreter": cause}, {})
    run = await parts.ended(active)
    assert run.status is RunStatus.KERNEL_DIED
    assert run.notices[0] == "The kernel died: it used more than its memory limit."


async def test_exit_is_a_death_with_its_reason(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.GOOD)
    run = await parts.run(session, "print bye\nexit")
    assert (run.status, run.folded.stdout) == (RunStatus.KERNEL_DIED, "bye\n")
    assert run.notices[0] == "The kernel ended because the code called exit() or quit()."
    await works(parts, session, fresh=True)


async def test_a_kernel_that_dies_between_runs_is_told_by_the_next(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.GOOD)
    kernel = parts.kernel_of(session)
    await kernel.die(Manner.DIES_AND_CLOSES)
    await parts.gateway.until(lambda: not kernel.sockets)
    assert "The kernel died." in await works(parts, session, fresh=True)


async def test_a_kernel_that_dies_of_the_interrupt_is_still_a_timeout(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.IGNORES_INTERRUPT)
    kernel = parts.kernel_of(session)
    parts.gateway.hold("interrupt")
    active = await parts.submit(session, "print begun\nwait gate", timeout=0.1)
    await parts.gateway.reached("interrupt")
    await kernel.die(Manner.DIES_MID_RUN)
    parts.gateway.release("interrupt")
    run = await parts.ended(active)
    assert (run.status, run.folded.stdout, run.folded.error) == (RunStatus.TIMEOUT, "begun\n", None)
    assert run.kernel_restarted
    assert "The kernel died." in run.notices
    await works(parts, session, fresh=True)


async def test_a_lost_socket_without_replay_ends_the_run_and_says_so(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.DROPS_AND_FORGETS)
    with within(1):
        run = await parts.run(session, "print before")
    assert (run.status, run.folded.stdout, run.kernel_restarted) == (RunStatus.ABORTED, "before\n", False)
    assert run.notices == ("The connection to the kernel was lost for a while; some output may be missing.",)
    await works(parts, session, fresh=False)


async def test_not_a_line_is_lost_when_the_socket_drops_in_the_middle(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.GOOD)
    code = "\n".join(["print 1", "drop", "print 2", "print 3", "drop", "wait gate", "print 4"])
    active = await parts.submit(session, code)
    await parts.gateway.reached("gate")
    parts.gateway.release("gate")
    run = await parts.ended(active)
    assert (run.status, run.folded.stdout, run.notices) == (RunStatus.OK, "1\n2\n3\n4\n", ())


async def test_a_run_that_comes_while_the_socket_is_lost_waits_for_it(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.GOOD)
    parts.gateway.hold("websocket")
    kernel = parts.kernel_of(session)
    kernel.cut_sockets()
    await parts.gateway.reached("websocket")
    active = await parts.submit(session, "print here")
    parts.gateway.release("websocket")
    run = await parts.ended(active)
    assert (run.status, run.folded.stdout, run.kernel_restarted) == (RunStatus.OK, "here\n", False)


async def test_the_timeout_counts_while_the_socket_is_lost(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.GOOD)
    parts.gateway.hold("websocket")
    parts.kernel_of(session).cut_sockets()
    await parts.gateway.reached("websocket")
    with within(TIMEOUT):
        run = await parts.run(session, "print never", timeout=TIMEOUT)
    assert (run.status, run.folded.stdout) == (RunStatus.TIMEOUT, "")
    parts.gateway.release("websocket")
    await works(parts, session, fresh=False)


async def test_after_a_restart_that_loses_messages_the_session_works(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.DEAF_AFTER_RESTART)
    await parts.runs.restart(ALICE, session.id)
    run = await parts.run(session, "print hello")
    assert (run.status, run.folded.stdout, run.kernel_restarted) == (RunStatus.OK, "hello\n", False)


async def test_late_output_belongs_to_the_run_that_printed_it(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.LATE_OUTPUT)
    first = await parts.submit(session, "print first")
    assert "first" in (await first.wait()).folded.stdout
    second = await parts.submit(session, "print second")
    assert "second" in (await second.wait()).folded.stdout
    third = await parts.submit(session, "print third")
    await third.wait()

    async def shown(active) -> str:
        return (await parts.runs.get(ALICE, active.run.id)).folded.stdout

    while "later" not in await shown(second):
        await parts.submit(session, "print again")
    assert await shown(first) == "first\nlate\nlater\n"
    assert await shown(second) == "second\nlate\nlater\n"


async def test_late_output_is_put_on_record_marked_late(tmp_path: Path) -> None:
    async with stack(tmp_path) as parts:
        session = await parts.session()
        run = await parts.run(session, "print first\nlater after")
        await (await parts.submit(session, "print second")).wait()
    async with stack(tmp_path, recover=True) as parts:
        recorded = await parts.recorder.get_run(run.id)
        assert recorded.folded.stdout == "first\nafter\n"
        notebook = (await parts.recorder.notebook(session.id)).decode()
        assert '"late_outputs": [1]' in notebook


async def test_a_display_of_an_earlier_run_is_updated_in_that_run(parts: Stack) -> None:
    session = await parts.session()
    first = await parts.submit(session, "display d old")
    await first.wait()
    second = await parts.run(session, "update d new")
    assert second.folded.outputs == ()
    run = await parts.runs.get(ALICE, first.run.id)
    assert run.folded.outputs[0]["data"] == {"text/plain": "new"}


async def test_a_display_of_a_run_that_left_memory_is_updated_in_the_record(
    parts: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interpreter.runs.manager.KEPT_RUNS", 1)
    session = await parts.session()
    first = await parts.run(session, "display d old\ndisplay e same\nprint text")
    await parts.run(session, "print more")
    await parts.run(session, "update d new")
    await parts.run(session, "update d newest")
    parts.runs._amendments.flush()  # as at the end of the service
    await parts.runs._background.settle()
    run = await parts.runs.get(ALICE, first.id)
    assert [output.get("data") for output in run.folded.outputs] == [
        {"text/plain": "newest"},
        {"text/plain": "same"},
        None,
    ]
    assert run.folded.stdout == "text\n"
    verification = await parts.recorder.verify(session.id)
    assert verification.valid


async def test_output_of_a_kernel_that_will_not_stop_does_not_reach_its_ended_run(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.IGNORES_INTERRUPT)
    kernel = parts.kernel_of(session)
    parts.gateway.hold("restart")
    run = await parts.run(session, "wait gate\nprint too late", timeout=0.1)
    await parts.gateway.reached("restart")
    parts.gateway.release("gate")
    while kernel.execution_state != "idle":
        await asyncio.sleep(0)
    parts.gateway.release("restart")
    kernel.manner = Manner.GOOD
    await works(parts, session, fresh=True)
    assert (await parts.runs.get(ALICE, run.id)).folded.stdout == ""


# Starting


@pytest.mark.parametrize("manner", [Manner.SLOW_START, Manner.SLOW_WEBSOCKET, Manner.MUTE])
async def test_a_kernel_that_does_not_come_up_is_a_start_timeout_and_deleted(
    tmp_path: Path, manner: Manner
) -> None:
    async with stack(tmp_path, kernel_start_timeout=0.3) as parts:
        parts.gateway.manner = manner
        with within(0.3), pytest.raises(KernelStartTimeoutError) as caught:
            await parts.session()
        assert caught.value.message == "The kernel did not answer within kernel_start_timeout (0.3 seconds)."
        parts.gateway.release("start")
        parts.gateway.release("websocket")
        await parts.gateway.until(lambda: parts.gateway.count("delete") == 1)
        await parts.gateway.until(lambda: not parts.gateway.kernels)
        parts.gateway.manner = Manner.GOOD
        assert (await parts.run(await parts.session(), "print a")).status is RunStatus.OK


async def test_a_kernel_that_dies_while_it_starts_is_an_error_at_once(parts: Stack) -> None:
    parts.gateway.manner = Manner.MUTE
    starting = asyncio.create_task(parts.session())
    await parts.gateway.until(
        lambda: any(m.msg_type == "kernel_info_request" for m in parts.gateway.messages)
    )
    await parts.gateway.kernel.die()
    with pytest.raises(GatewayError) as caught:
        await starting
    assert caught.value.message == "The kernel ended while it started. The kernel died."


async def test_a_run_whose_fresh_kernel_does_not_start_ends_with_the_reason(tmp_path: Path) -> None:
    async with stack(tmp_path, kernel_start_timeout=0.3) as parts:
        session = await misbehaving(parts, Manner.DIES_MID_RUN)
        parts.gateway.manner = Manner.MUTE
        assert (await parts.run(session, "print a")).status is RunStatus.KERNEL_DIED
        run = await parts.run(session, "print b")
        assert (run.status, run.folded.error.ename) == (RunStatus.KERNEL_DIED, "KernelStartError")
        assert run.notices == ("The kernel did not answer within kernel_start_timeout (0.3 seconds).",)
        parts.gateway.manner = Manner.GOOD
        await works(parts, session, fresh=True)


async def test_a_kernel_whose_delete_hangs_keeps_nobody(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.HANGS_ON_DELETE)
    kernel = parts.kernel_of(session)
    with within(0.5):
        await parts.sessions.delete(ALICE, session.id)
    assert parts.sessions.count() == 0
    assert kernel.id in parts.gateway.kernels
    parts.gateway.release("delete")
    await parts.gateway.until(lambda: not parts.gateway.kernels)


async def test_a_slow_start_can_be_cancelled_by_deleting_the_session(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.DIES_MID_RUN)
    parts.gateway.manner = Manner.SLOW_START
    await parts.run(session, "print a")
    active = await parts.submit(session, "print b")
    await parts.gateway.reached("start")
    with within(0):
        await parts.sessions.delete(ALICE, session.id)
    assert (await parts.ended(active)).status is RunStatus.CANCELLED
    parts.gateway.release("start")
    await parts.gateway.until(lambda: not any(k.alive for k in parts.gateway.kernels.values()))


async def test_the_legacy_subprotocol_works_with_all_that_matters(tmp_path: Path) -> None:
    async with ScriptedGateway(v1=False) as gateway, stack(tmp_path, gateway=gateway) as parts:
        session = await misbehaving(parts, Manner.GARBAGE)
        run = await parts.run(session, "print a\nresult 2\ncomm c\ndrop\nprint b")
        assert (run.status, run.folded.stdout, run.folded.result) == (RunStatus.OK, "a\nb\n", "2")
        await works(parts, session, fresh=False)


async def test_a_base_path_is_kept_everywhere(tmp_path: Path) -> None:
    async with ScriptedGateway(base_url="/some/base") as gateway, stack(tmp_path, gateway=gateway) as parts:
        session = await parts.session()
        assert (await parts.run(session, "print a")).folded.stdout == "a\n"
        await parts.sessions.delete(ALICE, session.id)
        assert not gateway.kernels


async def test_a_one_off_run_leaves_no_kernel_and_no_slot(parts: Stack) -> None:
    active = await parts.runs.submit_one_off(ALICE, RunRequest("print a"))
    run = await parts.ended(active)
    assert run.folded.stdout == "a\n"
    await parts.gateway.until(lambda: not parts.gateway.kernels)
    parts.runs.stop_accepting()
    await parts.runs._background.settle()
    assert parts.sessions.count() == 0
    assert (await parts.recorder.find_session(run.session_id)).ended_reason == "finished"
