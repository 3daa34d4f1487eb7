"""How much the clients of one token may make the service hold in memory, all of them together."""

from asyncio import CancelledError, Future, get_running_loop
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

from interpreter.errors import UnavailableError
from interpreter.settings import Settings

CROWDED = "The token's other requests are too large together (max_held_bytes)."


def limit_of(settings: Settings) -> int:
    """Bytes: what is set, or four of the largest bodies."""
    return max(settings.max_held_bytes, 4 * settings.max_body_bytes)


class Shares:
    """What is held for each token, at most ``limit`` bytes; or one thing alone, however large it is."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()
        self._waiting: defaultdict[str, deque[tuple[int, Future[None]]]] = defaultdict(deque)

    def take(self, token_id: str, size: int) -> bool:
        """Whether so many bytes more may be held."""
        held = self._held.get(token_id, 0)
        if held and held + size > self._limit:
            return False
        if size:
            self._held[token_id] = held + size
        return True

    def has_room(self, token_id: str, size: int) -> bool:
        """Whether so many bytes more could be held, and nobody waits for that."""
        held = self._held.get(token_id, 0)
        return token_id not in self._waiting and (not held or held + size <= self._limit)

    async def wait(self, token_id: str, size: int) -> None:
        """Take so many once there is room for them, in turn."""
        if token_id not in self._waiting and self.take(token_id, size):
            return
        given: Future[None] = get_running_loop().create_future()
        self._waiting[token_id].append((size, given))
        try:
            await given
        except CancelledError:
            if given.cancelled():
                self._serve(token_id)
            else:
                self.give_back(token_id, size)
            raise

    def give_back(self, token_id: str, size: int) -> None:
        """So many are not held any more."""
        if size:
            self._held[token_id] -= size
            if not self._held[token_id]:
                del self._held[token_id]
        self._serve(token_id)

    def _serve(self, token_id: str) -> None:
        """Let those go on for whom there is room, in their order."""
        waiting = self._waiting.get(token_id)
        while waiting and (waiting[0][1].cancelled() or self.take(token_id, waiting[0][0])):
            _, given = waiting.popleft()
            if not given.cancelled():
                given.set_result(None)
        if not waiting:
            self._waiting.pop(token_id, None)

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
