"""What a client that is away gets when it comes back."""

from collections import deque

from interpreter.api.shares import Shares
from interpreter.frontends.jupyter.fitting import json_size
from interpreter.frontends.jupyter.wire import Outgoing

MAX_KEPT_BYTES = 16 * 1024**2  # of output for one client …
MAX_KEPT_ENDS = 4 * 1024**2  # … and so many more of what tells how its requests ended

_ALWAYS_KEPT = ("status", "execute_reply", "error")


class Kept:
    """Messages in their order, as far as there is room: for one client, and for all of its token."""

    def __init__(self, shares: Shares, token_id: str) -> None:
        self._shares = shares
        self._token_id = token_id
        self._messages: deque[tuple[Outgoing, int]] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    @property
    def first(self) -> Outgoing:
        """The oldest. IndexError when there is none."""
        return self._messages[0][0]

    def add(self, message: Outgoing) -> None:
        """Keep it if there is room; of what there is too much the end is lost."""
        size = measure(message)
        room = MAX_KEPT_BYTES + (MAX_KEPT_ENDS if message.msg_type in _ALWAYS_KEPT else 0)
        if self._bytes + size <= room and self._shares.take(self._token_id, size):
            self._messages.append((message, size))
            self._bytes += size

    def drop_first(self) -> None:
        """The client has it."""
        if self._messages:  # else all was forgotten meanwhile
            _, size = self._messages.popleft()
            self._bytes -= size
            self._shares.give_back(self._token_id, size)

    def clear(self) -> None:
        """The client will not come back."""
        while self._messages:
            self.drop_first()


def measure(message: Outgoing) -> int:
    """Bytes that the message holds."""
    return json_size(message.content) + json_size(message.parent)
