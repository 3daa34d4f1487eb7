"""One execute request on its way, and the death that may end it."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from interpreter.kernels.deaths import KernelDeath
from interpreter.kernels.gaps import MessageCount
from interpreter.messages import Message

Listener = Callable[[Message], None]

COMPLETION_GRACE = 1.0  # seconds between the reply and the idle (either first) before we ask
SILENCE = 2.0  # seconds without a word after which the gateway is asked whether the kernel lives

# At a reconnect a stock gateway asks the kernel up to two times, on shell and on control, and does not
# always pass on the busy, reply and idle of these. A smaller gap is no sign that output was lost.
GATEWAY_QUESTIONS = 12


class KernelDiedError(Exception):
    """The kernel ended while something waited for it."""

    def __init__(self, death: KernelDeath) -> None:
        super().__init__(death.sentence)
        self.death = death


class Answerer(Protocol):
    """What an execution needs of its kernel."""

    @property
    def counts_all(self) -> bool: ...
    @property
    def speaks_after_idle(self) -> bool: ...
    def is_origin(self, message: Message) -> bool: ...
    def raise_if_dead(self) -> None: ...
    async def resync(self) -> None: ...
    async def check_alive(self) -> None: ...


class Execution:
    """One execute request in flight. Done when reply and idle were both seen, in either order."""

    def __init__(self, kernel: Answerer, msg_id: str, listener: Listener) -> None:
        self.msg_id = msg_id
        self.reply: Mapping[str, Any] | None = None
        self.begun = False
        """Whether the kernel said anything of the request."""
        self.incomplete = False
        """Whether the kernel was past the request before all of its end was seen."""
        self.reconnects = 0
        """How often the socket was lost and replaced meanwhile."""
        self.count = MessageCount()
        self.received_bytes = 0
        """Of the messages for the listener, which may keep up to so much of them."""
        self._kernel = kernel
        self._listener = listener
        self._idle = False
        self._heard = False
        loop = asyncio.get_running_loop()
        self._half: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the execution is, or when `wait` has to look again."""
        self._watcher: asyncio.Future[None] | None = None

    def receive(self, message: Message) -> None:
        """Take a message whose parent is this request."""
        self._heard = self.begun = True
        self.received_bytes += message.size
        if message.msg_type == "execute_reply":
            if self.reply is None:
                self.reply = message.content
                self._listener(message)
        elif message.execution_state == "idle":
            # A forked copy of the kernel says idle too; its message ids hold another process id.
            if self._kernel.is_origin(message):
                self._idle = True
        elif message.channel == "iopub" and message.msg_type != "status":
            self._listener(message)
        if self.reply is not None or self._idle:
            _settle(self._half)
        if self.done:
            self._end()

    def _end(self) -> None:
        _settle(self.ended)
        if self._watcher is not None:
            _settle(self._watcher)

    async def is_over_within(self, seconds: float, *, unless: "asyncio.Future[Any]") -> bool:
        """Whether all of it was seen so soon, and before ``unless`` was done.

        What ``asyncio.wait`` does, in one iteration of the event loop less: nearly all runs end here.
        """
        if not self.ended.done() and not unless.done():
            loop = asyncio.get_running_loop()
            self._watcher = watcher = loop.create_future()
            timer = loop.call_later(seconds, _settle, watcher)
            wake = partial(_wake, watcher)
            unless.add_done_callback(wake)
            try:
                await watcher
            finally:
                self._watcher = None
                timer.cancel()
                unless.remove_done_callback(wake)
        return self.is_over

    async def wait(self) -> None:
        """Until it is done.

        Raises KernelDiedError. When one half is lost on the way, `incomplete` is set and it counts
        as done: a request that the kernel answers after ours tells.
        """
        while not await _is_done(self._half, SILENCE):
            if not self._heard:
                await self._kernel.check_alive()
            self._heard = False
        await _is_done(self.ended, COMPLETION_GRACE)
        if not self.done:
            self._kernel.raise_if_dead()
            await self._kernel.resync()
            self.finish_incomplete()
        elif self._kernel.speaks_after_idle and not self.incomplete:
            await self._hear_out()

    async def _hear_out(self) -> None:
        """The run is over, whatever happens to the kernel meanwhile."""
        with contextlib.suppress(KernelDiedError, TimeoutError):
            async with asyncio.timeout(COMPLETION_GRACE):
                await self._kernel.resync()

    @property
    def is_over(self) -> bool:
        """Whether all of it was seen, as of most runs: then there is nothing to `wait` for."""
        return self.done and not self.incomplete and not self._kernel.speaks_after_idle

    @property
    def lost_messages(self) -> bool:
        """Whether the gateway may not have kept all that the kernel said while the socket was lost.

        Of our own gateway, which keeps all but the answers to its questions, a small gap is no sign of it.
        """
        tolerated = 0 if self._kernel.counts_all else GATEWAY_QUESTIONS * self.reconnects
        return self.reconnects > 0 and self.count.missing > tolerated

    def finish_incomplete(self) -> None:
        """The kernel is past this request, and what is missing will not come."""
        if not self.done:
            self.incomplete = True
            self.wake()

    def wake(self) -> None:
        """Let `wait` look again: the request is over, or the kernel is dead."""
        _settle(self._half)
        self._end()

    @property
    def done(self) -> bool:
        """Whether all has come, or nothing more will while the kernel lives."""
        return self.incomplete or (self.reply is not None and self._idle)


class Probe:
    """A question to the kernel, repeated until one is answered on both channels.

    The reply on shell shows that nothing of shell is still to come, the idle on iopub that of iopub.
    """

    def __init__(self) -> None:
        self.msg_ids: list[str] = []
        self.answered = asyncio.Event()
        self._halves: dict[str, set[str]] = {}

    def receive(self, message: Message) -> bool:
        """Take a message whose parent is one of the questions; whether it is the idle of one."""
        idle = message.execution_state == "idle"
        if idle or message.channel == "shell":
            halves = self._halves.setdefault(message.parent_id, set())
            halves.add(message.channel)
            if len(halves) > 1:
                self.answered.set()
        return idle


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _wake(watcher: "asyncio.Future[None]", _: "asyncio.Future[Any]") -> None:
    _settle(watcher)


async def _is_done(future: "asyncio.Future[None]", timeout: float) -> bool:
    if not future.done():
        await asyncio.wait({future}, timeout=timeout)
    return future.done()
