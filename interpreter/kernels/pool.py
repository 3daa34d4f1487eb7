"""Kernels that are ready before they are asked for.

Each one waits under the id of the session that will get it, so that its working directory is already
that session's own. A kernel is handed out once and never comes back.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from interpreter.errors import InterpreterError
from interpreter.kernels.kernel import Kernel
from interpreter.models import new_id

log = logging.getLogger(__name__)

DEMAND_WINDOW = 300.0  # seconds for which a hand-out counts as demand
RETRY_DELAY = 5.0  # seconds after a failed start
LOOK_INTERVAL = 10.0  # seconds between two looks for kernels that died or grew old


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """``size``: most kernels kept per kernelspec. ``minimum``: kept of the default one without demand.

    ``refill_interval``: seconds between two starts. ``max_age``: seconds after which one is replaced.
    """

    size: int
    minimum: int
    refill_interval: float
    max_age: float


@dataclass(frozen=True, slots=True)
class ReadyKernel:
    """A kernel that waits for the session with the id ``session_id``."""

    session_id: str
    kernel: Kernel
    started: float


StartKernel = Callable[[str, str], Awaitable[Kernel]]
"""``(kernel_name, session_id)`` → a kernel that answers, in that session's fresh workspace."""
DropWorkspace = Callable[[str], Awaitable[None]]


class KernelPool:
    """Keeps kernels ready; adapts their number to the demand of the last minutes.

    With a size of zero nothing is started and no task runs.
    """

    def __init__(
        self,
        limits: PoolLimits,
        *,
        default_kernel_name: str,
        start: StartKernel,
        drop_workspace: DropWorkspace,
        now: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._default = default_kernel_name
        self._start_kernel = start
        self._drop_workspace = drop_workspace
        self._now = now
        self._ready: defaultdict[str, deque[ReadyKernel]] = defaultdict(deque)
        self._taken: defaultdict[str, deque[float]] = defaultdict(deque)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to fill the pool."""
        if self._limits.size:
            self._task = asyncio.create_task(self._keep_filled(), name="kernel pool")

    async def aclose(self) -> None:
        """Stop filling and end the kernels that nobody took."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        waiting = [ready for queue in self._ready.values() for ready in queue]
        self._ready.clear()
        await asyncio.gather(*(self._discard(ready) for ready in waiting))

    def take(self, kernel_name: str) -> ReadyKernel | None:
        """A ready kernel, which now belongs to the caller; None when none is ready."""
        if not self._limits.size:
            return None
        self._taken[kernel_name].append(self._now())
        self._changed.set()
        queue = self._ready[kernel_name]
        while queue:
            ready = queue.popleft()
            if not ready.kernel.dead:
                return ready
        return None

    def count(self) -> int:
        """How many kernels are ready."""
        return sum(len(queue) for queue in self._ready.values())

    def wanted(self, kernel_name: str) -> int:
        """How many should be ready: as many as were taken lately, between minimum and size."""
        taken, oldest = self._taken[kernel_name], self._now() - DEMAND_WINDOW
        while taken and taken[0] < oldest:
            taken.popleft()
        minimum = self._limits.minimum if kernel_name == self._default else 0
        return min(max(len(taken), minimum), self._limits.size)

    async def _keep_filled(self) -> None:
        while True:
            await self._discard_unfit()
            missing = next((n for n in self._names() if len(self._ready[n]) < self.wanted(n)), None)
            if missing is None:
                await self._wait(LOOK_INTERVAL)
            else:
                started = await self._add(missing)
                await asyncio.sleep(self._limits.refill_interval if started else RETRY_DELAY)

    def _names(self) -> list[str]:
        return list(dict.fromkeys([self._default, *self._taken]))

    async def _wait(self, seconds: float) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _add(self, kernel_name: str) -> bool:
        session_id = new_id()
        try:
            kernel = await self._start_kernel(kernel_name, session_id)
        except InterpreterError as error:
            log.warning("No kernel for the pool: %s", error.message)
            self._taken.pop(kernel_name, None)
            return False
        self._ready[kernel_name].append(ReadyKernel(session_id, kernel, self._now()))
        return True

    async def _discard_unfit(self) -> None:
        """End what died, grew old, or is more than is wanted now."""
        for name, queue in list(self._ready.items()):
            oldest, wanted = self._now() - self._limits.max_age, self.wanted(name)
            unfit = [ready for ready in queue if ready.kernel.dead or ready.started < oldest]
            fit = [ready for ready in queue if ready not in unfit]
            self._ready[name] = deque(fit[:wanted])
            for ready in [*unfit, *fit[wanted:]]:
                await self._discard(ready)

    async def _discard(self, ready: ReadyKernel) -> None:
        await ready.kernel.shutdown()
        await self._drop_workspace(ready.session_id)
