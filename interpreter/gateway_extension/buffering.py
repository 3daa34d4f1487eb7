"""Messages kept for a client that is away."""

from jupyter_client.session import DELIM

from .bounding import Backlog, Parts


class ReplayBuffer(list[tuple[str, Parts]]):
    """The list that jupyter_server appends ``(channel, message parts)`` to, bounded by a `Backlog`."""

    def __init__(self, backlog: Backlog) -> None:
        super().__init__()
        self._backlog = backlog
        self._bytes = 0

    def append(self, item: tuple[str, Parts]) -> None:
        channel, wire = item
        if channel != "iopub":
            self._keep(channel, wire)
            return
        start = wire.index(DELIM) + 2
        for parts in self._backlog.admit(wire[start:], self._bytes):
            # The signature is stale after a cut. `KernelConnection` signs again; v1 clients see none.
            self._keep(channel, [*wire[:start], *parts])

    def _keep(self, channel: str, wire: Parts) -> None:
        self._bytes += sum(map(len, wire))
        super().append((channel, wire))
