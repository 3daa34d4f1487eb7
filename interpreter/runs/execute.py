"""One execute request under one deadline: wait, interrupt, give up. The only place that interrupts."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interpreter.errors import GatewayError, UnavailableError
from interpreter.kernels.kernel import Execution, Kernel, KernelDeath, KernelDiedError
from interpreter.models import RunStatus
from interpreter.runs.active import ActiveRun, Stop

INTERRUPT_TIMEOUT = 2.0  # seconds for the gateway to take an interrupt
INTERRUPT_INTERVAL = 1.0  # seconds between two interrupts; faster ones garble the traceback
WAKE_DELAY = 0.1  # seconds after which an interrupted `await` needs a message to notice


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an execute request ended and what has to become of its kernel."""

    status: RunStatus
    notices: tuple[str, ...] = ()
    death: KernelDeath | None = None
    kernel_is_stuck: bool = False
    """The code would not stop: only a restart of the kernel ends it."""


async def execute(active: ActiveRun, kernel: Kernel, *, timeout: float, grace: float) -> Outcome:
    """Run the code to its end, at most ``timeout`` plus ``grace`` seconds."""
    try:
        execution = kernel.execute(active.run.code, active.receive)
    except UnavailableError as error:
        return Outcome(RunStatus.ABORTED, (error.message,))
    done = asyncio.create_task(execution.wait(), name=f"execution {active.run.id}")
    try:
        waited: set[asyncio.Future[Any]] = {done, active.stop}
        await asyncio.wait(waited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            return _ended(active, execution, done)
        stop = active.stop.result() if active.stop.done() else _timeout_stop(timeout)
        if stop.gentle and not await _interrupt(kernel, done, grace):
            return Outcome(stop.status, (stop.sentence,), kernel_is_stuck=True)
        if done.done() and isinstance(failure := done.exception(), KernelDiedError):
            return _died(failure.death)
        return Outcome(stop.status, (stop.sentence,))
    finally:
        done.cancel()
        with contextlib.suppress(asyncio.CancelledError, KernelDiedError):
            await done


def _timeout_stop(timeout: float) -> Stop:
    sentence = f"The run took longer than its timeout of {timeout:g} seconds and was interrupted."
    return Stop(RunStatus.TIMEOUT, sentence)


def _ended(active: ActiveRun, execution: Execution, done: "asyncio.Task[None]") -> Outcome:
    error = done.exception()
    if isinstance(error, KernelDiedError):
        return _died(error.death)
    if error is not None:
        raise error
    if active.folder.ask_exit:
        return _died(KernelDeath("The kernel ended because the code called exit() or quit()."))
    notices = (
        ("The connection to the kernel was lost for a while; some output may be missing.",)
        if execution.incomplete
        else ()
    )
    return Outcome(_status_of(execution.reply), notices)


def _status_of(reply: Mapping[str, Any] | None) -> RunStatus:
    if reply is None:
        return RunStatus.ABORTED
    statuses = {"ok": RunStatus.OK, "error": RunStatus.ERROR}
    return statuses.get(str(reply.get("status")), RunStatus.ABORTED)


def _died(death: KernelDeath) -> Outcome:
    return Outcome(RunStatus.KERNEL_DIED, death=death)


async def _interrupt(kernel: Kernel, done: "asyncio.Task[None]", grace: float) -> bool:
    """Interrupt until the code ends; whether it did within ``grace`` seconds.

    One interrupt is not always enough: code may swallow it, and a top-level ``await`` sleeps on until
    a message wakes the kernel's loop.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + grace
    while not done.done() and (left := end - loop.time()) > 0:
        with contextlib.suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(min(INTERRUPT_TIMEOUT, left)):
                await kernel.interrupt()
        await asyncio.wait({done}, timeout=min(WAKE_DELAY, max(end - loop.time(), 0)))
        if not done.done():
            kernel.wake()
            await asyncio.wait({done}, timeout=min(INTERRUPT_INTERVAL, max(end - loop.time(), 0)))
    return done.done()
