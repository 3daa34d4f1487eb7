"""Stop and start of the service: every run has its end, sessions go on where they can."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from runs_kit import ALICE, Clock, Stack, stack, waiting
from scripted_gateway import HTTP_500, Manner, ScriptedGateway

from interpreter.errors import (
    SessionGoneError,
    TooManySessionsError,
    UnavailableError,
)
from interpreter.models import RunRequest, RunStatus, SessionStatus
from interpreter.sessions.manager import KERNEL_LOST_AT_RESTART


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as opened:
        yield opened


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
        assert (gateway.count("interrupt") > 0) is outlives_service  # no code goes on unobserved
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
            gateway.answer("*", HTTP_500)  # and nothing is interrupted
        gateway.heal("*")
        before = gateway.count("interrupt")
        async with stack(tmp_path / "b", gateway=gateway, recover=True) as parts:
            run = await parts.recorder.get_run(active.run.id)
            assert (run.status, run.notices) == (
                RunStatus.ABORTED,
                ("The service stopped while this code ran.",),
            )
            assert gateway.count("interrupt") > before
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
            gateway.answer("*", HTTP_500)  # the crash also means that nobody cleans up
        gateway.heal("*")
        assert len(gateway.kernels) == 2
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


async def test_kernels_that_no_session_has_are_ended_at_the_next_start(tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        async with stack(tmp_path / "a", gateway=gateway) as parts:
            kept, ended = await parts.session(), await parts.session()
            await parts.run(kept, "set x 1")
            await parts.client.start_kernel("python3")  # as for a session that is only being made
            gateway.answer("delete", HTTP_500)
            await parts.sessions.delete(ALICE, ended.id)
            shutil.copytree(tmp_path / "a", tmp_path / "b")
        gateway.heal("delete")
        strangers = gateway.add_kernel("python3")
        async with stack(tmp_path / "b", gateway=gateway, recover=True) as parts:
            await gateway.until(lambda: len(gateway.kernels) == 2)
            assert strangers.id in gateway.kernels
            run = await parts.run(parts.sessions.get(ALICE, kept.id), "get x")
            assert (run.folded.result, run.kernel_restarted) == ("1", False)


async def test_a_kernel_that_could_not_be_ended_is_ended_at_a_later_start(tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        async with stack(tmp_path, gateway=gateway) as parts:
            await parts.client.start_kernel("python3")
        gateway.answer("delete", HTTP_500)
        async with stack(tmp_path, gateway=gateway, recover=True):
            pass
        assert len(gateway.kernels) == 1
        gateway.heal("delete")
        async with stack(tmp_path, gateway=gateway, recover=True):
            await gateway.until(lambda: not gateway.kernels)
    assert not os.listdir(tmp_path / "kernels")  # nobody ends them again
