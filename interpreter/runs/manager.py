"""Accepts runs, queues them per session, executes them one at a time and records each."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from interpreter.errors import (
    NotFoundError,
    RateLimitedError,
    SessionGoneError,
    UnavailableError,
)
from interpreter.events import RunEvent, replay_events
from interpreter.kernel_files import SessionFiles
from interpreter.kernels.background import Background
from interpreter.models import Principal, Run, RunRequest, RunStatus, run_id_of
from interpreter.outputs import OutputLimits
from interpreter.record import Recorder
from interpreter.runs.active import ActiveRun, RecordedRun, Stop
from interpreter.runs.amendments import Amendments
from interpreter.runs.execute import stopped
from interpreter.runs.executor import Executor
from interpreter.runs.keys import (
    AcceptedRun,
    IdempotencyKeys,
    KnownKey,
    digest_of,
    find_one_off,
    find_recorded,
)
from interpreter.runs.lanes import Lane
from interpreter.runs.replay import Replayed
from interpreter.sessions import Session, SessionManager
from interpreter.settings import Settings

KEPT_RUNS = 256  # finished runs whose events can still be followed one by one
KEPT_BYTES = 16 * 1024**2  # of the outputs in their events

_ENDS = {
    "deleted": Stop(RunStatus.CANCELLED, "The session was deleted.", gentle=False),
    "shutdown": Stop(RunStatus.ABORTED, "The service was stopped.", gentle=False),
}
_OTHER_END = Stop(RunStatus.CANCELLED, "The session ended.", gentle=False)


class RunManager:
    """All runs of the service. ``clock`` gives aware UTC datetimes."""

    def __init__(
        self,
        settings: Settings,
        sessions: SessionManager,
        recorder: Recorder,
        workspaces: SessionFiles,
        *,
        clock: Callable[[], datetime],
        observe: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._recorder = recorder
        self._clock = clock
        self._limits = OutputLimits(
            max_output_bytes=settings.max_output_bytes,
            max_mime_bytes=settings.max_mime_bytes,
            max_display_bytes=settings.max_display_bytes,
            max_outputs=settings.max_outputs,
        )
        self._lanes: dict[str, Lane] = {}
        self._runs: dict[str, ActiveRun] = {}
        self._finished_bytes = 0
        """Of the events of those runs in ``_runs`` that have ended: nothing is added to them."""
        self._observe = observe
        # Those too that are forgotten above, as long as a kernel may still say something of them.
        self._reachable: WeakValueDictionary[str, ActiveRun] = WeakValueDictionary()
        self._keys = IdempotencyKeys()
        self._background = Background()
        self._amendments = Amendments(recorder, self._background, find=self._reachable.get)
        self._executor = Executor(
            settings,
            sessions.kernels,
            recorder,
            workspaces,
            amendments=self._amendments,
            background=self._background,
            clock=clock,
            observe=self._run_ended,
        )
        self._closing = False
        sessions.add_end_hook(self._session_ends)

    async def submit(self, principal: Principal, session: Session, request: RunRequest) -> AcceptedRun:
        """Accept a run: when this returns it is in the record and in its session's queue.

        Raises RateLimitedError (queue full), ConflictError (idempotency key of other code),
        RecordUnavailableError, UnavailableError, SessionGoneError.
        """
        self._refuse_if_closing()
        digest = digest_of(session.id, request)
        if (active := self._submit_at_once(session, request, digest)) is not None:
            return active
        return await self._once(principal, request, digest, lambda: self._submit(session, request, digest))

    async def submit_one_off(
        self, principal: Principal, request: RunRequest, *, kernel_name: str | None = None
    ) -> AcceptedRun:
        """Accept a run in a session of its own, which ends with it. Raises as `submit` and `create`."""
        self._refuse_if_closing()
        digest = digest_of(kernel_name or "", request)
        return await self._once(
            principal, request, digest, lambda: self._submit_one_off(principal, request, kernel_name, digest)
        )

    async def get(self, principal: Principal, run_id: str) -> Run:
        """A run, live or from the record, which may have got by now what it could not take. Raises NotFoundError."""
        active = self._runs.get(run_id)
        run = active.snapshot() if active and active.run.recorded else await self._recorder.get_run(run_id)
        if run is None or not principal.reads(run.owner_id):
            raise NotFoundError("There is no run with this id.")
        return run

    async def list_ids(self, principal: Principal, session_id: str) -> list[str]:
        """The ids of a live session's runs, oldest first. Raises as `SessionManager.read`."""
        self._sessions.read(principal, session_id)
        return await self._recorder.list_run_ids(session_id)

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
        self._cancel(active, reason)
        return await active.wait()

    async def cancel_all_of(self, has_ended: Callable[[str], Awaitable[bool]]) -> None:
        """End the runs of the tokens of which ``has_ended`` says so: nobody may ask for them any more."""
        live = [active for active in self._runs.values() if not active.finished]
        ended = {owner for owner in {active.run.owner_id for active in live} if await has_ended(owner)}
        for active in live:
            if active.run.owner_id in ended:
                self._cancel(active, "Its token was revoked or has expired.")

    def _cancel(self, active: ActiveRun, reason: str) -> None:
        active.request_stop(Stop(RunStatus.CANCELLED, reason))
        lane = self._lanes.get(active.run.session_id)
        if lane is not None and lane.take_out(active):
            outcome = stopped(active.stop.result())
            lane.keep(self._background.spawn(self._executor.finish(lane, active, outcome)))

    def interrupt(self, principal: Principal, session_id: str) -> None:
        """Interrupt what the session executes now, if anything. Raises as `SessionManager.get`."""
        self._sessions.get(principal, session_id)
        lane = self._lanes.get(session_id)
        if lane is not None and lane.current is not None:
            lane.current.request_stop(Stop(RunStatus.INTERRUPTED, "The run was interrupted on request."))

    async def restart(self, principal: Principal, session_id: str) -> Session:
        """Give the session a clean kernel; runs that execute or wait end. Raises as `get`, GatewayError."""
        session = self._sessions.get(principal, session_id)
        lane = self._lane(session)
        await asyncio.shield(lane.keep(self._background.spawn(self._executor.restart(lane))))
        return session

    async def replay(self, principal: Principal, session_id: str) -> Replayed:
        """Give the session a clean kernel and execute the code of its successful runs on it again.

        That is not recorded as new runs; outputs are discarded. It stops at the first run that does
        not succeed this time. Runs that execute or wait end first; those that come meanwhile wait.
        The next run is told what was replayed. Raises as `restart`.
        """
        lane = self._lane(self._sessions.get(principal, session_id))
        replaying = self._background.spawn(self._executor.replay(lane, self._limits))
        return await asyncio.shield(lane.keep(replaying))

    async def aclose(self) -> None:
        """Wait for what is still being written. Sessions are closed before."""
        self._closing = True
        self._amendments.flush()
        await self._background.settle()

    def stop_accepting(self) -> None:
        """Refuse new runs from now on."""
        self._closing = True

    # Accepting

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise UnavailableError(
                "The service is shutting down.", retry_after=self._settings.shutdown_timeout
            )

    async def _once(
        self,
        principal: Principal,
        request: RunRequest,
        digest: str,
        accept: Callable[[], Coroutine[Any, Any, AcceptedRun]],
    ) -> AcceptedRun:
        """Accept the run, or find the one that the same idempotency key started before."""
        key = (principal.token_id, request.idempotency_key or "")
        if request.idempotency_key and (known := self._keys.find(key, digest)) is not None:
            return await self._run_of_key(known)
        task = self._background.spawn(accept())
        begun = self._keys.add(key, digest, task) if request.idempotency_key else KnownKey(digest, task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not request.background:
                task.add_done_callback(partial(_stop_abandoned, begun))
            raise

    async def _run_of_key(self, known: KnownKey) -> AcceptedRun:
        if known.task is None:
            return await self._accepted(known.run_id)
        known.waiting += 1
        try:
            return await asyncio.shield(known.task)
        except asyncio.CancelledError:
            known.waiting -= 1
            raise

    async def _accepted(self, run_id: str) -> AcceptedRun:
        active = self._runs.get(run_id)
        if active is not None:
            return active
        run = await self._recorder.get_run(run_id)
        if run is None:
            raise NotFoundError("The run of this Idempotency-Key is not in the record any more.")
        return RecordedRun(run)

    def _submit_at_once(self, session: Session, request: RunRequest, digest: str) -> ActiveRun | None:
        """Accept the run of an idle session, without a wait in which its client could leave; None if there has to be one."""
        if request.idempotency_key or not request.told_at_end or session.active_runs:
            return None
        lane = self._lane(session)
        if lane.accepting.locked():
            return None
        active = self._new_run(lane, request)
        if not self._recorder.accept_at_once(active.run, request_hash=digest):
            return None
        session.active_runs += 1
        session.run_count += 1
        self._enqueue(lane, active)
        return active

    async def _submit(self, session: Session, request: RunRequest, digest: str) -> AcceptedRun:
        if session.active_runs > self._settings.max_queued_runs:
            raise RateLimitedError(
                "The session's queue is full: "
                f"max_queued_runs ({self._settings.max_queued_runs}) wait already.",
                code="queue_full",
                retry_after=1,
            )
        session.active_runs += 1
        accepted: AcceptedRun | None = None
        try:
            lane = self._lane(session)
            async with lane.accepting:
                _refuse_if_ended(session)
                accepted = await self._accept(lane, request, digest)
        finally:
            # One that its key found has been in the queue before.
            new = accepted if isinstance(accepted, ActiveRun) and accepted.run.id not in self._runs else None
            if new is None:
                session.active_runs -= 1
        if new is not None:
            self._enqueue(lane, new)
        return accepted

    async def _submit_one_off(
        self, principal: Principal, request: RunRequest, kernel_name: str | None, digest: str
    ) -> AcceptedRun:
        session_id = None
        if request.idempotency_key:
            run_id, session_id = await find_one_off(
                self._recorder, principal.token_id, request.idempotency_key, digest
            )
            if run_id is not None:
                return await self._accepted(run_id)
        session = await self._sessions.create(
            principal, kernel_name=kernel_name, one_off=True, session_id=session_id
        )
        try:
            active = await self._submit(session, request, digest)
        except BaseException:
            await self._sessions.end(session, "finished")
            raise
        self._background.spawn(self._end_after(session, active))
        return active

    async def _accept(self, lane: Lane, request: RunRequest, digest: str) -> AcceptedRun:
        """Put the run on record, unless its key is there already. The caller holds ``lane.accepting``."""
        session, key = lane.session, request.idempotency_key
        if key and (run_id := await find_recorded(self._recorder, session.id, key, digest)):
            return await self._accepted(run_id)
        active = self._new_run(lane, request)
        await self._recorder.accept_run(
            active.run, idempotency_key=key, request_hash=digest, early=request.told_at_end
        )
        session.run_count += 1
        return active

    def _new_run(self, lane: Lane, request: RunRequest) -> ActiveRun:
        session = lane.session
        session.last_activity_at = now = self._clock()
        run = Run(
            id=run_id_of(session.id, session.run_count + 1),
            session_id=session.id,
            owner_id=session.info.owner_id,
            status=RunStatus.QUEUED,
            code=request.code,
            created_at=now,
            timeout=request.timeout or session.info.timeout,
            tool_call_id=request.tool_call_id,
        )
        amendments = self._amendments
        active = ActiveRun(
            run, self._limits, lane.displays, on_amend=amendments.update_display, on_late=amendments.late
        )
        active.clients = int(request.background)
        return active

    def _enqueue(self, lane: Lane, active: ActiveRun) -> None:
        self._runs[active.run.id] = self._reachable[active.run.id] = active
        self._forget_old_runs()
        if lane.stop is not None:
            active.request_stop(lane.stop)
        lane.queue.append(active)
        lane.keep(self._background.spawn(self._executor.work(lane)))

    def _lane(self, session: Session) -> Lane:
        """The session's lane. Raises SessionGoneError, UnavailableError when it has ended."""
        _refuse_if_ended(session)
        return self._lanes.setdefault(session.id, Lane(session))

    def _run_ended(self, run: Run) -> None:
        if (active := self._runs.get(run.id)) is not None:
            self._finished_bytes += active.log.size
        asyncio.get_running_loop().call_soon(self._observe, run)  # after those who wait for the run were told

    def _forget_old_runs(self) -> None:
        """Keep the newest finished runs; the record has the others."""
        old: list[str] = []
        for run_id, active in self._runs.items():
            if len(self._runs) - len(old) <= KEPT_RUNS and self._finished_bytes <= KEPT_BYTES:
                break
            if active.finished and active.late_timer is None:
                old.append(run_id)
                self._finished_bytes -= active.log.size
        for run_id in old:
            del self._runs[run_id]

    # Ending

    async def _end_after(self, session: Session, active: AcceptedRun) -> None:
        await active.wait()
        await self._sessions.end(session, "finished")

    async def _session_ends(self, session: Session, reason: str) -> None:
        lane = self._lanes.get(session.id)
        if lane is not None:
            stop = _ENDS.get(reason, _OTHER_END)
            if reason == "shutdown" and self._sessions.kernels.outlive_service:
                stop = replace(stop, gentle=True)  # the kernel goes on, its code must not
            await lane.end(stop)
            self._lanes.pop(session.id, None)


def _refuse_if_ended(session: Session) -> None:
    if session.ended is not None:
        raise SessionGoneError(
            f"The session has ended ({session.ended}); make a new one. Its record can still be read.",
            code="session_deleted" if session.ended == "deleted" else "session_expired",
        )
    if session.closed:
        raise UnavailableError("The service is shutting down.", retry_after=1)


def _stop_abandoned(known: KnownKey, task: "asyncio.Task[AcceptedRun]") -> None:
    """End a run whose client went away before it was told that the run is accepted."""
    if known.waiting:
        return
    accepted = None if task.cancelled() or task.exception() else task.result()
    if isinstance(accepted, ActiveRun):
        accepted.request_stop(Stop(RunStatus.CANCELLED, "The client went away before the run began."))
