"""A kernel's socket on the gateway's event loop: takes all that is there in one go and tells the socket's gate."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.eventloop.zmqstream import ZMQStream

from interpreter.gateway_extension.framing import cost
from interpreter.gateway_extension.gate import CHEAP_BYTES, MANY_PARTS, gate_of

MAX_AT_ONCE = 32
"""Messages; then it is the others' turn."""
_NOBLOCK, _EVENTS, _POLLIN = int(zmq.NOBLOCK), int(zmq.EVENTS), int(zmq.POLLIN)  # enumerations are slow


class GatedStream(ZMQStream):
    """A stream that tells its socket's gate what it took."""

    def __init__(self, socket: "zmq.Socket[Any]", io_loop: Any = None) -> None:
        super().__init__(socket, io_loop)
        self._gate = gate_of(socket)
        self._received_in = 0.0  # seconds, the present message

    def _handle_events(self, fd: Any, events: int) -> None:
        """Upstream takes one message, and asks the socket four times what its state is."""
        if self.socket is None or self._recv_callback is None or self._flushed or self.sending():
            super()._handle_events(fd, events)  # type: ignore[no-untyped-call]
            return
        more = True
        try:
            more = self._take()
        except zmq.ZMQError:
            more = False
            super()._handle_events(fd, events)  # type: ignore[no-untyped-call]  # it knows what this means
        finally:
            if more:
                self._handle_soon()

    def _handle_soon(self) -> None:
        """ZeroMQ tells but once that something is there."""
        if self.socket is not None:
            self.io_loop.add_callback(lambda: self._handle_events(self.socket, 0))

    def _take(self) -> bool:
        """Whether more may be there that nobody else takes."""
        for _ in range(MAX_AT_ONCE):
            try:
                message = self._receive()
            except zmq.Again:
                return False
            assert self._recv_callback is not None
            self._run_callback(self._recv_callback, message)
            if self.socket is None or not self._may_receive():
                return False
            if self._recv_callback is None or self._flushed or len(message) > MANY_PARTS:
                break
        return True

    def _receive(self) -> list[Any]:
        """As `recv_multipart`, which asks the socket after each part whether it was the last."""
        parts: list[Any] = []
        start = None
        more = True
        while more:
            frame = self.socket.recv(_NOBLOCK, copy=False)
            parts.append(frame.bytes if self._recv_copy else frame)
            more = frame.more
            if len(parts) == MANY_PARTS:  # to look at the clock for fewer would cost more
                start = time.thread_time()
        self._received_in = 0.0 if start is None else time.thread_time() - start
        return parts

    def _may_receive(self) -> bool:
        """Cheaper than to try in vain. After each sending, too, this has to be asked: else nobody would tell."""
        events: Any = self.socket.get(_EVENTS)  # never bytes
        return bool(events & _POLLIN)

    def send_multipart(
        self,
        msg: Sequence[Any],
        flags: int = 0,
        copy: bool = True,
        track: bool = False,
        callback: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Upstream queues it, and asks the socket three times what its state is before it is sent."""
        if callback is None and self._send_callback is None and self.socket is not None and not track:
            try:
                self.socket.send_multipart(msg, int(flags) | _NOBLOCK, copy=copy, **kwargs)
            except zmq.ZMQError:
                pass  # it has to wait, or upstream knows what this means
            else:
                if self._may_receive():
                    self._handle_soon()
                return
        super().send_multipart(msg, flags, copy, track, callback, **kwargs)

    def _run_callback(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if self._gate is None or callback is not self._recv_callback:
            super()._run_callback(callback, *args, **kwargs)
            return
        size, parts = cost(map(len, args[0])), len(args[0])
        received_in, self._received_in = self._received_in, 0.0
        start = time.thread_time() if size > CHEAP_BYTES else None
        try:
            super()._run_callback(callback, *args, **kwargs)
        finally:
            seconds = 0.0 if start is None else time.thread_time() - start
            self._gate.took(size, received_in + seconds, parts)

    def hold(self, held: bool) -> None:
        """As `Gate.hold`."""
        if self._gate is not None:
            self._gate.hold(held)

    def close(self, linger: int | None = None) -> None:
        super().close(linger)
        if self._gate is not None:
            self._gate.close()
