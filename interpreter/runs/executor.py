"""Executes the runs of a lane: one at a time, each on a good kernel, each to a recorded end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from interpreter.errors import InterpreterError
from interpreter.kernel_files import SessionFiles
from interpreter.kernels.background import Background
from interpreter.kernels.kernel import Kernel
from interpreter.models import Run, RunError, RunStatus
from interpreter.outputs import OutputLimits
from interpreter.record import Recorder
from interpreter.runs.active import ActiveRun, Stop
from interpreter.runs.amendments import Amendments
from interpreter.runs.execute import BROKEN, Outcome, execute, stopped
from interpreter.runs.lanes import Lane
from interpreter.runs.replay import Replayed, replay
from interpreter.sessions import Session, SessionKernels
from interpreter.settings import Settings
from interpreter.workspace import Files, Snapshot, changes, unlisted

STATE_LOST = "The kernel was restarted: earlier variables and imports are gone."
STUCK = "The run before did not stop when it was interrupted. "

_RESTART = Stop(RunStatus.INTERRUPTED, "The kernel was restarted on request.", gentle=False, restarts=True)


class Executor:
    """What happens to accepted runs. ``clock`` gives aware UTC datetimes."""

    def __init__(
        self,
        settings: Settings,
        kernels: SessionKernels,
        recorder: Recorder,
        workspaces: SessionFiles,
        *,
        amendments: Amendments,
        background: Background,
        clock: Callable[[], datetime],
        observe: Callable[[Run], None],
    ) -> None:
        self._settings = settings
        self._kernels = kernels
        self._recorder = recorder
        self._workspaces = workspaces
        self._amendments = amendments
        self._background = background
        self._clock = clock
        self._observe = observe

    async def work(self, lane: Lane) -> None:
        """Take the next run from the queue and bring it to its end, when it is its turn."""
        async with lane.turn:
            if not lane.queue:
                return
            lane.current = active = lane.queue.popleft()
            try:
                await self._run_one(lane, active)
            finally:
                if not active.finished:  # a bug of ours must not leave a run without an end
                    await self.finish(lane, active, Outcome(RunStatus.ABORTED, ("The service failed.",)))
                lane.current = None

    async def _run_one(self, lane: Lane, active: ActiveRun) -> None:
        session = lane.session
        try:
            kernel = None if active.stop.done() else await self._kernel_for(session, active)
        except InterpreterError as error:
            failure = RunError("KernelStartError", error.message)
            active.update(folded=replace(active.run.folded, error=failure))
            await self.finish(lane, active, Outcome(RunStatus.KERNEL_DIED, (error.message,)))
            return
        if kernel is None:
            await self.finish(lane, active, stopped(active.stop.result()))
            return
        files = self._workspaces.files(session)
        before = files.glance() or await self._snapshot_before(files, active)
        if before is None:
            await self.finish(lane, active, stopped(active.stop.result()))
            return
        fresh, session.fresh_kernel_reason = session.fresh_kernel_reason, None
        if fresh:
            lane.displays.clear()
            active.update(kernel_restarted=True, notices=(fresh,))
        outcome = await execute(
            active,
            kernel,
            timeout=active.run.timeout,
            grace=self._settings.interrupt_grace,
            on_sent=partial(active.begin, self._clock()),
        )
        self._look_after_kernel(session, kernel, outcome)
        after = files.glance() or await files.snapshot()
        changed, notices = changes(session.id, before, after), unlisted(before, after)
        if changed or notices:
            active.update(files=changed, notices=active.run.notices + notices)
        await self.finish(lane, active, outcome)

    async def _snapshot_before(self, files: Files, active: ActiveRun) -> Snapshot | None:
        """The files before the run, or None when it was stopped meanwhile; a kernel may be asked for them."""
        taking = self._background.spawn(files.snapshot())
        waited: set[asyncio.Future[Any]] = {taking, active.stop}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not taking.done():
            taking.cancel()
            return None
        return taking.result()

    async def _kernel_for(self, session: Session, active: ActiveRun) -> Kernel | None:
        """The session's kernel, or None when the run was stopped while it started."""
        if session.kernel is not None and not session.kernel.dead:
            return session.kernel
        starting = self._background.spawn(self._kernels.ensure(session))
        waited: set[asyncio.Future[Any]] = {starting, active.stop}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if active.stop.done() and not starting.done():
            return None
        return starting.result()

    def _look_after_kernel(self, session: Session, kernel: Kernel, outcome: Outcome) -> None:
        """Have a good kernel ready for the next run, when this one spoiled it."""
        if session.closed:
            return
        if outcome.kernel_is_stuck:
            self._kernels.renew(session, STUCK + STATE_LOST)
        elif outcome.kernel_is_broken:
            self._kernels.renew(session, BROKEN + STATE_LOST)
        elif outcome.death is not None:
            if session.kernel is kernel:
                self._kernels.discard(session, f"{outcome.death.sentence} {STATE_LOST}")
            if not session.info.one_off:
                self._kernels.prepare(session)

    async def finish(self, lane: Lane, active: ActiveRun, outcome: Outcome) -> None:
        """Fold, record, tell. In this order: who is told has it in the record."""
        active.folder.close()
        now, run = self._clock(), active.run
        started = run.started_at
        folded = active.folder.folded() if started else run.folded
        if outcome.death is not None and outcome.status is RunStatus.KERNEL_DIED:
            folded = replace(folded, error=folded.error or RunError("KernelDied", outcome.death.sentence))
        run = replace(
            run,
            status=outcome.status,
            ended_at=now,
            duration_ms=round((now - started).total_seconds() * 1000) if started else 0,
            folded=folded,
            kernel_restarted=run.kernel_restarted or outcome.lost,
            notices=run.notices + outcome.notices + ((STATE_LOST,) if outcome.lost else ()),
        )
        await self._amendments.record_updates(run.session_id)
        late = active.folder.late_indexes
        complete = partial(self._complete, lane, active, run)
        complete(await self._recorder.finish_run(run, late=late, on_disk=partial(complete, True)))
        if active.folder.late_indexes:
            self._amendments.late(active)

    def _complete(self, lane: Lane, active: ActiveRun, run: Run, recorded: bool) -> None:
        """Tell, unless it was told: the notebook may still be on its way."""
        if active.finished:
            return
        lane.session.active_runs -= 1
        lane.session.last_activity_at = self._clock()
        active.complete(run if recorded else replace(run, recorded=False))
        self._observe(active.run)

    async def restart(self, lane: Lane) -> None:
        """End what executes or waits, then give the session a clean kernel."""
        stopping = lane.stop_all(_RESTART)
        async with lane.turn:  # what was stopped is over, what comes later waits
            await self._renew(lane)
        for active in stopping:
            await active.wait()

    async def replay(self, lane: Lane, limits: OutputLimits) -> Replayed:
        """Restart, then execute again what succeeded before."""
        lane.stop_all(_RESTART)
        lane.session.active_runs += 1
        try:
            async with lane.turn:
                kernel = await self._renew(lane)
                done = await replay(lane, kernel, self._recorder, limits, self._settings)
                if done.kernel_lost and not lane.session.closed:
                    await self._renew(lane)
                lane.session.fresh_kernel_reason = done.sentence
                return done
        finally:
            lane.session.active_runs -= 1
            lane.session.last_activity_at = self._clock()

    async def _renew(self, lane: Lane) -> Kernel:
        kernel = await self._kernels.renew(lane.session, STATE_LOST)
        lane.displays.clear()
        lane.session.fresh_kernel_reason = None
        return kernel
