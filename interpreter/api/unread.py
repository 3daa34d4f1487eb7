"""What a client has not taken yet of its answers: bounded for each token, and ended with it.

A client that asks and does not read leaves its answers in our memory, until it is sent away.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

from tornado.iostream import IOStream

from interpreter.api.connections import connection_of
from interpreter.api.cors import CrossOrigin
from interpreter.api.shares import Shares, crowded
from interpreter.api.validity import while_valid
from interpreter.kernels.background import Background
from interpreter.tokens import TokenStore

STALL_TIMEOUT = 300.0
"""Seconds after which a client that takes nothing of what waits for it is sent away: others of its token may wait."""

_SMALL = 16 * 1024  # bytes; what is below is no more than what a connection costs anyway


class Unread:
    """The answers to all tokens' requests, as far as their clients have not taken them."""

    def __init__(self, limit: int, tokens: TokenStore) -> None:
        """``limit`` is that of one token's, in bytes."""
        self.shares = Shares(limit)
        self._tokens = tokens
        self._background = Background()

    def watch(self, stream: IOStream, token_id: str, size: int) -> None:
        """Give back ``size`` bytes that were taken, once the client has what was written to the stream.

        When its token ends before, the stream does.
        """
        if stream.closed():
            self.shares.give_back(token_id, size)
            return
        written = stream.write(b"")  # is done when all before it is
        if written.done():
            self.shares.give_back(token_id, size)
        else:
            self._background.spawn(self._wait(stream, written, token_id, size))

    async def _wait(
        self, stream: IOStream, written: "asyncio.Future[None]", token_id: str, size: int
    ) -> None:
        try:
            if not await while_valid(_settled(stream, written), self._tokens, token_id):
                stream.close()
        finally:
            self.shares.give_back(token_id, size)


class CountedAnswers(CrossOrigin):
    """Mixed into the handlers of the API: what they send waits for its client under the token's limit."""

    unread: Unread

    _room: int | None = None
    """Bytes that were taken for the next flush already; None: it takes what it needs."""

    def holding(self, size: int) -> AbstractContextManager[None]:
        """Hold so many bytes meanwhile. UnavailableError as `flush`."""
        return self.unread.shares.holding(self.token_id or "", size)

    @property
    def unsent(self) -> int:
        """Bytes that were written and not flushed."""
        return sum(map(len, self._write_buffer))

    def has_room(self, size: int) -> bool:
        """Whether so many bytes can be flushed now."""
        return size <= _SMALL or self.unread.shares.has_room(self.token_id or "", size)

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Have room for the next flush, of so many bytes, in turn with the token's other answers.

        What it sends is to be made only then: those that wait must hold nothing.
        """
        token_id = self.token_id or ""
        await self.unread.shares.wait(token_id, size)
        self._room = size
        try:
            yield
        finally:
            left, self._room = self._room, None
            self.unread.shares.give_back(token_id, left or 0)

    def flush(self, include_footers: bool = False) -> "asyncio.Future[None]":
        """Send what was written.

        UnavailableError if the token's clients leave too much unread; when a part is under way already,
        the connection ends instead.
        """
        size, token_id = self.unsent, self.token_id or ""
        room, self._room = self._room, None
        if (size <= _SMALL and not room) or not token_id or self.request.method == "HEAD":
            self.unread.shares.give_back(token_id, room or 0)
            return super().flush(include_footers)
        stream = connection_of(self.request).stream
        if room is None and not self.unread.shares.take(token_id, size):
            if not self._headers_written:
                raise crowded()
            stream.close()
            return super().flush(include_footers)
        try:
            return super().flush(include_footers)
        finally:
            self.unread.watch(stream, token_id, size if room is None else room)


async def _settled(stream: IOStream, written: "asyncio.Future[None]") -> None:
    """Return when it is done or can't be any more; a client that takes nothing is sent away."""
    while not written.done():
        before = stream._total_write_done_index
        await asyncio.wait({written}, timeout=STALL_TIMEOUT)
        if not written.done() and stream._total_write_done_index == before:
            stream.close()
    if not written.cancelled():
        written.exception()  # it is closed, which is no news
