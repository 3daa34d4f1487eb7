"""Messages kept for a client that is away."""

from collections.abc import Callable

from interpreter.gateway_extension.bounding import Backlog, Parts, split
from interpreter.gateway_extension.framing import cost
from interpreter.gateway_extension.sharing import kept

SMALL_BYTES = 65536
MAX_BEYOND_BYTES = 4 * 1024**2
"""So many bytes of small messages are kept beyond what else is, however much others have: no run ends with as many."""


class ReplayBuffer(list[tuple[str, Parts]]):
    """The list that jupyter_server appends ``(channel, message parts)`` to, bounded by a `Backlog`.

    Results, errors and replies, which it lets pass, are kept up to the double of its limit.
    ``watch`` sees each iopub message, as the connection of a client that is there does.
    """

    def __init__(
        self,
        backlog: Backlog,
        sign: Callable[[list[bytes]], bytes],
        watch: Callable[[Parts], None] = lambda parts: None,
    ) -> None:
        super().__init__()
        self._sign = sign
        self._watch = watch
        self._backlog = backlog
        self._bytes = self._beyond = 0

    def __del__(self) -> None:
        kept.add(-self._bytes)

    def append(self, item: tuple[str, Parts]) -> None:
        channel, wire = item
        start, whole = split(wire)
        if not whole:
            return
        if channel != "iopub":
            self._keep(channel, wire)
            return
        self._watch(whole)
        for parts in self._backlog.admit(whole, self._bytes):
            signature = wire[start] if parts is whole else self._sign(parts[:4])
            self._keep(channel, [*wire[:start], signature, *parts])

    def _keep(self, channel: str, wire: Parts) -> None:
        size = cost(map(len, wire))  # else those of empty parts would have none
        if self._bytes > 2 * self._backlog.limit:
            if size > SMALL_BYTES or self._beyond > MAX_BEYOND_BYTES:
                return
            self._beyond += size
        self._bytes += size
        kept.add(size)
        super().append((channel, wire))
