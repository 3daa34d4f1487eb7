"""How much the clients of one token may make the service hold in memory, all of them together."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from interpreter.errors import UnavailableError

MAX_HELD_BYTES = 128 * 1024**2
"""What the bodies of one token's requests may hold, or four of the largest; and again its unread answers."""

CROWDED = "The token's other requests are too large together."


class Shares:
    """What is held for each token, at most ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()

    def take(self, token_id: str, size: int) -> bool:
        """Whether so many bytes more may be held."""
        if self._held[token_id] + size > self._limit:
            return False
        self._held[token_id] += size
        return True

    def give_back(self, token_id: str, size: int) -> None:
        """So many are not held any more."""
        self._held[token_id] -= size
        if not self._held[token_id]:
            del self._held[token_id]

    @contextmanager
    def holding(self, token_id: str, size: int) -> Iterator[None]:
        """Hold so many bytes meanwhile. UnavailableError if they are too many."""
        if not self.take(token_id, size):
            raise crowded()
        try:
            yield
        finally:
            self.give_back(token_id, size)


class Held:
    """What one request or message holds: more and more, until it is released as a whole."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._taken = ("", 0)

    def take(self, token_id: str, size: int) -> bool:
        """Whether so many bytes more may be held for this token, always the same one."""
        if not self._shares.take(token_id, size):
            return False
        self._taken = token_id, self._taken[1] + size
        return True

    def release(self) -> None:
        """Nothing is needed any more. Once is enough, more does no harm."""
        (token_id, size), self._taken = self._taken, ("", 0)
        if size:
            self._shares.give_back(token_id, size)


def crowded() -> UnavailableError:
    """The error for what would be too much."""
    return UnavailableError(CROWDED, retry_after=1)
