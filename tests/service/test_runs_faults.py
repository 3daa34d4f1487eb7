"""Each bad manner of a kernel: the run ends on time with the right words, and the next one works."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from runs_kit import ALICE, GRACE, Stack, misbehaving, stack, waiting, within, works
from scripted_gateway import Manner

from interpreter.models import RunStatus, SessionStatus
from interpreter.runs.executor import STATE_LOST

TIMEOUT = 0.5


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as opened:
        yield opened


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


async def test_a_restart_of_a_kernel_that_is_just_being_restarted_makes_no_second_one(parts: Stack) -> None:
    """Which would need the folder that the first one has."""
    session = await misbehaving(parts, Manner.IGNORES_INTERRUPT)
    kernel = parts.kernel_of(session)
    parts.gateway.hold("restart")
    stuck = await waiting(parts, session)
    parts.runs.interrupt(ALICE, session.id)
    restarting = asyncio.create_task(parts.runs.restart(ALICE, session.id))
    await parts.gateway.reached("restart")
    kernel.manner = Manner.GOOD
    while session.fresh_kernel_reason != STATE_LOST:  # both want the kernel renewed
        await asyncio.sleep(0.01)
    parts.gateway.release("restart")
    await restarting
    assert (await parts.ended(stuck)).status is RunStatus.INTERRUPTED
    assert list(parts.gateway.kernels) == [session.kernel.id]
    assert (session.status, (await parts.run(session, "print a")).folded.stdout) == (
        SessionStatus.IDLE,
        "a\n",
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
    active = await parts.submit(session, "print begun\nwait gate", timeout=TIMEOUT)
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


async def test_lines_that_the_gateway_did_not_keep_are_noticed(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.DROPS_AND_FORGETS)
    kernel = parts.kernel_of(session)
    active = await parts.submit(session, "print 1\ndrop\nflood 50 10\nwait gate\nprint 2")
    await parts.gateway.until(lambda: bool(kernel.sockets) and parts.gateway.count("websocket") == 2)
    kernel.manner = Manner.GOOD
    parts.gateway.release("gate")
    run = await parts.ended(active)
    assert (run.status, run.folded.stdout) == (RunStatus.OK, "1\n2\n")
    assert run.notices == ("The connection to the kernel was lost for a while; some output may be missing.",)
    assert (await parts.run(session, "print next")).notices == ()


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


async def test_the_new_kernel_starts_when_the_old_one_has_left(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.GOOD)
    old = parts.kernel_of(session)
    starts = parts.gateway.count("start")
    parts.gateway.hold("delete")
    assert (await parts.run(session, "exit")).status is RunStatus.KERNEL_DIED
    await parts.gateway.reached("delete")
    assert parts.gateway.count("start") == starts
    parts.gateway.release("delete")
    await works(parts, session, fresh=True)
    assert parts.kernel_of(session) is not old


async def test_an_old_kernel_that_does_not_leave_delays_the_new_one_only_for_a_while(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.HANGS_ON_DELETE)
    with within(1):
        assert (await parts.run(session, "exit")).status is RunStatus.KERNEL_DIED
        await works(parts, session, fresh=True)
    parts.gateway.release("delete")


async def test_a_run_is_told_as_recorded_once_the_disk_has_taken_it(
    parts: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await parts.session()
    active = await parts.submit(session, "print a", background=True)
    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", _refuse)
        run = await active.wait()
        assert (run.status, run.recorded) == (RunStatus.OK, False)
        assert await parts.runs.get(ALICE, run.id) == run
    assert await parts.recorder.probe() is None
    assert await parts.runs.get(ALICE, run.id) == replace(run, recorded=True)


def _refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
