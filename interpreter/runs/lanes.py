"""The queue of one session: one run executes, the others wait in order."""

import asyncio
from collections import deque
from typing import Any, TypeVar

from interpreter.outputs import Displays
from interpreter.runs.active import ActiveRun, Stop
from interpreter.sessions import Session

T = TypeVar("T")


class Lane:
    """The runs of one session, from acceptance to their end."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.queue: deque[ActiveRun] = deque()
        self.current: ActiveRun | None = None
        self.displays = Displays()
        self.accepting = asyncio.Lock()
        """Held while a run is put on record, so that numbers and queue have one order."""
        self.turn = asyncio.Lock()
        """Held by who uses the kernel."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """What works off the queue, and what ends runs that were taken out of it."""
        self.stop: Stop | None = None
        """Set when the session ends: no more runs."""

    @property
    def runs(self) -> list[ActiveRun]:
        """The run that executes, then those that wait."""
        return [*([self.current] if self.current else []), *self.queue]

    def keep(self, task: "asyncio.Task[T]") -> "asyncio.Task[T]":
        """Hold a task of this lane until it ends, and give it back."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def take_out(self, active: ActiveRun) -> bool:
        """Remove a run that still waits; whether it did."""
        if active not in self.queue:
            return False
        self.queue.remove(active)
        return True

    def stop_all(self, stop: Stop) -> list[ActiveRun]:
        """Ask all runs to end, and give them."""
        runs = self.runs
        for active in runs:
            active.request_stop(stop)
        return runs

    async def end(self, stop: Stop) -> None:
        """End all runs, those too that are being accepted; returns when they have ended."""
        self.stop = stop
        self.stop_all(stop)
        async with self.accepting:
            pass
        while self.tasks:
            await asyncio.wait(set(self.tasks))
