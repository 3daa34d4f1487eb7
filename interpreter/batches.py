"""Several binary messages in one websocket message: our gateway and our service speak so with each other. Pure.

Each message follows its length (u64, little endian). The messages of a run come at the same moment, and a
websocket message costs the reader about as much as what is in it.
"""

import struct
from collections.abc import Iterable, Iterator

BATCH_SUBPROTOCOL = "v1.batch.kernel.websocket.jupyter.org"
"""Messages of the subprotocol ``v1.kernel.websocket.jupyter.org``, in batches from the gateway, one by one to it."""
_LENGTH = struct.Struct("<Q")


def batch(messages: Iterable[bytes]) -> list[bytes]:
    """The parts of a batch, to be joined."""
    return [part for message in messages for part in (_LENGTH.pack(len(message)), message)]


def messages_of(batch: bytes) -> Iterator[memoryview]:
    """The messages of a batch. Raises ValueError when it is none."""
    view, start = memoryview(batch), 0
    while start < len(view):
        if start + _LENGTH.size > len(view):
            raise ValueError("a length is cut")
        (length,) = _LENGTH.unpack_from(view, start)
        start += _LENGTH.size
        if start + length > len(view):
            raise ValueError("a message is cut")
        yield view[start : start + length]
        start += length
