"""Reading a request's body piece by piece under a limit."""

from interpreter.api.shares import Held, Shares

MAX_DRAINED_BYTES = 64 * 1024**2
"""How much of a refused body is read and thrown away, so that the client can read why; of one without a
good token that is read for `LINGER` only, after the answer.

Closing a connection that still has unread bytes resets it, and the client may lose the response.
"""

BODY_TIMEOUT = 600.0
"""Seconds for the whole body of a request that is no upload: ten mebibytes over a seventh of a megabit per second."""

LINGER = 2.0
"""Seconds for which the body of a request without a good token is still read."""


class Body:
    """Collects a body up to ``limit`` bytes; past it, or past its token's share, the bytes are only counted."""

    def __init__(self, limit: int, shares: Shares) -> None:
        self._limit = limit
        self._held = Held(shares)
        self._chunks: list[bytes] = []
        self._size = 0
        self.is_crowded = False
        """Whether other requests of the token hold too much."""

    @property
    def size(self) -> int:
        """Bytes that came, also those that were thrown away."""
        return self._size

    @property
    def is_too_large(self) -> bool:
        """Whether more came than the limit."""
        return self._size > self._limit

    @property
    def is_hopeless(self) -> bool:
        """Whether so much more came that reading on is no use."""
        return self._size > self._limit + MAX_DRAINED_BYTES

    def add(self, chunk: bytes, token_id: str) -> None:
        """Take the next piece of a body that belongs to a request of this token."""
        self._size += len(chunk)
        if self.is_too_large or self.is_crowded:
            self.release()
        elif self._held.take(token_id, len(chunk)):
            self._chunks.append(chunk)
        else:
            self.is_crowded = True
            self.release()

    def refuse(self) -> None:
        """Keep nothing of what was and will be received."""
        self._limit = -1
        self.release()

    def release(self) -> None:
        """Nothing of what was received is needed any more. Once is enough, more does no harm."""
        self._chunks.clear()
        self._held.release()

    def joined(self) -> bytes:
        """The whole body."""
        return b"".join(self._chunks)
