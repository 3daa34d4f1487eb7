"""A kernel behind the gateway: execute requests, interrupt, restart, death.

This is mechanism only: who may run and when to interrupt is decided in ``runs.py``.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from interpreter.errors import GatewayError, InterpreterError, KernelStartTimeoutError, UnavailableError
from interpreter.kernels.channels import KernelChannels
from interpreter.kernels.gateway import Gateway
from interpreter.messages import Message, execute_request, kernel_info_request, new_msg_id, silent_request

Listener = Callable[[Message], None]

RESYNC_INTERVAL = 0.3  # seconds between two kernel_info requests while waiting for a kernel
COMPLETION_GRACE = 1.0  # seconds between the reply and the idle (either first) before we ask
SHUTDOWN_WAIT = 10.0  # seconds that a DELETE may take; stubborn kernels need 5
KEPT_LISTENERS = 8  # runs of the past whose late output still finds them


@dataclass(frozen=True, slots=True)
class KernelDeath:
    """Why a kernel is gone, as far as it can be known."""

    sentence: str
    exit_code: int | None = None
    signal: str | None = None


class KernelDiedError(Exception):
    """The kernel ended while something waited for it."""

    def __init__(self, death: KernelDeath) -> None:
        super().__init__(death.sentence)
        self.death = death


class Execution:
    """One execute request in flight. Done when reply and idle were both seen, in either order."""

    def __init__(self, kernel: "Kernel", msg_id: str, listener: Listener) -> None:
        self.msg_id = msg_id
        self.reply: Mapping[str, Any] | None = None
        self.incomplete = False
        self._kernel = kernel
        self._listener = listener
        self._idle = False
        self._half = asyncio.Event()
        self._full = asyncio.Event()

    def receive(self, message: Message) -> None:
        """Take a message whose parent is this request."""
        if message.msg_type == "execute_reply":
            if self.reply is None:
                self.reply = message.content
                self._listener(message)
        elif message.execution_state == "idle":
            # A forked copy of the kernel says idle too; its message ids hold another process id.
            if self._kernel.is_origin(message):
                self._idle = True
        elif message.channel == "iopub":
            self._listener(message)
        if self.reply is not None or self._idle:
            self._half.set()
        if self.done:
            self._full.set()

    async def wait(self) -> None:
        """Until it is done.

        Raises KernelDiedError. When one half is lost on the way, `incomplete` is set and it counts
        as done: a request that the kernel answers after ours tells.
        """
        await self._half.wait()
        if not self._full.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COMPLETION_GRACE):
                    await self._full.wait()
        if not self.done:
            self._kernel.raise_if_dead()
            await self._kernel.resync()
            self.finish_incomplete()

    def finish_incomplete(self) -> None:
        """The kernel is past this request, and what is missing will not come."""
        if not self.done:
            self.incomplete = True
            self.wake()

    def wake(self) -> None:
        """Let `wait` look again: the request is over, or the kernel is dead."""
        self._half.set()
        self._full.set()

    @property
    def done(self) -> bool:
        """Whether all has come, or nothing more will while the kernel lives."""
        return self.incomplete or (self.reply is not None and self._idle)


class Kernel:
    """One running kernel and the websocket to it. Made by `start` or `attach`."""

    def __init__(self, gateway: Gateway, kernel_id: str, name: str) -> None:
        self.id = kernel_id
        self.name = name
        self.death: KernelDeath | None = None
        self._gateway = gateway
        self._restarting = False
        self._origin: str | None = None
        self._probes: dict[str, asyncio.Event] = {}
        self._replies: dict[str, asyncio.Future[Message]] = {}
        self._executions: OrderedDict[str, Execution] = OrderedDict()
        self._current: Execution | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_death: Callable[[KernelDeath], None] = lambda death: None
        self._channels = KernelChannels(
            gateway,
            kernel_id,
            on_message=self._receive,
            on_reconnect=self._reconnected,
            on_gone=self._gone,
        )

    @classmethod
    async def start(
        cls,
        gateway: Gateway,
        name: str,
        *,
        timeout: float,
        path: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "Kernel":
        """Start a kernel and wait until it answers, at most ``timeout`` seconds.

        Raises KernelStartTimeoutError, GatewayError, InvalidRequestError (no such kernelspec). A
        kernel that did not come up is deleted.
        """
        started = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                kernel_id = await gateway.start_kernel(name, path=path, env=env)
        except TimeoutError as error:
            raise _start_timeout(timeout) from error
        left = timeout - (time.monotonic() - started)
        return await cls.attach(gateway, kernel_id, name, timeout=left, of=timeout)

    @classmethod
    async def attach(
        cls, gateway: Gateway, kernel_id: str, name: str, *, timeout: float, of: float | None = None
    ) -> "Kernel":
        """Connect to a kernel that was started before; it is deleted when that fails."""
        kernel = cls(gateway, kernel_id, name)
        try:
            async with asyncio.timeout(timeout):
                await kernel._channels.connect()
                await kernel.resync()
        except TimeoutError as error:
            await kernel.shutdown()
            raise _start_timeout(of or timeout) from error
        except KernelDiedError as error:
            await kernel.shutdown()
            raise GatewayError(f"The kernel ended while it started. {error.death.sentence}") from error
        except BaseException:
            await asyncio.shield(kernel.shutdown())
            raise
        return kernel

    def on_death(self, callback: Callable[[KernelDeath], None]) -> None:
        """Call ``callback`` once if the kernel dies by itself."""
        self._on_death = callback

    @property
    def dead(self) -> bool:
        return self.death is not None

    def execute(self, code: str, listener: Listener) -> Execution:
        """Send an execute request; ``listener`` gets its outputs and reply, also late ones.

        Raises UnavailableError while the socket is lost.
        """
        execution = Execution(self, new_msg_id(), listener)
        self._executions[execution.msg_id] = self._current = execution
        while len(self._executions) > KEPT_LISTENERS:
            self._executions.popitem(last=False)
        msg_type, content = execute_request(code)
        try:
            self._channels.send("shell", msg_type, content, execution.msg_id)
        except UnavailableError:
            del self._executions[execution.msg_id]
            raise
        return execution

    async def evaluate(self, code: str, expressions: Mapping[str, str]) -> Mapping[str, Any]:
        """Run code silently between runs; the reply's content with the values of the expressions.

        Raises KernelDiedError, UnavailableError; bounded by the caller.
        """
        msg_id = new_msg_id()
        future = self._replies[msg_id] = asyncio.get_running_loop().create_future()
        try:
            msg_type, content = silent_request(code, expressions)
            self._channels.send("shell", msg_type, content, msg_id)
            self.raise_if_dead()
            reply = await future
        finally:
            del self._replies[msg_id]
        answered: Mapping[str, Any] = reply.content
        return answered

    async def interrupt(self) -> None:
        """Ask the gateway to interrupt; GatewayError when it can't."""
        await self._gateway.interrupt_kernel(self.id)

    def wake(self) -> None:
        """Send a request that wakes the kernel's loop.

        An interrupted top-level ``await`` ends only when a shell message comes (ipykernel #1239).
        """
        with contextlib.suppress(UnavailableError):
            msg_type, content = kernel_info_request()
            self._channels.send("shell", msg_type, content)

    async def resync(self) -> None:
        """Until the kernel has answered a request on shell and its idle came on iopub.

        After a restart the gateway may lose what iopub says first, so the question is repeated.
        Raises KernelDiedError; bounded by the caller.
        """
        event = asyncio.Event()
        asked: list[str] = []
        try:
            while not event.is_set():
                self.raise_if_dead()
                msg_id = new_msg_id()
                asked.append(msg_id)
                self._probes[msg_id] = event
                msg_type, content = kernel_info_request()
                with contextlib.suppress(UnavailableError):
                    self._channels.send("shell", msg_type, content, msg_id)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RESYNC_INTERVAL):
                        await event.wait()
            self.raise_if_dead()
        finally:
            for msg_id in asked:
                del self._probes[msg_id]

    async def restart(self) -> None:
        """Restart the kernel process and wait until it answers; bounded by the caller.

        Raises GatewayError, KernelDiedError.
        """
        self._restarting = True
        self._origin = None
        if self._current is not None:
            self._current.finish_incomplete()
        self._executions.clear()
        try:
            await self._gateway.restart_kernel(self.id)
            await self.resync()
        finally:
            self._restarting = False

    async def shutdown(self) -> None:
        """Close the websocket and delete the kernel; never raises what the gateway says of it."""
        await self._channels.aclose()
        self._mark_dead(KernelDeath("The kernel was shut down."), announce=False)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(InterpreterError, TimeoutError):
            async with asyncio.timeout(SHUTDOWN_WAIT):
                await self._gateway.delete_kernel(self.id)

    async def detach(self) -> None:
        """Close the websocket and leave the kernel running."""
        await self._channels.aclose()
        self._mark_dead(KernelDeath("The service let go of the kernel."), announce=False)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def raise_if_dead(self) -> None:
        """KernelDiedError when the kernel is dead."""
        if self.death is not None:
            raise KernelDiedError(self.death)

    def is_origin(self, message: Message) -> bool:
        """Whether the message comes from the kernel's own process, as far as its id tells."""
        origin = _origin_of(message)
        return origin is None or self._origin is None or origin == self._origin

    def _receive(self, message: Message) -> None:
        if message.channel == "iopub" and message.execution_state in ("dead", "restarting"):
            if not message.parent_id and not self._restarting:
                self._mark_dead(_death_of(message))
            return
        if message.msg_type == "execute_reply" and (future := self._replies.get(message.parent_id)):
            if not future.done():
                future.set_result(message)
            return
        probe = self._probes.get(message.parent_id)
        if probe is not None:
            if message.execution_state == "idle":
                self._origin = self._origin or _origin_of(message)
                probe.set()
            return
        execution = self._executions.get(message.parent_id)
        if execution is not None:
            execution.receive(message)

    def _reconnected(self) -> None:
        """After a lost socket: find out whether the request in flight is over."""
        task = asyncio.create_task(self._settle_after_reconnect(), name=f"settle {self.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle_after_reconnect(self) -> None:
        current = self._current
        with contextlib.suppress(KernelDiedError):
            await self.resync()
            if current is not None and current is self._current:
                current.finish_incomplete()

    def _gone(self, reason: str) -> None:
        self._mark_dead(KernelDeath(reason))

    def _mark_dead(self, death: KernelDeath, *, announce: bool = True) -> None:
        if self.death is not None:
            return
        self.death = death
        for event in self._probes.values():
            event.set()
        for future in self._replies.values():
            if not future.done():
                future.set_exception(KernelDiedError(death))
        for execution in self._executions.values():
            execution.wake()
        if announce:
            self._on_death(death)


def _start_timeout(timeout: float) -> KernelStartTimeoutError:
    return KernelStartTimeoutError(
        f"The kernel did not answer within kernel_start_timeout ({timeout:g} seconds)."
    )


def _origin_of(message: Message) -> str | None:
    """The sender's part of a message id: ``<session>_<pid>_<n>`` in jupyter_client's form."""
    parts = message.msg_id.rsplit("_", 1)
    return parts[0] if len(parts) == 2 and parts[1].isdigit() and "_" in parts[0] else None


def _death_of(message: Message) -> KernelDeath:
    """What the gateway says of a death; our own extension adds the cause."""
    cause = message.content.get("interpreter")
    cause = cause if isinstance(cause, dict) else {}
    exit_code, signal, reason = (cause.get(key) for key in ("exit_code", "signal", "reason"))
    exit_code = exit_code if isinstance(exit_code, int) else None
    signal = signal if isinstance(signal, str) else None
    if isinstance(reason, str) and reason:
        sentence = f"The kernel died: {reason}."
    elif signal:
        sentence = f"The kernel died: it was ended by {signal}."
    elif exit_code is not None:
        sentence = f"The kernel died: its process ended with exit code {exit_code}."
    else:
        sentence = "The kernel died."
    return KernelDeath(sentence, exit_code, signal)
