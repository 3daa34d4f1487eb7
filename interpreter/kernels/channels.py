"""One websocket to one kernel: connect, send, read, and come back after a lost socket."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tornado.httpclient import HTTPClientError
from tornado.iostream import IOStream
from tornado.websocket import (
    WebSocketClientConnection,
    WebSocketClosedError,
    WebSocketError,
    websocket_connect,
)

from interpreter.batches import BATCH_SUBPROTOCOL, messages_of
from interpreter.errors import GatewayError, UnavailableError
from interpreter.kernels.deaths import find_death, start_failure
from interpreter.kernels.gateway import Gateway
from interpreter.kernels.refusals import CONNECT_ERRORS, connection_error, unauthorized_sentence
from interpreter.kernels.turns import COSTLY
from interpreter.messages import V1_SUBPROTOCOL, BadMessageError, Message, decode, divided, encode, new_msg_id
from interpreter.models import new_id
from interpreter.outputs import prepared

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 32 * 1024**2
LARGE_FRAME_BYTES = 64 * 1024  # above the streams and results of most runs; read in a turn
SMALL_FRAME_BYTES = 4 * 1024  # what is no larger is always read at once
AT_ONCE = 0.01  # seconds after which others go on before the next message of the same frame is taken
CHEAP = 0.00025  # seconds of the processor that reading a message at once may take without consequence
PEACE = 2  # after a costly message that took t seconds its kernel is not listened to for PEACE * t seconds …
MAX_PEACE = 3.0  # … or so many; it waits, as the gateway does
CLOSE_KERNEL_GONE = 4404  # our own gateway extension's close code for a deleted or dead kernel
RECONNECT_DELAYS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0)  # seconds; about 7 s in all
RECONNECT_TIMEOUT = 10.0  # seconds after which a lost kernel is given up, however the gateway behaves
PING_INTERVAL = 15.0  # seconds between two pings, which notice a peer that vanished without a word
NO_MESSAGE = "The gateway sent a frame that is not a Jupyter message; it is skipped."
LOST = "The connection to the kernel was lost and could not be restored: "


class KernelChannels:
    """The channels of one kernel over one websocket at a time.

    ``on_message`` gets every message in order; ``on_reconnect`` is called after a lost socket was
    replaced; ``on_gone`` once, with a sentence, when the kernel can't be reached any more.
    """

    def __init__(
        self,
        gateway: Gateway,
        kernel_id: str,
        *,
        on_message: Callable[[Message], None],
        on_reconnect: Callable[[], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self.kernel_id = kernel_id
        # Kept across reconnects: the gateway replays only to the client that it buffered for.
        self.client_id = new_id()
        self._gateway = gateway
        self._on_message = on_message
        self._on_reconnect = on_reconnect
        self._on_gone = on_gone
        self._connection: WebSocketClientConnection | None = None
        self._usable = asyncio.Event()
        self._v1 = True
        self._batched = False
        self._reader: asyncio.Task[None] | None = None

    async def connect(self, *, timeout: float) -> None:
        """Open the websocket, which the gateway answers once the kernel has, within ``timeout`` seconds.

        Raises GatewayError.
        """
        self._connection = await self._open(timeout)
        self._usable.set()
        self._reader = asyncio.create_task(self._read(), name=f"channels {self.kernel_id}")
        self._reader.add_done_callback(self._reader_ended)

    async def usable(self) -> None:
        """Return when requests can be sent, or never will be again; bounded by the caller."""
        await self._usable.wait()

    async def aclose(self) -> None:
        """Close the websocket and end the reader; nothing is called back afterwards."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait({reader})
        self._close_connection()
        self._usable.set()

    def send(self, channel: str, msg_type: str, content: Mapping[str, Any], msg_id: str | None = None) -> str:
        """Send a request and give its message id.

        Raises UnavailableError while the socket is lost.
        """
        msg_id = msg_id or new_msg_id()
        frame = encode(channel, msg_type, content, msg_id=msg_id, client_id=self.client_id, v1=self._v1)
        connection = self._connection
        if connection is None:
            raise UnavailableError("The connection to the kernel is being restored; try again.")
        try:
            sent = connection.write_message(frame, binary=isinstance(frame, bytes))
        except WebSocketClosedError as error:
            raise UnavailableError("The connection to the kernel is being restored; try again.") from error
        # The reader notices a broken socket; its write's exception must only not go unread.
        sent.add_done_callback(lambda future: future.cancelled() or future.exception())
        return msg_id

    async def _open(self, timeout: float) -> WebSocketClientConnection:
        try:
            connection = await self._upgrade(timeout)
        except HTTPClientError as error:
            if error.code in (401, 403) and self._gateway.target.auth == "password":
                connection = await self._open_after_login(timeout)
            else:
                raise self._refusal(error) from error
        self._batched = connection.selected_subprotocol == BATCH_SUBPROTOCOL
        self._v1 = self._batched or connection.selected_subprotocol == V1_SUBPROTOCOL
        return connection

    async def _open_after_login(self, timeout: float) -> WebSocketClientConnection:
        try:
            return await self._upgrade(timeout, log_in=True)
        except HTTPClientError as error:
            raise self._refusal(error) from error

    async def _upgrade(self, timeout: float, *, log_in: bool = False) -> WebSocketClientConnection:
        target = self._gateway.target
        request = await self._gateway.websocket_request(
            self.kernel_id, self.client_id, timeout=timeout, log_in=log_in
        )
        opening = asyncio.ensure_future(
            websocket_connect(
                request,
                subprotocols=[BATCH_SUBPROTOCOL, V1_SUBPROTOCOL],
                max_message_size=MAX_FRAME_BYTES,
                ping_interval=PING_INTERVAL,
                ping_timeout=PING_INTERVAL,
            )
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)  # whoever waits for it may be cancelled as well
            self._gateway.discard_later(_answered(opening))
            raise
        except WebSocketError as error:
            raise GatewayError(
                f"The server at gateway_url ({target.url}) opens no websocket; does a proxy block upgrades?",
                code="gateway_no_websocket",
            ) from error
        except HTTPClientError:
            raise
        except CONNECT_ERRORS as error:
            raise connection_error(target, error) from error

    def _refusal(self, error: HTTPClientError) -> GatewayError:
        target = self._gateway.target
        if error.code in (401, 403):
            return GatewayError(unauthorized_sentence(target), code="gateway_unauthorized")
        if error.code == 404:
            death = find_death(error.response.body if error.response is not None else None)
            if death is not None:
                return GatewayError(start_failure(death), code="kernel_not_up")
            return GatewayError("The gateway does not know the kernel.", code="kernel_gone")
        if error.code == 599:
            return connection_error(target, error)
        return GatewayError(
            "The kernel did not come up: the gateway could not reach it.", code="kernel_not_up"
        )

    async def _read(self) -> None:
        connection = self._connection
        while connection is not None:
            await self._read_until_closed(connection)
            self._usable.clear()
            self._close_connection()
            if connection.close_code == CLOSE_KERNEL_GONE:
                self._on_gone("The gateway ended the kernel.")
                return
            connection = self._connection = await self._reconnect()
            if connection is not None:
                self._usable.set()
                self._on_reconnect()

    def _reader_ended(self, reader: "asyncio.Task[None]") -> None:
        """Whatever ends the reader: nobody may wait for its messages for ever."""
        self._usable.set()
        if not reader.cancelled() and (error := reader.exception()) is not None:
            log.error("Reading what a kernel says failed.", exc_info=error)
            self._close_connection()
            self._on_gone("The service failed to read what the kernel said.")

    async def _read_until_closed(self, connection: WebSocketClientConnection) -> None:
        """Deliver messages until the socket closes (a frame over the limit closes it, too).

        Whoever owes for what was read at once waits for a turn with all but the small ones.
        """
        turns = self._gateway.large_messages
        sock = None if self._batched else _socket_of(connection)  # our gateway waits for no acknowledgement
        while (frame := await connection.read_message()) is not None:
            _acknowledge_now(sock)
            since = time.monotonic()
            for message in self._messages_of(frame):
                if time.monotonic() - since > AT_ONCE:
                    await asyncio.sleep(0)
                    since = time.monotonic()
                if len(message) <= SMALL_FRAME_BYTES:
                    self._take(message)
                elif len(message) <= LARGE_FRAME_BYTES and not turns.owes(self.kernel_id):
                    start = time.thread_time()
                    self._take(message)
                    if (spent := time.thread_time() - start) > CHEAP:
                        turns.charge(self.kernel_id, spent)
                else:
                    await self._take_large(message)

    def _messages_of(self, frame: bytes | str) -> Sequence[bytes | memoryview | str]:
        if not self._batched or isinstance(frame, str):
            return (frame,)
        try:
            return tuple(messages_of(frame))
        except ValueError:
            log.warning(NO_MESSAGE)
            return ()

    def _take(self, frame: bytes | memoryview | str) -> None:
        try:
            message = decode(frame, v1=self._v1)
        except BadMessageError:
            log.warning(NO_MESSAGE)
        else:
            self._on_message(message)

    async def _take_large(self, frame: bytes | memoryview | str) -> None:
        """Takes what may take long: other sessions go on meanwhile, and have their turn after it.

        To read JSON holds up all threads, so half of the time belongs to small messages, and to large ones of kernels
        that send few, however many kernels send many.
        """
        spent, turns = 0.0, self._gateway.large_messages
        await turns.begin(self.kernel_id)
        try:
            message, spent = await asyncio.to_thread(_decode_timed, frame, self._v1)
            for position, part in enumerate(divided(message)):
                if position:
                    await asyncio.sleep(0)
                start = time.thread_time()
                self._on_message(part)
                spent += time.thread_time() - start
        except _UnreadableError as error:
            spent = error.spent
            log.warning(NO_MESSAGE)
        finally:
            turns.end(self.kernel_id, spent)
        if spent > COSTLY:
            await asyncio.sleep(min(PEACE * spent, MAX_PEACE))

    async def _reconnect(self) -> WebSocketClientConnection | None:
        """The new socket, or None once `on_gone` was called."""
        deadline = asyncio.get_running_loop().time() + RECONNECT_TIMEOUT
        reason = "the gateway did not answer in time."
        for delay in RECONNECT_DELAYS:
            try:
                async with asyncio.timeout_at(deadline):
                    if (end := await self._gateway.find_end(self.kernel_id)) is not None:
                        self._on_gone(end.sentence)
                        return None
                    return await self._open(RECONNECT_TIMEOUT)
            except TimeoutError:
                break
            except GatewayError as error:
                # Who runs code need not know the gateway's address, which the error names.
                reason = _SHORT_REASONS.get(error.code or "", "the gateway can't be reached.")
                if error.code == "kernel_gone":
                    break
            await asyncio.sleep(delay)
        self._on_gone(LOST + reason)
        return None

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            _close(connection)


_SHORT_REASONS = {
    "gateway_unauthorized": "the gateway refuses the service's credentials.",
    "gateway_failed": "the gateway fails.",
    "kernel_not_up": "the gateway can't reach the kernel.",
    "kernel_gone": "the gateway does not know the kernel any more.",
    "gateway_timeout": "the gateway did not answer in time.",
}


def _decode_timed(frame: bytes | memoryview | str, v1: bool) -> tuple[Message, float]:
    """The message, and the processor's time that it took: on a busy machine nobody pays for the others' work."""
    start = time.thread_time()
    try:
        message = prepared(decode(frame, v1=v1))
    except BadMessageError as error:
        raise _UnreadableError(time.thread_time() - start) from error
    return message, time.thread_time() - start


class _UnreadableError(Exception):
    """It is no message; to find that out took so many seconds of the processor."""

    def __init__(self, spent: float) -> None:
        super().__init__(spent)
        self.spent = spent


async def _answered(opening: "asyncio.Future[WebSocketClientConnection]") -> None:
    await asyncio.wait({opening})


def _close_unwanted(opening: "asyncio.Future[WebSocketClientConnection]") -> None:
    """Close a websocket that opens when nobody waits for it any more."""
    if not opening.cancelled() and opening.exception() is None:
        _close(opening.result())


def _close(connection: WebSocketClientConnection) -> None:
    """Say goodbye and hang up; the answer of a gateway that may be gone is not worth a wait."""
    stream = _stream_of(connection)  # `close` forgets it
    connection.close()
    if stream is not None:
        stream.close()


def _stream_of(connection: WebSocketClientConnection) -> IOStream | None:
    stream = getattr(connection.protocol, "stream", None)
    return stream if isinstance(stream, IOStream) else None


def _socket_of(connection: WebSocketClientConnection) -> socket.socket | None:
    sock = getattr(_stream_of(connection), "socket", None)
    return sock if isinstance(sock, socket.socket) else None


def _acknowledge_now(sock: socket.socket | None) -> None:
    """Ask for an immediate TCP acknowledgement of what comes next.

    A stock gateway's socket has Nagle's algorithm on and waits for our delayed acknowledgement: 40 ms
    for each run. Linux forgets the option, so it is set again after each read.
    """
    if sock is not None and hasattr(socket, "TCP_QUICKACK"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
