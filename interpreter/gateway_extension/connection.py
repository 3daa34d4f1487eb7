"""The gateway's websocket to a client: no delay, no rate limit, bounded, closed when the kernel ends."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from jupyter_server.services.kernels.connection.base import (
    deserialize_msg_from_ws_v1,
    serialize_msg_to_ws_v1,
)
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from tornado import web
from tornado.websocket import WebSocketClosedError
from traitlets import Bool

from interpreter.batches import BATCH_SUBPROTOCOL
from interpreter.gateway_extension.bounding import Backlog, Bounds, bounded_reply, split
from interpreter.gateway_extension.sharing import LITTLE_BYTES, kept
from interpreter.gateway_extension.stream import KernelStream

KERNEL_ENDED = 4404
"""Close code of a websocket whose kernel was deleted, culled or died."""

KERNEL_DIED = "Kernel died"
"""``reason`` of the 404 for a websocket to a kernel that ended before it ever answered."""

GATHER_DELAY = 0.005
"""Seconds that what a busy kernel says may wait for what follows, to be sent in one write."""
_GATHER_BYTES = 65536

_V1_PROTOCOL = "v1.kernel.websocket.jupyter.org"


class FrameWriter(Protocol):
    """What a `KernelConnection` needs of the websocket's handler."""

    def write_frames(self, messages: Sequence[bytes]) -> "asyncio.Future[None]":
        """Send binary messages in one write. Raises WebSocketClosedError."""

    def call_at_close(self, callback: Callable[[], None] | None) -> None:
        """Call when the client's connection ends; None: no more."""


class KernelConnection(ZMQChannelsWebsocketConnection):
    """Point ``KernelGatewayApp.kernel_websocket_connection_class`` at it."""

    limit_rate = Bool(
        False, config=True, help="The rate limit drops results and errors, so it is off; size is bounded."
    )

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._bounds = Bounds()
        self._backlog = Backlog(self._bounds)
        self._unsent_bytes = 0
        self._held = False
        self._gathered: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._counted = self._nudging = self._ready = False
        self._taken: dict[str, Any] | None = None
        self._aside: tuple[dict[str, Any], list[Any]] | None = None
        self._passes = False  # whether messages are sent as they came, but for what bounds them

    async def prepare(self) -> None:
        """Waits for the kernel's first answer; a kernel that dies before it is a 404, at once."""
        preparing = asyncio.ensure_future(super().prepare())  # type: ignore[no-untyped-call]
        dying = asyncio.ensure_future(self.kernel_manager.died.wait())
        leaving = asyncio.ensure_future(self._gone.wait())
        tasks: set[asyncio.Future[Any]] = {preparing, dying, leaving}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if dying.done():
                raise web.HTTPError(404, "The kernel died before it answered.", reason=KERNEL_DIED)
            if leaving.done():
                raise web.Finish
            preparing.result()
        except BaseException:
            self.disconnect()
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def connect(self) -> Any:
        # Nagle's algorithm and delayed ACK together cost 40 ms per run
        self.websocket_handler.set_nodelay(True)
        self._counted = True  # by what upstream does first
        self._taken = self.multi_kernel_manager.buffer_of(self.kernel_id, self.session_key)
        unchanged = self.multi_kernel_manager.allow_tracebacks and not self.limit_rate
        self._passes = unchanged and self.subprotocol == _V1_PROTOCOL
        try:
            return super().connect()
        except BaseException:
            self.disconnect()
            raise

    def nudge(self) -> Any:
        """Upstream waits here until a watcher of its own sees the kernel leave ``starting``.

        `AllKernelsManager` has no such watcher, and `prepare` has heard the kernel.
        """
        if self.kernel_manager.execution_state == "starting":
            self.kernel_manager.execution_state = "idle"
        self._nudging = True
        return asyncio.ensure_future(self._nudged(super().nudge()))

    async def _nudged(self, nudging: "asyncio.Future[None]") -> None:
        """The end of upstream's `nudge`; it stops when the client leaves, which is a disconnection at once.

        Tornado sees neither a client that leaves during `open` nor, when `open` fails, a connection to
        close. What upstream does next, with the channels and the buffer, finds neither unless all is well:
        a channel that nobody reads would stop the kernel (see the kernels' extension).
        """
        leaving = asyncio.ensure_future(self._gone.wait())
        tasks: set[asyncio.Future[Any]] = {nudging, leaving}
        self._handler.call_at_close(self.disconnect)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._handler.call_at_close(None)
            self._nudging = False
            self._ready = not self._gone.is_set() and not nudging.cancelled() and not nudging.exception()
            if not self._ready:
                self.disconnect()
                self._put_back()
        if self._ready:
            self._taken = None  # what was kept is sent now
            return
        nudging.result()

    def _set_aside(self) -> None:
        """Closes the channels of a connection that never came to be; what it took over is kept."""
        channels, self.channels = self.channels, {}
        if self._taken is None:
            for stream in channels.values():
                stream.close()
        elif channels:
            self._aside = (channels, self._taken["buffer"])
            self._taken["buffer"] = []

    def _put_back(self) -> None:
        aside, self._aside = self._aside, None
        if aside is not None:
            self.multi_kernel_manager.buffer_again(self.kernel_id, self.session_key, *aside)

    @property
    def subprotocol(self) -> str | None:
        """That of the messages; a batch is of messages of ``v1``."""
        selected: str | None = self.websocket_handler.selected_subprotocol
        return _V1_PROTOCOL if selected == BATCH_SUBPROTOCOL else selected

    @property
    def write_message(self) -> Any:
        """Upstream calls it to send; it counts what has not reached the socket yet."""
        return self._write_message

    def _write_message(self, message: bytes | str, binary: bool = False) -> None:
        if isinstance(message, bytes) and binary:
            self._gathered.append(message)
            self._unsent_bytes += len(message)
        else:
            self._send_gathered()
            self._unsent_bytes += len(message)
            self._count_sent(self.websocket_handler.write_message(message), len(message))

    def _send_gathered(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        messages, self._gathered = self._gathered, []
        if messages:
            size = sum(map(len, messages))
            with suppress(WebSocketClosedError):  # `disconnect` is on its way
                self._count_sent(self._handler.write_frames(messages), size)

    def disconnect(self) -> None:  # type: ignore[override]  # upstream, too, overrides its async base
        """The client is gone; what was gathered for it is kept with what is still to come."""
        if self._gone.is_set():
            return
        self._gone.set()
        self._hold_kernel()
        held, self._gathered = self._gathered, []
        if self._ready:
            super().disconnect()  # type: ignore[no-untyped-call]
        else:
            self._disconnect_early()
        for frame in held:
            channel, parts = deserialize_msg_from_ws_v1(frame)  # type: ignore[no-untyped-call]
            self.multi_kernel_manager.keep_for_client(self.kernel_id, channel, parts)

    def _disconnect_early(self) -> None:
        """Nothing is kept for a client that never was there.

        Upstream keeps when it counts the last connection out, and counts some out that it never counted in.
        """
        self._set_aside()
        manager = self.multi_kernel_manager
        for _ in range(1 if self._counted else 2):
            manager.notify_connect(self.kernel_id)
        super().disconnect()  # type: ignore[no-untyped-call]
        manager.notify_disconnect(self.kernel_id)
        if not self._nudging:
            self._put_back()

    @property
    def _handler(self) -> "FrameWriter":
        """Upstream's trait is of a class that can't write many messages at once; ours are `ChannelsHandler`."""
        handler: FrameWriter = self.websocket_handler  # type: ignore[assignment]
        return handler

    def _count_sent(self, sending: "asyncio.Future[None]", size: int) -> None:
        kept.add(size)

        def sent(future: asyncio.Future[None]) -> None:
            kept.add(-size)
            self._unsent_bytes -= size
            self._hold_kernel()
            if not future.cancelled():
                future.exception()  # a closed socket; `disconnect` is on its way

        sending.add_done_callback(sent)

    def handle_outgoing_message(self, stream: Any, outgoing_msg: list[bytes]) -> None:
        channel = stream if isinstance(stream, str) else getattr(stream, "channel", None)
        start, parts = split(outgoing_msg)
        if not parts:
            return
        if channel == "iopub":
            self.multi_kernel_manager.note_activity(self.kernel_id, parts)
            messages = self._backlog.admit(parts, self._unsent_bytes)
        else:
            messages = [bounded_reply(parts, self._bounds)]
        for message in messages:
            if self._passes and not isinstance(stream, str) and not stream.closed():
                # As upstream does, too, but it takes the message apart once more.
                frame = serialize_msg_to_ws_v1(message, channel)  # type: ignore[no-untyped-call]
                self.write_message(frame, binary=True)
            elif message is parts:
                super().handle_outgoing_message(stream, outgoing_msg)
            else:
                signature = self.session.sign(message[:4])
                super().handle_outgoing_message(stream, [*outgoing_msg[:start], signature, *message])
        self._hold_kernel()
        busy = self.kernel_manager.execution_state == "busy"
        self._send_soon(can_wait=busy and channel in ("iopub", "shell"))

    def _hold_kernel(self) -> None:
        """A kernel whose client does not keep up waits, if it says more than may be withheld."""
        unsent = self._unsent_bytes
        held = unsent > LITTLE_BYTES and unsent > 2 * self._backlog.limit and not self._gone.is_set()
        if held is not self._held:
            self._held = held
            for stream in self.channels.values():
                if isinstance(stream, KernelStream):
                    stream.hold(held)

    def _send_soon(self, *, can_wait: bool) -> None:
        """Sends what was gathered. While the kernel is busy more is to come, at the latest that it is idle."""
        if not can_wait or sum(map(len, self._gathered)) > _GATHER_BYTES:
            self._send_gathered()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_DELAY, self._send_gathered)

    def on_restart_failed(self) -> None:
        """The kernel died: says how, then closes."""
        self.log.warning("kernel %s died", self.kernel_id)
        iopub = self.channels.get("iopub")
        if iopub is not None and not iopub.closed():
            iopub.flush()  # what the kernel said last comes before the news of its death
        content = {"execution_state": "dead", "interpreter": self.kernel_manager.death()}
        self._send_status(content)
        self.end("The kernel died.")

    def end(self, reason: str) -> None:
        """Closes the websocket, with the code `KERNEL_ENDED`."""
        self._send_gathered()
        self.websocket_handler.close(KERNEL_ENDED, reason)

    def _send_status(self, content: dict[str, Any]) -> None:
        message = self.session.msg("status", content)
        if self.subprotocol == _V1_PROTOCOL:
            frame = serialize_msg_to_ws_v1(message, "iopub", self.session.pack)  # type: ignore[no-untyped-call]
            self.write_message(frame, binary=True)
        else:
            whole = {**message, "buffers": []}
            self.write_message(self._reserialize_reply(whole, channel="iopub"))  # type: ignore[no-untyped-call]


def connections_of(kernel_id: str) -> list[KernelConnection]:
    """The open websockets of a kernel."""
    opened = list(ZMQChannelsWebsocketConnection._open_sockets)
    return [one for one in opened if isinstance(one, KernelConnection) and one.kernel_id == kernel_id]
