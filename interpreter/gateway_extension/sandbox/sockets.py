"""The sockets of one sandbox's network, seen from the host through /proc.

Nothing else limits how many there are in all processes, and what waits in them is on nobody's account: never for
those of netlink, for TCP and UDP only where a control group counts them.
"""

import contextlib
import functools
import os
from dataclasses import dataclass

from interpreter.gateway_extension.sandbox.processes import read

QUIET = 64  # sockets in all; a kernel itself has about thirty
FEW = 16  # of one kind: what so few hold is not worth a look at each
# kind → (tables with a line for each, column, what stands between the amounts in it; None: one decimal amount)
_TABLES: dict[str, tuple[tuple[str, ...], int, str | None]] = {
    "NETLINK": (("netlink",), 4, None),
    "TCP": (("tcp", "tcp6"), 4, ":"),
    "UDP": (("udp", "udp6"), 4, ":"),
}


@dataclass(frozen=True, slots=True)
class Sockets:
    """How many there are, and the bytes that wait in them to be read; what may wait in the unix sockets, at most."""

    count: int
    size: int
    unix_size: int = 0


def find_sockets(init: int) -> Sockets:
    """Those of the network that the process ``init`` is in; of few only the count. Raises OSError."""
    count = int(read(f"/proc/{init}/net/sockstat").split()[2])  # sockets: used COUNT
    if count <= QUIET:  # as nearly always, and told in a fifth of the time
        return Sockets(count, 0)
    kinds = _counts(f"/proc/{init}/net/protocols")
    size = 0
    for kind, (tables, column, separator) in _TABLES.items():
        if kinds.get(kind, 0) + kinds.get(f"{kind}v6", 0) > FEW:
            for table in tables:
                with contextlib.suppress(FileNotFoundError):  # a system without IPv6
                    size += _waiting(f"/proc/{init}/net/{table}", column, separator)
    unix = kinds.get("UNIX", 0) + kinds.get("UNIX-STREAM", 0)
    return Sockets(count, size, max(0, unix - QUIET) * _unix_buffer())


@functools.cache
def _unix_buffer() -> int:
    """What may wait of what one unix socket has sent: with the last message, twice what is said to be the limit.

    How much does is told to nobody else. No sandbox may set another limit.
    """
    return 2 * int(read("/proc/sys/net/core/wmem_default"))


def _counts(path: str) -> dict[str, int]:
    """Kind → how many of them this network has."""
    lines = read(path).decode().splitlines()[1:]
    return {name: int(count) for name, _, count, *_ in map(str.split, lines)}


def _waiting(path: str, column: int, separator: str | None) -> int:
    total = 0
    for line in read(path).decode().splitlines()[1:]:
        text = line.split()[column]
        total += int(text) if separator is None else sum(int(part, 16) for part in text.split(separator))
    return total


def terminals(init: int) -> int:
    """How many pseudo terminals the sandbox has."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{init}/root/dev/pts"))
    return 0
