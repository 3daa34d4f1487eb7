"""Between a kernel's sockets and ZeroMQ's in the gateway: what a kernel sends is bounded before it is in memory.

ZeroMQ has a limit for one part of a message and one for the number of messages that wait, but none for their
bytes: a kernel that sends the same pages again and again would fill the gateway's memory. So the gateway's
sockets connect to a `Gate`, which connects to the kernel and passes bytes on as they come. It reads of them what
ZMTP says of sizes, leaves out what is too large while it passes, and does not read on while much waits, nor for a
while after what took the event loop long. Descriptors that a kernel sends along with its bytes are refused.

Source of the protocol: https://rfc.zeromq.org/spec/23/ (ZMTP 3.0).
"""

import asyncio
import contextlib
import errno
import os
import secrets
import socket
import struct
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from interpreter.gateway_extension import descriptors
from interpreter.gateway_extension.framing import Framing, ProtocolError

CHUNK = 32 * 1024
LARGE_CHUNK = 128 * 1024
"""Of the content of one frame, which takes no time to speak of."""
CAREFUL_CHUNK = 8 * 1024
"""Of a kernel that once took long: with nothing but frames, so many bytes take about `COSTLY_FRAMES`."""
COSTLY = 0.02
"""Seconds of the loop's processor time from which on a message is costly: others shall have theirs first."""
COSTLY_FRAMES = 0.002
"""The same of one reading, and of a message of more than `MANY_PARTS`: only who wants to takes as long."""
MANY_PARTS = 32
CHEAP_BYTES = 4096
"""So few are never costly, and to look at the clock would cost more."""
PEACE = 8
"""What took t seconds is followed by ``PEACE * t`` seconds in which a message counts as waiting, or nothing is read.

By as much for each other gate that rests, so that all of them together get their part of the time, not each.
"""
MAX_PEACE = 5.0
_PEER = struct.Struct("3i")


@dataclass(frozen=True)
class Share:
    """Bytes. What a socket of the gateway may hold of what a kernel sent: about the sum of both."""

    max_message_bytes: int
    max_waiting_bytes: int


class Gate:
    """Listens for one ZeroMQ socket of this process, which connects to ``url``, and connects it to a kernel.

    ``find_url`` says where the kernel listens; None: nowhere any more. Call from the event loop's thread; `took` says that a message
    arrived. Ends with `close`.
    """

    def __init__(self, find_url: Callable[[], str | None], share: Share) -> None:
        self._find_url = find_url
        self._share = share
        self._loop = asyncio.get_running_loop()
        self._waiting = 0
        self._held = self._hostile = False
        self._timers: list[asyncio.TimerHandle] = []
        self._rests: asyncio.TimerHandle | None = None
        self._link: _Link | None = None
        self._unheard: socket.socket | None = None
        self.chunk = CHUNK
        # In no file system, so that its name is never too long and nothing has to be removed.
        name = f"interpreter-{os.getpid()}-{secrets.token_hex(8)}"
        self.url = f"ipc://@{name}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        descriptors.refuse_descriptors(self._listener)
        self._listener.bind(f"\0{name}")
        self._listener.listen(8)
        self._loop.add_reader(self._listener, self._accept)

    def took(self, size: int, seconds: float = 0.0, parts: int = 1) -> None:
        """A message of this `cost` is out of ZeroMQ's memory; dealing with it took so many seconds."""
        if self._loop.is_closed():
            return
        if parts > MANY_PARTS:
            self.read(seconds)
        if seconds > COSTLY:
            now = self._loop.time()
            self._timers = [timer for timer in self._timers if timer.when() > now]
            self._timers.append(self._loop.call_later(self._peace(seconds), self._rested, size))
        else:
            self._release(size)

    def read(self, seconds: float) -> None:
        """It took so many seconds to read frames: if too many, none are read for a while, and then fewer at once."""
        if seconds <= COSTLY_FRAMES or self._listener.fileno() < 0:
            return
        self.chunk = CAREFUL_CHUNK
        end = min(self.rests_until + self._peace(seconds), self._loop.time() + MAX_PEACE)
        if self._rests is not None:
            self._rests.cancel()
        self._rests = self._loop.call_at(end, self._read_on)

    @property
    def rests_until(self) -> float:
        """When more is read, on the loop's clock: now, if it does not rest."""
        now = self._loop.time()
        return now if self._rests is None else max(now, self._rests.when())

    def _peace(self, seconds: float) -> float:
        """How long this gate rests now; the others know it."""
        _resting.add(self)
        return min(PEACE * seconds * len(_resting), MAX_PEACE)

    def _read_on(self) -> None:
        self._rests = None
        self._rested(0)

    def _rested(self, size: int) -> None:
        if self._rests is None:
            _resting.discard(self)
        self._release(size)

    def close(self) -> None:
        """Closes all its sockets; further calls do nothing."""
        if self._listener.fileno() < 0:
            return
        for timer in (*self._timers, *([] if self._rests is None else [self._rests])):
            timer.cancel()
        _resting.discard(self)
        if not self._loop.is_closed():
            self._loop.remove_reader(self._listener)
        self._listener.close()
        self._unlink()
        self._hang_up()

    @property
    def is_open(self) -> bool:
        """Whether the kernel may send more now."""
        return not self._held and self._rests is None and self._waiting < self._share.max_waiting_bytes

    def hold(self, held: bool) -> None:
        """While held nothing more is read of the kernel, which then has to wait."""
        self._held = held
        self._release(0)

    def _release(self, size: int) -> None:
        self._waiting = max(0, self._waiting - size)
        if self._link is not None and self.is_open:
            self._link.go_on()

    def _passed(self, size: int) -> None:
        self._waiting += size

    def _unlink(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except OSError:  # who wanted to connect is gone, or no descriptor is free
            return
        near.setblocking(False)
        pid, _, _ = _PEER.unpack(near.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if self._hostile and pid == os.getpid():
            self._hang_up()
            self._unheard = near  # closed, ZeroMQ would try again at once, and again
            return
        url = self._find_url() if pid == os.getpid() else None
        far = None if url is None else _connected(url)
        if far is None:
            near.close()  # ZeroMQ tries again
            return
        self._unlink()
        framing = Framing(self._share.max_message_bytes, self._passed)
        self._link = _Link(near, far, framing, self)

    def _hang_up(self) -> None:
        unheard, self._unheard = self._unheard, None
        if unheard is not None:
            unheard.close()

    def refuse(self) -> None:
        """What came no kernel sends (descriptors, bytes against the protocol), and each time costs: it is not connected again."""
        self._hostile = True

    def start_anew(self) -> None:
        """The next connection is to a kernel that has done nothing yet."""
        self._hang_up()
        self._hostile = False
        self.chunk = CHUNK


class _Link:
    """Two connections, of which each gets what comes over the other one."""

    def __init__(self, near: socket.socket, far: socket.socket, framing: Framing, gate: Gate) -> None:
        loop = asyncio.get_running_loop()
        self._sockets = near, far
        self._framing = framing
        self._gate = gate
        self._takes_descriptors = descriptors.takes_descriptors(far)
        self._ways = (
            _Way((loop, near, far), lambda: near.recv(CHUNK), lambda data: data, lambda: True, self.close),
            _Way((loop, far, near), self._receive, self._pass, lambda: gate.is_open, self.close),
        )

    def _receive(self) -> bytes:
        far, size = self._sockets[1], max(self._gate.chunk, min(self._framing.left, LARGE_CHUNK))
        if not self._takes_descriptors:
            return far.recv(size)
        try:
            return descriptors.receive(far, size)
        except descriptors.DescriptorsSentError:
            self._gate.refuse()
            raise

    def _pass(self, data: bytes) -> bytes:
        start = time.thread_time() if len(data) > CHEAP_BYTES else None
        try:
            return self._framing.passed(data)
        except ProtocolError:
            self._gate.refuse()
            raise
        finally:
            if start is not None:
                self._gate.read(time.thread_time() - start)

    def go_on(self) -> None:
        self._ways[1].go_on()

    def close(self) -> None:
        """Closes both; further calls do nothing."""
        if self._sockets[0].fileno() < 0:
            return
        for way in self._ways:
            way.stop()
        near, far = self._sockets
        near.close()
        if self._takes_descriptors:
            descriptors.close(far)
        else:
            far.close()


class _Way:
    """From one connection to the other: nothing is read before all that was read is written."""

    def __init__(
        self,
        place: tuple[asyncio.AbstractEventLoop, socket.socket, socket.socket],
        receive: Callable[[], bytes],
        rule: Callable[[bytes], bytes],
        is_open: Callable[[], bool],
        end: Callable[[], None],
    ) -> None:
        self._loop, self._source, self._sink = place
        self._receive = receive
        self._rule = rule
        self._is_open = is_open
        self._end = end
        self._rest = memoryview(b"")
        self._reads = self._writes = False
        self.go_on()

    def go_on(self) -> None:
        """Reads on if it may."""
        if not self._reads and not self._rest and self._is_open():
            self._loop.add_reader(self._source, self._read)
            self._reads = True

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._stop_reading()
            self._stop_writing()
        self._is_open = lambda: False

    def _stop_reading(self) -> None:
        if self._reads:
            self._loop.remove_reader(self._source)
            self._reads = False

    def _stop_writing(self) -> None:
        if self._writes:
            self._loop.remove_writer(self._sink)
            self._writes = False

    def _read(self) -> None:
        if not self._is_open():
            self._stop_reading()
            return
        try:
            data = self._receive()
            passed = self._rule(data)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ProtocolError, descriptors.DescriptorsSentError):
            data = b""
        if not data:
            self._end()
            return
        self._rest = memoryview(passed)
        self._write()

    def _write(self) -> None:
        try:
            sent = self._sink.send(self._rest) if self._rest else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._end()
            return
        self._rest = self._rest[sent:]
        if self._rest:
            self._stop_reading()
            if not self._writes:
                self._loop.add_writer(self._sink, self._write)
                self._writes = True
            return
        self._stop_writing()
        if self._is_open():
            self.go_on()
        else:
            self._stop_reading()


def _connected(url: str) -> socket.socket | None:
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
    try:
        number = connection.connect_ex(address)
    except OSError:  # a path that is too long, a name that can't be resolved
        number = errno.EINVAL
    if number in (0, errno.EINPROGRESS):
        return connection
    connection.close()
    return None


_resting: "weakref.WeakSet[Gate]" = weakref.WeakSet()
_gates: "weakref.WeakKeyDictionary[zmq.Socket[Any], Gate]" = weakref.WeakKeyDictionary()


def connect_through_gate(
    connecting: "zmq.Socket[Any]", find_url: Callable[[], str | None], share: Share
) -> None:
    """Connects a ZeroMQ socket to a kernel, through a `Gate` that lives as long as the socket."""
    gate = Gate(find_url, share)
    _gates[connecting] = gate
    weakref.finalize(connecting, gate.close).atexit = False
    connecting.connect(gate.url)


def connect_again(connected: "zmq.Socket[Any]") -> None:
    """Hangs up and connects anew, to a kernel that was restarted, where ZeroMQ would wait or has given up.

    What the socket still had to send is dropped. Else ZeroMQ would go on connecting to deliver it, beside the new
    connection, and the two would drive each other away from the gate.
    """
    endpoint = str(connected.get_string(zmq.LAST_ENDPOINT)).rstrip("\0")
    linger = connected.linger
    connected.linger = 0
    with contextlib.suppress(zmq.ZMQError):  # that connection is over already
        connected.disconnect(endpoint)
    connected.linger = linger
    gate = gate_of(connected)
    if gate is not None:
        gate.start_anew()
    connected.connect(endpoint)


def gate_of(connected: "zmq.Socket[Any]") -> Gate | None:
    """The gate of a socket that is connected through one."""
    return _gates.get(connected)
