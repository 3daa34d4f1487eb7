"""A connection to one of a kernel's sockets: ZMTP over a Unix or TCP socket on the event loop.

libzmq has a limit for one part of a message and one for the number of messages that wait, but none for their bytes:
a kernel that sends the same pages again and again would fill the gateway's memory. Here what is too large is left
out as it comes, and nothing is read while the `Gate` is closed. Descriptors that a kernel sends are refused.
"""

import asyncio
import contextlib
import errno
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from interpreter.gateway_extension import descriptors
from interpreter.gateway_extension.framing import GREETING, Framing, Message, ProtocolError
from interpreter.gateway_extension.gate import Gate, Stopwatch
from interpreter.gateway_extension.sharing import kept, unread

LARGE_CHUNK = 128 * 1024
"""Bytes that are read at once of the content of one frame, which takes no time to speak of."""
MAX_UNSENT_BYTES = 64 * 1024**2
CHEAP_BYTES = 4096
"""So few are never costly, and to look at the clock would cost more."""


class Outbox:
    """Messages that are not sent yet, each as its bytes."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._size = 0

    def put(self, message: bytes) -> bool:
        """Whether there was room: who does not take `MAX_UNSENT_BYTES`, or its part of what all have, reads no more."""
        if self._waiting and self._size + len(message) > kept.limit(MAX_UNSENT_BYTES):
            return False
        self._waiting.append(message)
        self._count(len(message))
        return True

    def take(self) -> bytes | None:
        """The next message, None if there is none."""
        if not self._waiting:
            return None
        message = self._waiting.popleft()
        self._count(-len(message))
        return message

    def clear(self) -> None:
        """Forgets all."""
        self._waiting.clear()
        self._count(-self._size)

    def _count(self, size: int) -> None:
        self._size += size
        kept.add(size)


@dataclass(frozen=True)
class Events:
    """What a link tells: messages came; the connection is over, and whether for what no kernel sends."""

    came: Callable[[list[Message]], None]
    lost: Callable[[bool], None]


class Link:
    """One connection. It says ``hello`` when the kernel has greeted, and sends ``unsent`` when that is ready."""

    def __init__(
        self, connection: socket.socket, framing: Framing, gate: Gate, hello: bytes, unsent: Outbox
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._framing = framing
        self._gate = gate
        self._hello = hello
        self._unsent = unsent
        self._rest = memoryview(GREETING)
        self._reads = self._writes = self._is_deaf = False
        self._takes_descriptors = descriptors.takes_descriptors(connection)
        self._events: Events | None = None

    def begin(self, events: Events) -> None:
        """Speaks, and listens."""
        self._events = events
        self.write()
        self.go_on()

    def go_on(self) -> None:
        """Reads on if the gate is open."""
        if not self._reads and self._events is not None and self._gate.is_open:
            self._loop.add_reader(self._socket, self.read)
            self._reads = True

    def close(self) -> None:
        """Closes the connection without a word; further calls do nothing."""
        if self._socket.fileno() < 0:
            return
        self._events = None
        unread.forget(self._framing)
        if not self._loop.is_closed():
            self._stop_reading()
            self._stop_writing()
        if self._takes_descriptors:
            descriptors.close(self._socket)
        else:
            self._socket.close()

    def read(self) -> bool:
        """Takes some of what came. Whether there may be more."""
        if self._events is None:
            return False
        if not self._gate.is_open:
            self._stop_reading()
            return False
        try:
            data = self._receive()
            messages = self._taken(data)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._end(hostile=False)
            return False
        except (ProtocolError, descriptors.DescriptorsSentError):
            self._end(hostile=True)
            return False
        if not data:
            self._end(hostile=False)
        elif messages:
            self._events.came(messages)
        return bool(data)

    def _receive(self) -> bytes:
        size = max(self._gate.chunk, min(self._framing.left, LARGE_CHUNK))
        if self._takes_descriptors:
            return descriptors.receive(self._socket, size)
        return self._socket.recv(size)

    def _taken(self, data: bytes) -> list[Message]:
        watch = Stopwatch(len(data) > CHEAP_BYTES)
        was_ready, framing = self._framing.is_ready, self._framing
        try:
            with watch:
                messages = framing.take(data)
        finally:
            self._gate.read(watch.seconds)
        unread.note(framing, framing.held)
        if not was_ready and framing.is_greeted:
            self.write()
        return messages

    def _next(self) -> bool:
        """Whether there is something to be written, which is then the rest."""
        if self._hello and self._framing.is_greeted:
            self._rest, self._hello = memoryview(self._hello), b""
        elif self._framing.is_ready and (message := self._unsent.take()) is not None:
            self._rest = memoryview(message)
        return bool(self._rest)

    def write(self) -> None:
        """Sends what can be sent now; the rest as soon as it can."""
        if self._is_deaf:
            return
        try:
            while self._rest or self._next():
                self._rest = self._rest[self._socket.send(self._rest) :]
        except (BlockingIOError, InterruptedError):
            if not self._writes and self._events is not None:
                self._loop.add_writer(self._socket, self.write)
                self._writes = True
        except OSError:
            # It is gone, but what it said last may not be read yet: reading comes to the end.
            self._is_deaf = True
            self._stop_writing()
        else:
            self._stop_writing()

    def _stop_reading(self) -> None:
        if self._reads:
            self._loop.remove_reader(self._socket)
            self._reads = False

    def _stop_writing(self) -> None:
        if self._writes:
            self._loop.remove_writer(self._socket)
            self._writes = False

    def _end(self, *, hostile: bool) -> None:
        events = self._events
        self.close()
        if events is not None:
            events.lost(hostile)


def connected(url: str) -> socket.socket | None:
    """A connection to a kernel's socket that is there or on its way; None if there is no such socket."""
    transport, _, place = url.partition("://")
    address: Any = place
    kind = socket.AF_UNIX
    if transport == "tcp":
        host, _, port = place.rpartition(":")
        address = (host.strip("[]"), int(port))
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    connection = socket.socket(kind, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    if transport == "tcp":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        descriptors.refuse_descriptors(connection)
    # A path that is too long and a name that can't be resolved are errors of Python's own.
    with contextlib.suppress(OSError):
        if connection.connect_ex(address) in (0, errno.EINPROGRESS):
            return connection
    connection.close()
    return None
