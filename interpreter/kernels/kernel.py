"""A kernel behind the gateway: execute requests, interrupt, restart, death.

This is mechanism only: who may run and when to interrupt is decided in ``runs.py``.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from interpreter.errors import GatewayError, KernelStartTimeoutError, UnavailableError
from interpreter.kernels.channels import KernelChannels
from interpreter.kernels.deaths import KernelDeath, death_told, start_failure
from interpreter.kernels.execution import Execution, KernelDiedError, Listener, Probe
from interpreter.kernels.gaps import origin_of
from interpreter.kernels.gateway import Gateway
from interpreter.messages import Message, execute_request, kernel_info_request, new_msg_id, silent_request

__all__ = ["Execution", "Kernel", "KernelDeath", "KernelDiedError"]

RESYNC_INTERVAL = 0.3  # seconds between two kernel_info requests while waiting for a kernel
CHECK_EVERY = 10  # of these requests: then the gateway is asked whether the kernel lives
CHECK_TIMEOUT = 5.0  # seconds for the gateway to say so
KEPT_LISTENERS = 32  # runs of the past whose late output still finds them
KEPT_BYTES = 16 * 1024**2  # that they said: beyond, the oldest go; the newest stays, however much it said
SPEAK_AFTER_IDLE = frozenset({"Deno kernel"})  # `implementation` of kernels whose idle may overtake output


class Kernel:
    """One running kernel and the websocket to it. Made by `start` or `attach`."""

    def __init__(self, gateway: Gateway, kernel_id: str, name: str) -> None:
        self.id = kernel_id
        self.name = name
        self.death: KernelDeath | None = None
        self._gateway = gateway
        self._restarting = False
        self._origin: str | None = None
        self._implementation: object = None
        self._probes: dict[str, Probe] = {}
        self._replies: dict[str, asyncio.Future[Message]] = {}
        self._executions: OrderedDict[str, Execution] = OrderedDict()
        self._current: Execution | None = None
        self._held_bytes = 0  # received for `_executions` and for some that have gone
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
        owner: str = "",
    ) -> "Kernel":
        """Start a kernel and wait until it answers, at most ``timeout`` seconds.

        ``owner``: for whom `Gateway.gone` waits until a kernel that did not come up is deleted. Raises KernelStartTimeoutError, GatewayError, InvalidRequestError (no such kernelspec). A
        kernel that did not come up is deleted.
        """
        started = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                kernel_id = await gateway.start_kernel(name, path=path, env=env, timeout=timeout, owner=owner)
        except TimeoutError as error:
            raise _start_timeout(timeout) from error
        left = timeout - (time.monotonic() - started)
        return await cls.attach(gateway, kernel_id, name, timeout=left, of=timeout, owner=owner)

    @classmethod
    async def attach(
        cls,
        gateway: Gateway,
        kernel_id: str,
        name: str,
        *,
        timeout: float,
        of: float | None = None,
        owner: str = "",
    ) -> "Kernel":
        """Connect to a kernel that was started before; when that fails it is deleted, in the background."""
        kernel = cls(gateway, kernel_id, name)
        try:
            async with asyncio.timeout(timeout):
                await kernel._channels.connect(timeout=max(timeout, 1.0))
                await kernel.resync()
        except TimeoutError as error:
            gateway.discard_later(kernel.shutdown(), owner)
            raise _start_timeout(of or timeout) from error
        except KernelDiedError as error:
            gateway.discard_later(kernel.shutdown(), owner)
            raise GatewayError(start_failure(error.death), code="kernel_not_up") from error
        except BaseException:
            gateway.discard_later(kernel.shutdown(), owner)
            raise
        return kernel

    def on_death(self, callback: Callable[[KernelDeath], None]) -> None:
        """Call ``callback`` once if the kernel dies by itself, at once when it is dead already."""
        self._on_death = callback
        if self.death is not None:
            callback(self.death)

    @property
    def dead(self) -> bool:
        return self.death is not None

    async def connected(self) -> None:
        """Return once requests can be sent. Raises KernelDiedError; bounded by the caller."""
        await self._channels.usable()
        self.raise_if_dead()

    def execute(self, code: str, listener: Listener) -> Execution:
        """Send an execute request; ``listener`` gets its outputs and reply, also late ones.

        Raises UnavailableError while the socket is lost.
        """
        execution = Execution(self, new_msg_id(), listener)
        msg_type, content = execute_request(code)
        self._channels.send("shell", msg_type, content, execution.msg_id)
        self._executions[execution.msg_id] = self._current = execution
        while (kept := len(self._executions)) > KEPT_LISTENERS or (kept > 2 and self._holds_much()):
            self._executions.popitem(last=False)
        return execution

    def _holds_much(self) -> bool:
        """Whether the listeners may keep more than `KEPT_BYTES` of their runs; it is seldom counted anew."""
        if self._held_bytes > KEPT_BYTES:
            received = (execution.received_bytes for execution in self._executions.values())
            self._held_bytes = sum(min(size, KEPT_BYTES) for size in received)
        return self._held_bytes > KEPT_BYTES

    def abandon(self, execution: Execution) -> None:
        """Drop what an execution still says: it goes on against our will."""
        self._executions.pop(execution.msg_id, None)

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
        probe = Probe()
        try:
            while not probe.answered.is_set():
                self.raise_if_dead()
                msg_id = new_msg_id()
                probe.msg_ids.append(msg_id)
                self._probes[msg_id] = probe
                msg_type, content = kernel_info_request()
                with contextlib.suppress(UnavailableError):
                    self._channels.send("shell", msg_type, content, msg_id)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RESYNC_INTERVAL):
                        await probe.answered.wait()
                if len(probe.msg_ids) % CHECK_EVERY == 0:
                    await self.check_alive()
            self.raise_if_dead()
        finally:
            for msg_id in probe.msg_ids:
                del self._probes[msg_id]

    async def check_alive(self) -> None:
        """Ask the gateway whether the kernel is still there, as it may have gone without a word."""
        with contextlib.suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(CHECK_TIMEOUT):
                if (death := await self._gateway.find_end(self.id)) is not None:
                    self._mark_dead(death)

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
        await self._let_go(KernelDeath("The kernel was shut down."))
        await self._gateway.discard_kernel(self.id)

    async def detach(self) -> None:
        """Close the websocket and leave the kernel running."""
        await self._let_go(KernelDeath("The service let go of the kernel."))

    async def _let_go(self, death: KernelDeath) -> None:
        await self._channels.aclose()
        self._mark_dead(death, announce=False)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Listeners hold the outputs of runs, and this object is part of cycles that are collected late.
        self._executions.clear()
        self._current = None

    def raise_if_dead(self) -> None:
        """KernelDiedError when the kernel is dead."""
        if self.death is not None:
            raise KernelDiedError(self.death)

    @property
    def counts_all(self) -> bool:
        """Whether each message that is missing counts as lost: the gateway is known to lose some."""
        return not self._gateway.target.keeps_messages

    @property
    def speaks_after_idle(self) -> bool:
        """Whether the end of a run's output may come after its idle, but before the answer to what is asked next."""
        return self._implementation in SPEAK_AFTER_IDLE

    def is_origin(self, message: Message) -> bool:
        """Whether the message comes from the kernel's own process, as far as its id tells."""
        origin = origin_of(message)
        return origin is None or self._origin is None or origin == self._origin

    def _receive(self, message: Message) -> None:
        if self._current is not None and not self._current.done:
            self._current.count.see(message)
        if message.channel == "iopub" and message.execution_state in ("dead", "restarting"):
            if not message.parent_id and not self._restarting:
                self._mark_dead(death_told(message.content.get("interpreter")))
            return
        if message.msg_type == "execute_reply" and (future := self._replies.get(message.parent_id)):
            if not future.done():
                future.set_result(message)
            return
        probe = self._probes.get(message.parent_id)
        if probe is not None:
            if message.msg_type == "kernel_info_reply":
                self._implementation = message.content.get("implementation")
            if probe.receive(message):
                self._origin = self._origin or origin_of(message)
            return
        execution = self._executions.get(message.parent_id)
        if execution is not None:
            self._held_bytes += message.size
            execution.receive(message)

    def _reconnected(self) -> None:
        """After a lost socket: find out whether the request in flight is over."""
        if self._current is not None:
            self._current.reconnects += 1
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
        for probe in self._probes.values():
            probe.answered.set()
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
