"""Accepts runs, queues them per session, executes them one at a time and records each."""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from typing import Any

from interpreter.errors import (
    InterpreterError,
    NotFoundError,
    RateLimitedError,
    UnavailableError,
)
from interpreter.events import RunEvent, replay_events
from interpreter.kernels.kernel import Kernel
from interpreter.models import (
    JSON,
    Principal,
    Run,
    RunError,
    RunRequest,
    RunStatus,
    run_id_of,
)
from interpreter.outputs import Displays, OutputLimits
from interpreter.record import Recorder
from interpreter.runs.active import ActiveRun, RecordedRun, Stop
from interpreter.runs.execute import Outcome, execute
from interpreter.runs.keys import IdempotencyKeys, KnownKey, digest_of
from interpreter.sessions import Session, SessionManager
from interpreter.settings import Settings
from interpreter.workspace import Workspaces, changes

log = logging.getLogger(__name__)

KEPT_RUNS = 256  # finished runs whose events can still be followed one by one
MAX_LATE_DELAY = 60.0  # seconds between two recordings of a run's late output, at the most

STATE_LOST = "The kernel was restarted: earlier variables and imports are gone."


class _Lane:
    """The runs of one session: one executes, the others wait in order."""

    def __init__(self) -> None:
        self.queue: deque[ActiveRun] = deque()
        self.current: ActiveRun | None = None
        self.worker: asyncio.Task[None] | None = None
        self.displays = Displays()

    def all(self) -> list[ActiveRun]:
        return [*([self.current] if self.current else []), *self.queue]


class RunManager:
    """All runs of the service."""

    def __init__(
        self,
        settings: Settings,
        sessions: SessionManager,
        recorder: Recorder,
        workspaces: Workspaces,
        *,
        clock: Callable[[], datetime],
        observe: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._recorder = recorder
        self._workspaces = workspaces
        self._clock = clock
        self._observe = observe
        self._limits = OutputLimits(
            max_output_bytes=settings.max_output_bytes,
            max_mime_bytes=settings.max_mime_bytes,
            max_display_bytes=settings.max_display_bytes,
            max_outputs=settings.max_outputs,
        )
        self._lanes: dict[str, _Lane] = {}
        self._runs: OrderedDict[str, ActiveRun] = OrderedDict()
        self._keys = IdempotencyKeys()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False
        sessions.add_end_hook(self._session_ends)

    async def submit(
        self, principal: Principal, session: Session, request: RunRequest
    ) -> ActiveRun | RecordedRun:
        """Accept a run: when this returns it is in the record and in its session's queue.

        Raises RateLimitedError (queue full), ConflictError (idempotency key of other code),
        RecordUnavailableError, UnavailableError.
        """
        if self._closing or session.ended:
            raise UnavailableError("The session or the service is ending.", retry_after=1)
        digest = digest_of(session.id, request)
        return await self._once(principal, request, digest, self._submit(session, request, digest))

    async def submit_one_off(
        self, principal: Principal, request: RunRequest, *, kernel_name: str | None = None
    ) -> ActiveRun | RecordedRun:
        """Accept a run in a session of its own, which ends with it. Raises as `submit` and `create`."""
        digest = digest_of(kernel_name or "", request)
        work = self._submit_one_off(principal, request, kernel_name, digest)
        return await self._once(principal, request, digest, work)

    async def get(self, principal: Principal, run_id: str) -> Run:
        """A run, live or from the record. Raises NotFoundError."""
        active = self._runs.get(run_id)
        run = active.snapshot() if active is not None else await self._recorder.get_run(run_id)
        if run is None or not principal.reads(run.owner_id):
            raise NotFoundError("There is no run with this id.")
        return run

    async def list(self, principal: Principal, session_id: str) -> list[Run]:
        """The runs of a live session, oldest first. Raises as `SessionManager.get`."""
        self._sessions.get(principal, session_id)
        recorded = await self._recorder.list_runs(session_id)
        return [active.snapshot() if (active := self._runs.get(run.id)) else run for run in recorded]

    async def events(self, principal: Principal, run_id: str, after: int = 0) -> AsyncIterator[RunEvent]:
        """The run's events above ``after``. Raises NotFoundError."""
        active = self._runs.get(run_id)
        if active is not None and principal.reads(active.run.owner_id):
            return active.events(after)
        return replay_events(await self.get(principal, run_id), after)

    async def cancel(self, principal: Principal, run_id: str, *, reason: str = "It was cancelled.") -> Run:
        """End a run that has not ended; the run when it has. Raises NotFoundError."""
        active = self._runs.get(run_id)
        if active is None or not principal.owns(active.run.owner_id):
            run = await self.get(principal, run_id)
            if not principal.owns(run.owner_id):
                raise NotFoundError("There is no run with this id.")
            return run
        active.request_stop(Stop(RunStatus.CANCELLED, reason))
        lane = self._lanes.get(active.run.session_id)
        if lane is not None and active in lane.queue:
            lane.queue.remove(active)
            await self._finish(self._sessions.get(principal, active.run.session_id), active, _stopped(active))
        return await active.wait()

    def interrupt(self, principal: Principal, session_id: str) -> None:
        """Interrupt what the session executes now, if anything. Raises as `SessionManager.get`."""
        self._sessions.get(principal, session_id)
        lane = self._lanes.get(session_id)
        if lane is not None and lane.current is not None:
            lane.current.request_stop(Stop(RunStatus.INTERRUPTED, "The run was interrupted on request."))

    async def restart(self, principal: Principal, session_id: str) -> Session:
        """Give the session a clean kernel; runs that execute or wait end. Raises as `get`, GatewayError."""
        session = self._sessions.get(principal, session_id)
        await self._stop_all(
            session, Stop(RunStatus.INTERRUPTED, "The kernel was restarted on request.", False)
        )
        await self._sessions.restart_kernel(session, "restarted on request")
        session.fresh_kernel_reason = None
        return session

    async def aclose(self) -> None:
        """Wait for what is still being written. Sessions are closed before."""
        self._closing = True
        for active in self._runs.values():
            if active.late_timer is not None:
                active.late_timer.cancel()
                self._record_late(active)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop_accepting(self) -> None:
        """Refuse new runs from now on."""
        self._closing = True

    # Accepting

    async def _once(
        self, principal: Principal, request: RunRequest, digest: str, work: Coroutine[Any, Any, ActiveRun]
    ) -> ActiveRun | RecordedRun:
        """Do the work, or find the run that the same idempotency key started before."""
        key = (principal.token_id, request.idempotency_key or "")
        if request.idempotency_key and (known := self._keys.find(key, digest)) is not None:
            work.close()
            return await self._run_of_key(known)
        task = self._spawn(work)
        if request.idempotency_key:
            self._keys.add(key, digest, task)
        try:
            active: ActiveRun = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not request.background:
                task.add_done_callback(_stop_abandoned)
            raise
        return active

    async def _run_of_key(self, known: KnownKey) -> ActiveRun | RecordedRun:
        if known.task is not None:
            return await asyncio.shield(known.task)
        active = self._runs.get(known.run_id)
        if active is not None:
            return active
        run = await self._recorder.get_run(known.run_id)
        if run is None:
            raise NotFoundError("The run of this Idempotency-Key is not in the record any more.")
        return RecordedRun(run)

    async def _submit(self, session: Session, request: RunRequest, digest: str) -> ActiveRun:
        if session.active_runs > self._settings.max_queued_runs:
            raise RateLimitedError(
                "The session's queue is full: "
                f"max_queued_runs ({self._settings.max_queued_runs}) wait already.",
                code="queue_full",
                retry_after=1,
            )
        active = self._new_run(session, request)
        await self._accept(session, active, request, digest)
        return active

    async def _submit_one_off(
        self, principal: Principal, request: RunRequest, kernel_name: str | None, digest: str
    ) -> ActiveRun:
        session = await self._sessions.create(principal, kernel_name=kernel_name, one_off=True)
        try:
            active = await self._submit(session, request, digest)
        except BaseException:
            await self._sessions.end(session, "finished")
            raise
        self._spawn(self._end_after(session, active))
        return active

    def _new_run(self, session: Session, request: RunRequest) -> ActiveRun:
        session.run_count += 1
        session.active_runs += 1
        session.last_activity_at = now = self._clock()
        run = Run(
            id=run_id_of(session.id, session.run_count),
            session_id=session.id,
            owner_id=session.info.owner_id,
            status=RunStatus.QUEUED,
            code=request.code,
            created_at=now,
            timeout=request.timeout or session.info.timeout,
            tool_call_id=request.tool_call_id,
        )
        lane = self._lanes.setdefault(session.id, _Lane())
        active = ActiveRun(run, self._limits, lane.displays, on_amend=self._amend_earlier, on_late=self._late)
        self._runs[run.id] = active
        self._forget_old_runs()
        return active

    async def _accept(self, session: Session, active: ActiveRun, request: RunRequest, digest: str) -> None:
        try:
            await self._recorder.accept_run(
                active.run, idempotency_key=request.idempotency_key, request_hash=digest
            )
        except BaseException:
            session.active_runs -= 1
            self._runs.pop(active.run.id, None)
            raise
        lane = self._lanes.setdefault(session.id, _Lane())
        lane.queue.append(active)
        if lane.worker is None or lane.worker.done():
            lane.worker = self._spawn(self._work(session, lane))

    def _forget_old_runs(self) -> None:
        """Keep the newest finished runs; the record has the others."""
        for run_id in list(self._runs)[: max(0, len(self._runs) - KEPT_RUNS)]:
            active = self._runs[run_id]
            if active.finished and active.late_timer is None:
                del self._runs[run_id]

    # Executing

    async def _work(self, session: Session, lane: _Lane) -> None:
        while lane.queue:
            lane.current = active = lane.queue.popleft()
            try:
                await self._run_one(session, lane, active)
            finally:
                lane.current = None
                if not active.finished:  # a bug of ours must not leave a run without an end
                    await self._finish(session, active, Outcome(RunStatus.ABORTED, ("The service failed.",)))

    async def _run_one(self, session: Session, lane: _Lane, active: ActiveRun) -> None:
        if active.stop.done():
            await self._finish(session, active, _stopped(active))
            return
        try:
            kernel = await self._kernel_for(session, active)
        except InterpreterError as error:
            active.update(
                folded=replace(active.run.folded, error=RunError("KernelStartError", error.message))
            )
            await self._finish(session, active, Outcome(RunStatus.KERNEL_DIED, (error.message,)))
            return
        if kernel is None:
            await self._finish(session, active, _stopped(active))
            return
        before = await asyncio.to_thread(self._workspaces.snapshot, session.id)
        fresh, session.fresh_kernel_reason = session.fresh_kernel_reason, None
        if fresh:
            lane.displays.clear()
            active.update(kernel_restarted=True, notices=(fresh,))
        active.update(status=RunStatus.RUNNING, started_at=self._clock())
        active.started()
        outcome = await execute(
            active, kernel, timeout=active.run.timeout, grace=self._settings.interrupt_grace
        )
        after = await asyncio.to_thread(self._workspaces.snapshot, session.id)
        active.update(files=changes(session.id, before, after))
        await self._finish(session, active, outcome)
        self._look_after_kernel(session, outcome)

    async def _kernel_for(self, session: Session, active: ActiveRun) -> Kernel | None:
        """The session's kernel, or None when the run was stopped while it started."""
        if session.kernel is not None and not session.kernel.dead and not session.starting:
            return session.kernel
        starting = self._spawn(self._sessions.ensure_kernel(session))
        await asyncio.wait({starting, active.stop}, return_when=asyncio.FIRST_COMPLETED)
        if active.stop.done() and not starting.done():
            return None
        kernel: Kernel = starting.result()
        return kernel

    def _look_after_kernel(self, session: Session, outcome: Outcome) -> None:
        """Have a good kernel ready for the next run, when this one spoiled it."""
        if session.ended or self._closing:
            return
        if outcome.kernel_is_stuck:
            self._spawn(self._sessions.restart_kernel(session, outcome.notices[0]))
            session.fresh_kernel_reason = STATE_LOST
        elif outcome.death is not None:
            if session.kernel is not None:
                self._sessions.discard_kernel(session, f"{outcome.death.sentence} {STATE_LOST}")
            self._sessions.prepare_kernel(session)

    async def _finish(self, session: Session, active: ActiveRun, outcome: Outcome) -> None:
        """Fold, record, tell. In this order: who is told has it in the record."""
        active.folder.close()
        now, run = self._clock(), active.run
        started = run.started_at
        folded = active.folder.folded() if started else run.folded
        notices = run.notices + outcome.notices
        lost = outcome.kernel_is_stuck or outcome.death is not None
        if outcome.death is not None:
            sentence = outcome.death.sentence
            folded = replace(folded, error=folded.error or RunError("KernelDied", sentence))
            notices += (sentence,)
        run = replace(
            run,
            status=outcome.status,
            ended_at=now,
            duration_ms=round((now - started).total_seconds() * 1000) if started else 0,
            folded=folded,
            kernel_restarted=run.kernel_restarted or lost,
            notices=(*notices, STATE_LOST) if lost else notices,
        )
        recorded = await self._recorder.finish_run(run)
        run = replace(run, recorded=recorded)
        session.active_runs -= 1
        session.last_activity_at = self._clock()
        active.complete(run)
        self._observe(run)
        if active.folder.late_indexes:
            self._late(active)

    # Afterwards

    def _late(self, active: ActiveRun) -> None:
        """Record late output soon, and less and less often when it goes on."""
        if active.late_timer is None and not self._closing:
            loop = asyncio.get_running_loop()
            active.late_timer = loop.call_later(active.late_delay, self._record_late, active)
            active.late_delay = min(active.late_delay * 2, MAX_LATE_DELAY)

    def _record_late(self, active: ActiveRun) -> None:
        run = active.snapshot()
        active.late_timer = None
        if run != active.run:
            active.run = run
            late = active.folder.late_indexes
            self._spawn(self._recorder.amend_run(run, late=late, reason="output after the end"))

    def _amend_earlier(self, run_id: str, index: int, data: JSON, metadata: JSON) -> None:
        """An update of a display that an earlier run made."""
        active = self._runs.get(run_id)
        if active is not None and active.finished:
            active.folder.amend(index, data, metadata)
            self._late(active)

    async def _end_after(self, session: Session, active: ActiveRun) -> None:
        await active.wait()
        await self._sessions.end(session, "finished")

    # Ending

    async def _session_ends(self, session: Session, reason: str) -> None:
        stops = {
            "deleted": Stop(RunStatus.CANCELLED, "The session was deleted.", False),
            "shutdown": Stop(RunStatus.ABORTED, "The service was stopped.", False),
        }
        await self._stop_all(
            session, stops.get(reason, Stop(RunStatus.CANCELLED, "The session ended.", False))
        )
        self._lanes.pop(session.id, None)

    async def _stop_all(self, session: Session, stop: Stop) -> None:
        lane = self._lanes.get(session.id)
        if lane is None:
            return
        for active in lane.all():
            active.request_stop(stop)
        if lane.worker is not None:
            await asyncio.shield(asyncio.gather(lane.worker, return_exceptions=True))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, InterpreterError):
            log.error("Background work of a run failed.", exc_info=error)


def _stop_abandoned(task: asyncio.Task[ActiveRun]) -> None:
    """End a run whose client went away before it was told that the run is accepted."""
    if not task.cancelled() and task.exception() is None:
        task.result().request_stop(Stop(RunStatus.CANCELLED, "The client went away before the run began."))


def _stopped(active: ActiveRun) -> Outcome:
    """The outcome of a run that was stopped before it began."""
    stop = active.stop.result()
    return Outcome(stop.status, (stop.sentence,))
