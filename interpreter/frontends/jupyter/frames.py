"""The frames that come over a kernel's websocket, bounded for each token before they are read."""

import asyncio

from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketHandler, WebSocketProtocol13

from interpreter.api.shares import CROWDED, Held, Shares

TRY_LATER = 1013  # of WebSocket's codes the one for "try again later"


class SharedProtocol(WebSocketProtocol13):
    """Tornado's, which bounds a message, but not how many clients have sent a half of one.

    What a frame announces is taken from the token's share until the message was dealt with.
    """

    _token_id: str
    _held: Held

    @classmethod
    def of(
        cls, protocol: WebSocketProtocol13, handler: WebSocketHandler, shares: Shares, token_id: str
    ) -> "SharedProtocol":
        """What takes the place of the handler's protocol before it has begun."""
        made = cls(handler, False, protocol.params)
        made._token_id, made._held = token_id, Held(shares)
        return made

    async def _read_bytes(self, n: int) -> bytes:
        if not self._held.take(self._token_id, n):
            self.close(TRY_LATER, CROWDED)
            raise StreamClosedError
        return await super()._read_bytes(n)

    async def periodic_ping(self) -> None:
        """Tornado's, but a client that is still taking what was sent before the ping is not given up for it."""
        stream = self.stream
        while True:
            await asyncio.sleep(self.ping_interval)
            self._received_pong, taken = False, -1
            self.write_ping(b"")
            while not self._received_pong:
                if stream._total_write_done_index == taken:
                    self.close(reason="ping timed out")
                    return
                taken = stream._total_write_done_index
                await asyncio.sleep(self.ping_interval)

    async def _receive_frame(self) -> None:
        await super()._receive_frame()
        if self._fragmented_message_buffer is None:
            self._held.release()

    async def _receive_frame_loop(self) -> None:
        try:
            await super()._receive_frame_loop()
        finally:
            self._held.release()
