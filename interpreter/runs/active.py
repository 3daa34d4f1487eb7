"""A run that is under way: its snapshot, its events, and the wish to stop it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from interpreter.events import COMPLETED, EventLog, RunEvent, replay_events
from interpreter.messages import Message
from interpreter.models import Run, RunStatus
from interpreter.outputs import Bundle, Displays, OutputFolder, OutputLimits


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run is to end before its code does, and which status it then has."""

    status: RunStatus
    sentence: str
    gentle: bool = True
    """Whether the code is interrupted and may clean up; otherwise its kernel goes anyway."""
    restarts: bool = False
    """Whether the kernel is restarted, so that the run's session loses its state."""


class ActiveRun:
    """One accepted run, from the queue to its end and, for late output, a while beyond."""

    def __init__(
        self,
        run: Run,
        limits: OutputLimits,
        displays: Displays,
        *,
        on_amend: Callable[[str, int, Bundle], None],
        on_late: "Callable[[ActiveRun], None]",
    ) -> None:
        self.run = run
        self.log = EventLog()
        self.folder = OutputFolder(
            run.id, limits, displays, code=run.code, on_event=self.log.append, on_amend=on_amend
        )
        self.clients = 0
        """How many wait for the end, who count as one more when the run shall go on without any."""
        self._on_late = on_late
        self.late_delay = 0.0
        self.late_timer: asyncio.TimerHandle | None = None
        self._stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self._finished = asyncio.Event()

    @property
    def stop(self) -> "asyncio.Future[Stop]":
        """Done once somebody wants the run to end."""
        return self._stop

    @property
    def finished(self) -> bool:
        return self._finished.is_set()

    def receive(self, message: Message) -> None:
        """Take a message of the kernel that belongs to this run, also after its end."""
        self.folder.feed(message)
        if self.finished:
            self._on_late(self)

    def request_stop(self, stop: Stop) -> None:
        """Ask the run to end; the first wish counts."""
        if not self._stop.done() and not self.finished:
            self._stop.set_result(stop)

    def update(self, **changes: Any) -> None:
        """Change the snapshot that readers see."""
        self.run = replace(self.run, **changes)

    def snapshot(self) -> Run:
        """The run as it is now, with the outputs that have come so far, late ones too."""
        if self.finished:
            # How the run ended is settled; late output changes only what is shown.
            error, late = self.run.folded.error, self.late_timer is not None
            return replace(self.run, folded=replace(self.folder.folded(), error=error)) if late else self.run
        return replace(self.run, folded=self.folder.folded())

    def begin(self, at: datetime) -> None:
        """It is not in the queue any more."""
        self.update(status=RunStatus.RUNNING, started_at=at)
        self.log.append("run.started", self.run)

    def complete(self, run: Run) -> None:
        """The final word: readers and followers get it at once."""
        self.run = run
        self._finished.set()
        self.log.append(COMPLETED, run)

    async def wait(self) -> Run:
        """The run when it has ended."""
        await self._finished.wait()
        return self.run

    def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """The run's events above ``after``, as they come."""
        return self.log.follow(after)


class RecordedRun:
    """A run that has ended and is remembered by the record only; followed like an active one."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.clients = 0

    async def wait(self) -> Run:
        """The run."""
        return self.run

    def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """The run's events above ``after``, one for each output."""
        return replay_events(self.run, after)
