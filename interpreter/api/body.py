"""Reading a request's body piece by piece under a limit."""

MAX_DRAINED_BYTES = 64 * 1024**2
"""How much of a refused body is read and thrown away, so that the client can read why; of one without a
good token that is read for `LINGER` only, after the answer.

Closing a connection that still has unread bytes resets it, and the client may lose the response.
"""

LINGER = 2.0
"""Seconds for which the body of a request without a good token is still read."""


class Body:
    """Collects a body up to ``limit`` bytes; past it the bytes are only counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0

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

    def add(self, chunk: bytes) -> None:
        """Take the next piece."""
        self._size += len(chunk)
        if self.is_too_large:
            self._chunks.clear()
        else:
            self._chunks.append(chunk)

    def refuse(self) -> None:
        """Keep nothing of what was and will be received."""
        self._limit = -1
        self._chunks.clear()

    def joined(self) -> bytes:
        """The whole body."""
        return b"".join(self._chunks)
