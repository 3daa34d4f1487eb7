"""The parts below the API, wired as the service wires them, against a scripted gateway; waits are short."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from scripted_gateway import TRACEBACK_MARK, Manner, ScriptedGateway

from interpreter.kernels import channels, execution, kernel
from interpreter.kernels import gateway as gateway_module
from interpreter.kernels.gateway import Gateway
from interpreter.kernels.launcher import GatewayLauncher
from interpreter.kernels.remembering import RememberingGateway
from interpreter.kernels.target import GatewayTarget
from interpreter.models import Principal, Role, Run, RunRequest, RunStatus
from interpreter.record import Recorder
from interpreter.runs import ActiveRun, RecordedRun, RunManager, amendments, execute
from interpreter.sessions import Session, SessionManager
from interpreter.sessions import kernels as session_kernels
from interpreter.settings import Settings
from interpreter.workspace import Workspaces

ALICE = Principal("tok_alice", "alice", Role.RUN)
BOB = Principal("tok_bob", "bob", Role.RUN)
ADMIN = Principal("tok_admin", "admin", Role.ADMIN)
GRACE = 0.5
MARGIN = 20.0  # seconds that a busy machine may add to any bound; less than any run may take


class Clock:
    """The present, and whatever a test adds to it."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass
class Stack:
    gateway: Any  # a ScriptedGateway, None when the test has a real one
    client: Gateway
    recorder: Recorder
    sessions: SessionManager
    runs: RunManager
    workspaces: Workspaces
    clock: Clock
    seen: list[Run] = field(default_factory=list)

    async def session(self, principal: Principal = ALICE, **options: Any) -> Session:
        return await self.sessions.create(principal, **options)

    async def submit(self, session: Session, code: str, **request: Any) -> ActiveRun | RecordedRun:
        return await self.runs.submit(ALICE, session, RunRequest(code, **request))

    async def run(self, session: Session, code: str, **request: Any) -> Run:
        """Run to the end; what the record says must be the same."""
        return await self.ended(await self.submit(session, code, **request))

    async def ended(self, active: ActiveRun | RecordedRun) -> Run:
        """The run when it has ended; what the record says must be the same."""
        run = await active.wait()
        assert run.status.is_final
        assert run.recorded
        assert await self.recorder.get_run(run.id) == run
        assert TRACEBACK_MARK not in str(run)
        return run

    async def runs_of(self, principal: Principal, session_id: str) -> list[Run]:
        """All runs of a live session with all their outputs, oldest first."""
        ids = await self.runs.list_ids(principal, session_id)
        return [await self.runs.get(principal, run_id) for run_id in ids]

    def kernel_of(self, session: Session) -> Any:
        assert session.kernel is not None
        return self.gateway.kernels[session.kernel.id]


@asynccontextmanager
async def quick() -> AsyncIterator[None]:
    """Short waits between attempts, so that a fault is over soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "COMPLETION_GRACE", 0.1)
        patch.setattr(execution, "SILENCE", 0.2)
        patch.setattr(kernel, "RESYNC_INTERVAL", 0.05)
        patch.setattr(channels, "RECONNECT_DELAYS", (0.02,) * 10)
        patch.setattr(gateway_module, "DELETE_TIMEOUT", 0.5)
        patch.setattr(gateway_module, "DELETE_RETRY_DELAY", 0.02)
        patch.setattr(gateway_module, "SETTLE_TIMEOUT", 1.0)
        patch.setattr(session_kernels, "LEAVE_TIMEOUT", 0.5)
        patch.setattr(execute, "INTERRUPT_INTERVAL", 0.2)
        patch.setattr(execute, "WAKE_DELAY", 0.05)
        patch.setattr(amendments, "FIRST_DELAY", 0.02)
        yield


@asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    """Whatever the service started inside has ended at the end; a gateway around it may go on."""
    before = asyncio.all_tasks()
    yield
    if left := _tasks_since(before):
        await asyncio.wait(left, timeout=MARGIN)
    assert not _tasks_since(before)


def _tasks_since(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    after = asyncio.all_tasks() - before - {asyncio.current_task()}
    return {task for task in after if not _is_gateways(task)}


def _is_gateways(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return any(place in code.co_filename for place in ("scripted_", "tornado", "asyncio/locks"))


def target_of(gateway: ScriptedGateway, **changes: Any) -> GatewayTarget:
    options = {"auth": gateway.auth, "token": gateway.token, "password": gateway.password}
    return GatewayTarget(gateway.url, **{**options, **changes})


@asynccontextmanager
async def stack(
    folder: Path,
    *,
    gateway: ScriptedGateway | None = None,
    clock: Clock | None = None,
    outlives_service: bool = True,
    target: GatewayTarget | None = None,
    recover: bool = False,
    **settings: Any,
) -> AsyncIterator[Stack]:
    """A service without its HTTP side. What is open at the end is closed, and no task is left."""
    options = {"interrupt_grace": GRACE, "execute_timeout": 30.0, "kernel_start_timeout": 10.0, **settings}
    wanted = Settings(**options)
    clock = clock or Clock()
    async with no_task_left(), quick(), AsyncExitStack() as exits:
        if gateway is None and target is None:
            gateway = await exits.enter_async_context(ScriptedGateway())
        recorder = Recorder(folder / "notebooks", folder / "state", clock=clock)
        await recorder.start()
        exits.push_async_callback(recorder.aclose)
        client = RememberingGateway(target or target_of(gateway), folder / "kernels")
        exits.callback(client.close)
        launcher = GatewayLauncher(client, wanted.kernel_start_timeout, None, outlives_service)
        workspaces = Workspaces(folder / "workspaces")
        workspaces.prepare()
        sessions = SessionManager(wanted, launcher, recorder, workspaces, clock=clock)
        seen: list[Run] = []
        runs = RunManager(wanted, sessions, recorder, workspaces, clock=clock, observe=seen.append)
        exits.push_async_callback(runs.aclose)
        exits.push_async_callback(sessions.aclose)
        exits.callback(runs.stop_accepting)
        if recover:
            await sessions.recover()
        yield Stack(gateway, client, recorder, sessions, runs, workspaces, clock, seen)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """The block takes no longer, give or take what a busy machine adds."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    yield
    assert loop.time() - begin < seconds + MARGIN


async def misbehaving(parts: Stack, manner: Manner) -> Session:
    """A session that holds state in a kernel which from now on behaves so."""
    session = await parts.session()
    assert (await parts.run(session, "set x 1")).status is RunStatus.OK
    parts.kernel_of(session).manner = manner
    return session


async def works(parts: Stack, session: Session, *, fresh: bool) -> str:
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


async def waiting(parts: Stack, session: Session, gate: str = "gate", **request: Any) -> ActiveRun:
    """A run that executes and waits at a gate."""
    active = await parts.submit(session, f"print begun\nwait {gate}", **request)
    await parts.gateway.reached(gate)
    assert isinstance(active, ActiveRun)
    return active


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
