"""One of a kernel's channels, as the gateway sees it: what `ZMQStream` is for jupyter_server, without libzmq.

Each message would go through libzmq's thread and queues, twice; and see `interpreter.gateway_extension.link`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from interpreter.gateway_extension.framing import (
    SUBSCRIPTION,
    Framing,
    Message,
    cost,
    framed,
    ready,
    without_large,
)
from interpreter.gateway_extension.gate import CHUNK, LARGE_BYTES, MANY_PARTS, Debt, Gate, Stopwatch, peace
from interpreter.gateway_extension.link import CHEAP_BYTES, Events, Link, Outbox, connected
from interpreter.gateway_extension.sharing import unread

log = logging.getLogger(__name__)

MAX_AT_ONCE = 32
"""Messages; then it is the others' turn."""
CONNECT_INTERVAL = 0.01
"""Seconds until the next attempt to reach a kernel that is just starting."""
MAX_CONNECT_INTERVAL = 1.0
"""The same of one that hangs up: the interval doubles each time."""

Callback = Callable[[list[bytes]], Any]


@dataclass(frozen=True)
class Share:
    """Bytes. What a socket of the gateway may hold of what a kernel sent: about the sum of both."""

    max_message_bytes: int
    max_waiting_bytes: int


class KernelStream:
    """A socket that is connected to where ``find_url`` says that the kernel listens; None: nowhere now.

    With an identity it is a DEALER, without one a SUB to all topics.

    Has what jupyter_client and jupyter_server use of a ZMQStream and of a Socket. Ends with `close`.
    """

    channel = ""
    """Its name, which jupyter_server sets."""
    linger = 0
    """jupyter_client sets it; what is not sent when a stream is closed is not sent."""

    def __init__(self, find_url: Callable[[], str | None], share: Share, identity: bytes | None) -> None:
        self._find_url = find_url
        self._share = share
        dealer = identity is not None
        self._hello = ready(b"DEALER", identity) if dealer else ready(b"SUB") + SUBSCRIPTION
        self._loop = asyncio.get_running_loop()
        self.gate = Gate(share.max_waiting_bytes, self._go_on)
        self._debt = Debt()
        self._unsent = Outbox()
        self._waiting: deque[Message] = deque()
        self._callback: Callback | None = None
        self._hostile = self._closed = self._held = False
        self._delivers: asyncio.TimerHandle | None = None
        self._link: Link | None = None
        self._losses = 0
        self._timer: asyncio.TimerHandle | None = None
        self.socket = _State(self)
        self._connect()

    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self, linger: int | None = None) -> None:
        """Closes the connection; further calls do nothing."""
        self._closed = True
        self._callback = None
        self._forget()
        if self._delivers is not None:
            self._delivers.cancel()
        self._hang_up()
        self.gate.close()

    def on_recv(self, callback: Callback | None, copy: bool = True) -> None:
        """What gets the parts of each message, or None: then they wait."""
        self._callback = callback
        self._deliver_soon()

    def on_recv_stream(
        self, callback: "Callable[[KernelStream, list[bytes]], Any]", copy: bool = True
    ) -> None:
        """The same for what wants to know the stream, too."""
        self.on_recv(partial(callback, self))

    def stop_on_recv(self) -> None:
        """Messages wait from now on."""
        self.on_recv(None)

    def send_multipart(self, msg: "Sequence[bytes | memoryview]", *_: Any, **__: Any) -> None:
        """Sends a message as soon as the kernel is there and takes it."""
        if self._closed:
            return
        if not self._unsent.put(framed(msg)):
            log.warning("A message to a kernel was dropped: it does not take what was sent before.")
        elif self._link is not None:
            self._link.write()

    def flush(self) -> None:
        """Takes, and delivers, what has come so far, but no more than may wait: it may never end."""
        for _ in range(self._share.max_waiting_bytes // CHUNK):
            if self._link is None or not self._link.read():
                break
        while self._waiting and self._callback is not None:
            self._deal(self._callback, *self._waiting.popleft())
        self._note()

    def hold(self, held: bool) -> None:
        """While held nothing more is read, and nothing delivered of what came, but by `flush`."""
        self._held = held
        self.gate.hold(held)
        self._deliver_soon()

    def make_room(self) -> None:
        """Leaves out what is large of the messages that wait: whoever deals with them is told how much it was."""
        messages, self._waiting = self._waiting, deque()
        for parts, size in messages:
            kept = without_large(parts)
            left = cost(map(len, kept))
            self._waiting.append((kept, left))
            self.gate.came(left)
            self.gate.took(size)

    def connect_again(self) -> None:
        """To a kernel that was restarted. What was not sent to the old one is dropped, and what of it still waits."""
        if self._closed:
            return
        self._hang_up()
        self._forget()
        self._hostile, self._losses = False, 0
        self.gate.start_anew()
        self._connect()

    def _connect(self) -> None:
        self._timer = None
        url = self._find_url()
        connection = None if url is None else connected(url)
        if connection is None:
            self._connect_later()
            return
        framing = Framing(self._share.max_message_bytes)
        self._link = Link(connection, framing, self.gate, self._hello, self._unsent)
        self._link.begin(Events(self._came, self._lost))

    def _connect_later(self) -> None:
        delay = min(CONNECT_INTERVAL * 2 ** min(self._losses, 10), MAX_CONNECT_INTERVAL)
        self._timer = self._loop.call_later(delay, self._connect)

    def _hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _lost(self, hostile: bool) -> None:
        """What no kernel sends (descriptors, bytes against the protocol) costs each time: it is not connected again."""
        self._link = None
        self._losses += 1
        self._hostile = hostile
        if not self._hostile:
            self._connect_later()

    def _go_on(self) -> None:
        if self._link is not None:
            self._link.go_on()

    def _came(self, messages: list[Message]) -> None:
        for message in messages:
            self.gate.came(message[1])
        self._waiting += messages
        if self._delivers is None:
            self._deliver()
        if self._waiting:
            self._note()

    def _note(self) -> None:
        """Tells what waits here."""
        unread.note(self, sum(size for _, size in self._waiting))

    def _forget(self) -> None:
        """What waits, in both directions, waits no more."""
        self._unsent.clear()
        self._waiting.clear()
        unread.forget(self)

    def _deliver_soon(self) -> None:
        ready = self._waiting and self._callback is not None and not self._held
        if ready and self._delivers is None:
            self._delivers = self._loop.call_later(self._wait(), self._deliver_later)

    def _deliver_later(self) -> None:
        self._delivers = None
        self._deliver()
        self._note()

    def _wait(self) -> float:
        """How long the next message has to wait yet, in seconds."""
        return peace.ends_in(self._debt, self._loop.time()) if self._waiting[0][1] > LARGE_BYTES else 0.0

    def _deliver(self) -> None:
        try:
            for _ in range(MAX_AT_ONCE):
                if not self._waiting or self._callback is None or self._held or self._wait() > 0:
                    break
                parts, size = self._waiting.popleft()
                self._deal(self._callback, parts, size)
                if len(parts) > MANY_PARTS:
                    break
        finally:
            self._deliver_soon()

    def _deal(self, callback: Callback, parts: list[bytes], size: int) -> None:
        watch = Stopwatch(size > CHEAP_BYTES)
        try:
            with watch:
                callback(parts)
        finally:
            self.gate.took(size, watch.seconds, len(parts))
            if size > LARGE_BYTES:
                peace.took(self._debt, size, watch.seconds, self._loop.time())


@dataclass(frozen=True)
class _State:
    """What jupyter_server asks a stream's socket."""

    _stream: KernelStream

    @property
    def closed(self) -> bool:
        return self._stream.closed()
