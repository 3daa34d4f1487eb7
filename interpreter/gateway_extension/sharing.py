"""What the gateway has in memory of all kernels together is bounded, else many of them could fill it. Pure.

What came and is not dealt with yet can still be left out: whoever has most of it makes room (`Unread`). What waits for
a client or a kernel that takes it slowly, or is away, has been accepted: there each may have a part of what is still
free, so that there is always some for one more (`Kept`).
"""

from typing import Protocol

MAX_UNREAD_BYTES = 128 * 1024**2
"""Room for two of the largest messages that a kernel may send, before they are bounded."""
MAX_KEPT_BYTES = 192 * 1024**2
KEPT_SHARE = 8
"""Each may have one part in so many of what is free."""
LITTLE_BYTES = 1024**2
"""So much of a kernel is kept however much others have, and what is less is never in the way."""
_SMALL_BYTES = 4096


class Holder(Protocol):
    """Who has something in memory that can be left out."""

    def make_room(self) -> None:
        """Leaves out what is large."""


class Unread:
    """What came of the kernels and was not dealt with yet: halves of messages, and whole ones that wait their turn."""

    def __init__(self, max_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held: dict[Holder, int] = {}  # of those that have more than a little
        self._total = 0

    def note(self, holder: Holder, held: int) -> None:
        """So many bytes the holder has now. If all have too many, those that have most make room, also this one."""
        self.forget(holder)
        if held <= _SMALL_BYTES:
            return
        self._total += held
        self._held[holder] = held
        while self._total > self._max_bytes:
            most = max(self._held, key=lambda one: self._held[one])
            self.forget(most)
            most.make_room()

    def forget(self, holder: Holder) -> None:
        """It has nothing any more, or its connection is over."""
        self._total -= self._held.pop(holder, 0)


class Kept:
    """What waits for whoever takes it slowly or is away: in websockets, in buffers, on its way to kernels."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._free = max_bytes

    def add(self, size: int) -> None:
        """So many bytes are kept now, beside the others; no more, if it is negative."""
        self._free -= size

    def limit(self, most: int) -> int:
        """How many bytes of one kernel may be kept now, ``most`` at most."""
        return min(most, max(LITTLE_BYTES, self._free // KEPT_SHARE))


unread = Unread()
kept = Kept()
