"""Kernels that do not come up, do not go away, or speak an older protocol."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runs_kit import ALICE, Stack, misbehaving, stack, within, works
from scripted_gateway import Manner, ScriptedGateway

from interpreter.errors import GatewayError, KernelStartTimeoutError
from interpreter.models import RunRequest, RunStatus

START_TIMEOUT = 0.8  # seconds, enough for a start that goes well


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("manner", [Manner.SLOW_START, Manner.SLOW_WEBSOCKET, Manner.MUTE])
async def test_a_kernel_that_does_not_come_up_is_a_start_timeout_and_deleted(
    tmp_path: Path, manner: Manner
) -> None:
    async with stack(tmp_path, kernel_start_timeout=START_TIMEOUT) as parts:
        parts.gateway.manner = manner
        with within(START_TIMEOUT), pytest.raises(KernelStartTimeoutError) as caught:
            await parts.session()
        assert caught.value.message == "The kernel did not answer within kernel_start_timeout (0.8 seconds)."
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
    async with stack(tmp_path, kernel_start_timeout=START_TIMEOUT) as parts:
        session = await misbehaving(parts, Manner.DIES_MID_RUN)
        parts.gateway.manner = Manner.MUTE
        assert (await parts.run(session, "print a")).status is RunStatus.KERNEL_DIED
        run = await parts.run(session, "print b")
        assert (run.status, run.folded.error.ename) == (RunStatus.KERNEL_DIED, "KernelStartError")
        assert run.notices == ("The kernel did not answer within kernel_start_timeout (0.8 seconds).",)
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
