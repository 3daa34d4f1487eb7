"""One execute request under one deadline: wait, interrupt, give up. The only place that interrupts."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from interpreter.errors import GatewayError, UnavailableError
from interpreter.kernels.kernel import Execution, Kernel, KernelDeath, KernelDiedError
from interpreter.models import RunStatus, in_seconds
from interpreter.runs.active import ActiveRun, Stop
from interpreter.runs.exit_codes import failed_commands

INTERRUPT_TIMEOUT = 2.0  # seconds for the gateway to take an interrupt
INTERRUPT_INTERVAL = 1.0  # seconds between two interrupts; faster ones garble the traceback
LAST_INTERRUPT = 0.05  # seconds before the end after which none begins: it would meet the restarted kernel
SETTLE_TIMEOUT = 2.0  # seconds, at least, for the kernel to show after a stop that it takes code again
SOON = 1.0  # seconds after the sending from which on it is looked whether the kernel and its messages are still there
WAKE_DELAY = 0.1  # seconds after which an interrupted `await` needs a message to notice

# Says nothing in most languages, and is an error in the others. Of empty code some kernels say that it is done
# without a look at what does their work: a shell that goes on with what was stopped.
COMMENT = "#"
# Of the kernels' extension (gateway_config/ipython); kernels without it answer with an error.
END_PROCESSES = "__import__('interpreter_processes').end_processes()"

SOCKET_LOST = "The connection to the kernel was lost for a while; some output may be missing."
NEVER_BEGAN = "The connection to the kernel was lost before it took the code; the code may not have run."
BROKEN = "The kernel could not take the code: earlier code broke it. "
HALF_AN_END = "The kernel did not tell the end of the run as it should; some output may be missing."


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an execute request ended and what has to become of its kernel."""

    status: RunStatus
    notices: tuple[str, ...] = ()
    death: KernelDeath | None = None
    kernel_is_stuck: bool = False
    """The code would not stop: only a restart of the kernel ends it."""
    kernel_is_broken: bool = False
    """The kernel does not take code any more: only a restart mends it."""
    state_lost: bool = False
    """The kernel's state is gone, or will be at once."""

    @property
    def lost(self) -> bool:
        return self.state_lost or self.kernel_is_stuck or self.kernel_is_broken or self.death is not None


def stopped(stop: Stop) -> Outcome:
    """The outcome of a run that was stopped before it began."""
    return Outcome(stop.status, (stop.sentence,))


class _Attempt:
    """The sending of a run's code, and the wait for its end."""

    def __init__(self, active: ActiveRun, kernel: Kernel) -> None:
        self.execution: Execution | None = None
        self.task: asyncio.Task[None] | None = None
        self._active = active
        self._kernel = kernel

    def begin(self) -> None:
        """Send the code, if it can be sent now."""
        if not self._kernel.dead:
            self._send()

    async def ends_within(self, seconds: float) -> bool:
        """Whether the code was sent, and all of its end came so soon. Most runs need no task."""
        if self.execution is None:
            return False
        return await self.execution.is_over_within(seconds, unless=self._active.stop)

    def go_on(self) -> "asyncio.Task[None]":
        """The task that does what is left."""
        self.task = asyncio.create_task(self._run(), name=f"execution {self._active.run.id}")
        return self.task

    async def _run(self) -> None:
        while self.execution is None:
            await self._kernel.connected()
            self._send()
        await self.execution.wait()

    def _send(self) -> None:
        # A socket that is lost just now refuses, and the wait for one begins anew.
        with contextlib.suppress(UnavailableError):
            self.execution = self._kernel.execute(self._active.run.code, self._active.receive)

    async def aclose(self) -> None:
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})
        self.task = (
            None  # whose error holds the frame of `_run`, and so this: a cycle with all of the run in it
        )


async def execute(
    active: ActiveRun,
    kernel: Kernel,
    *,
    timeout: float,
    grace: float,
    on_sent: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run the code to its end, at most ``timeout`` plus ``grace`` seconds.

    ``on_sent`` is called while the kernel begins with it already, if it is there and the run is not stopped yet.
    """
    if active.stop.done():
        return stopped(active.stop.result())
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    attempt = _Attempt(active, kernel)
    attempt.begin()
    on_sent()
    if await attempt.ends_within(min(timeout, SOON)):
        return _ended(active, attempt)
    try:
        done = attempt.go_on()
        left = max(0.0, end - loop.time())
        waited: set[asyncio.Future[Any]] = {done, active.stop}
        await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            return _ended(active, attempt)
        stop = active.stop.result() if active.stop.done() else _timeout_stop(timeout)
        return await _stop(kernel, attempt, done, stop, grace)
    finally:
        await attempt.aclose()


async def _stop(
    kernel: Kernel, attempt: _Attempt, done: "asyncio.Task[None]", stop: Stop, grace: float
) -> Outcome:
    if attempt.execution is None:
        return stopped(stop)
    if not stop.gentle:
        kernel.abandon(attempt.execution)
        return Outcome(stop.status, (stop.sentence,), state_lost=stop.restarts)
    end = asyncio.get_running_loop().time() + grace
    over = await _interrupt(kernel, done, end)
    if over and isinstance(error := done.exception(), KernelDiedError):
        return Outcome(stop.status, (stop.sentence, error.death.sentence), death=error.death)
    if over and await _settles(kernel, attempt.execution, end):
        return Outcome(stop.status, (stop.sentence,))
    kernel.abandon(attempt.execution)
    return Outcome(stop.status, (stop.sentence,), kernel_is_stuck=True)


async def _settles(kernel: Kernel, execution: Execution, end: float) -> bool:
    """Have the kernel end what the code has started and an interrupt does not reach; whether it takes code again.

    That it is idle does not say so: what does its work may go on with the code that was stopped. If the kernel
    dies of it, the next run tells.
    """
    told = execution.reply is not None or execution.reconnects > 0
    left = end - asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(max(left, SETTLE_TIMEOUT)):
            answer = await kernel.evaluate(COMMENT, {"ended": END_PROCESSES})
    except TimeoutError:
        return False
    except (KernelDiedError, UnavailableError):
        return told
    return told or _was_evaluated(answer, "ended")


def _was_evaluated(answer: Mapping[str, Any], name: str) -> bool:
    """Whether an expression was evaluated, well or not: where the code ran nothing else runs then.

    It makes up for a missing reply. An interrupt that meets the end of the code breaks off the reply instead.
    """
    values = answer.get("user_expressions")
    return isinstance(values, Mapping) and isinstance(values.get(name), Mapping)


def _timeout_stop(timeout: float) -> Stop:
    sentence = f"The run took longer than its timeout of {in_seconds(timeout)} and was interrupted."
    return Stop(RunStatus.TIMEOUT, sentence)


def _ended(active: ActiveRun, attempt: _Attempt) -> Outcome:
    error = attempt.task.exception() if attempt.task is not None else None
    if isinstance(error, KernelDiedError):
        return _died(error.death)
    if error is not None:
        raise error
    if active.folder.ask_exit:
        return _died(KernelDeath("The kernel ended because the code called exit() or quit()."))
    execution = attempt.execution
    assert execution is not None
    silent = execution.reply is None and execution.incomplete and not execution.reconnects
    if silent and not active.folder.folded().outputs:
        return Outcome(RunStatus.ABORTED, (BROKEN.strip(),), kernel_is_broken=True)
    return Outcome(_status_of(execution.reply), _notices(execution))


def _notices(execution: Execution) -> tuple[str, ...]:
    if not execution.incomplete:
        failed = failed_commands(execution.reply)
        return (SOCKET_LOST, *failed) if execution.lost_messages else failed
    if not execution.reconnects:
        return (HALF_AN_END,)
    return (SOCKET_LOST,) if execution.begun else (NEVER_BEGAN,)


def _status_of(reply: Mapping[str, Any] | None) -> RunStatus:
    if reply is None:
        return RunStatus.ABORTED
    statuses = {"ok": RunStatus.OK, "error": RunStatus.ERROR}
    return statuses.get(str(reply.get("status")), RunStatus.ABORTED)


def _died(death: KernelDeath) -> Outcome:
    return Outcome(RunStatus.KERNEL_DIED, (death.sentence,), death=death)


async def _interrupt(kernel: Kernel, done: "asyncio.Task[None]", end: float) -> bool:
    """Interrupt until the code ends; whether it did before ``end``, on the loop's clock.

    One interrupt is not always enough: code may swallow it, and a top-level ``await`` sleeps on until
    a message wakes the kernel's loop.
    """
    loop = asyncio.get_running_loop()
    while not done.done() and (left := end - loop.time()) > LAST_INTERRUPT:
        with contextlib.suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(min(INTERRUPT_TIMEOUT, left)):
                await kernel.interrupt()
        await asyncio.wait({done}, timeout=min(WAKE_DELAY, max(end - loop.time(), 0)))
        if not done.done():
            kernel.wake()
            await asyncio.wait({done}, timeout=min(INTERRUPT_INTERVAL, max(end - loop.time(), 0)))
    return done.done()
