"""Replay of a session on a fresh kernel."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runs_kit import ALICE, MARGIN, Stack, stack
from scripted_gateway import Manner

from interpreter.models import SessionStatus


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as opened:
        yield opened


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
    slow = await parts.run(session, "wait gate", timeout=1)
    parts.gateway.hold("gate")
    done = await parts.runs.replay(ALICE, session.id)
    assert done.failed_run_id == slow.id
    assert "timeout of 1 second" in done.sentence or "KeyboardInterrupt" in done.sentence
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
