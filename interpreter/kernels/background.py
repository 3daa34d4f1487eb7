"""Work that nobody waits for at the time, and that its owner waits for at the end."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from interpreter.errors import InterpreterError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Background:
    """Tasks that go on by themselves; their owner calls `settle` before it ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run ``work``; a failure that is not told to anybody is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def settle(self, timeout: float | None = None) -> None:
        """Return when all of them have ended, those that they started meanwhile too.

        What has not ended after ``timeout`` seconds is cancelled.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while self._tasks:
            left = None if deadline is None else max(deadline - loop.time(), 0)
            _, late = await asyncio.wait(set(self._tasks), timeout=left)
            for task in late:
                task.cancel()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, InterpreterError):
            log.error("Work in the background failed.", exc_info=error)
