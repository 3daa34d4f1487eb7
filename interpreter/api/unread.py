"""What a client has not taken yet of its answers: bounded for each token, and ended with it.

A client that asks and does not read leaves its answers in our memory, for as long as it likes.
"""

import asyncio
from contextlib import AbstractContextManager, suppress

from tornado.iostream import IOStream, StreamClosedError

from interpreter.api.connections import connection_of
from interpreter.api.cors import CrossOrigin
from interpreter.api.shares import Shares, crowded
from interpreter.api.validity import while_valid
from interpreter.kernels.background import Background
from interpreter.tokens import TokenStore

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
            if not await while_valid(_settled(written), self._tokens, token_id):
                stream.close()
        finally:
            self.shares.give_back(token_id, size)


class CountedAnswers(CrossOrigin):
    """Mixed into the handlers of the API: what they send waits for its client under the token's limit."""

    unread: Unread

    def holding(self, size: int) -> AbstractContextManager[None]:
        """Hold so many bytes that are sent piece by piece. UnavailableError as `flush`."""
        return self.unread.shares.holding(self.token_id or "", size)

    def flush(self, include_footers: bool = False) -> "asyncio.Future[None]":
        """Send what was written.

        UnavailableError if the token's clients leave too much unread; when a part is under way already,
        the connection ends instead.
        """
        size, token_id = sum(map(len, self._write_buffer)), self.token_id
        if size <= _SMALL or token_id is None or self.request.method == "HEAD":
            return super().flush(include_footers)
        stream = connection_of(self.request).stream
        if not self.unread.shares.take(token_id, size):
            if not self._headers_written:
                raise crowded()
            stream.close()
            return super().flush(include_footers)
        sent = super().flush(include_footers)
        self.unread.watch(stream, token_id, size)
        return sent


async def _settled(written: "asyncio.Future[None]") -> None:
    """Return when it is done or can't be any more."""
    with suppress(StreamClosedError):
        await written
