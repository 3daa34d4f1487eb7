"""The sockets of one sandbox's network, seen from the host through /proc.

Nothing else limits how many there are in all processes, and what waits in them is on nobody's account: never for
those of netlink, for TCP and UDP only where a control group counts them.
"""

import contextlib
import functools
import mmap
import os
import re
from dataclasses import dataclass

from interpreter.gateway_extension.sandbox.processes import read

QUIET = 32  # sockets in all; a kernel itself has sixteen
FEW_NETLINK, FEW_INTERNET = 16, 2  # what so few hold is not worth a look at each; the system has one or two
FREE_UNIX = 64
# kind → tables with a line for each
_INTERNET: dict[str, tuple[str, ...]] = {"TCP": ("tcp", "tcp6"), "UDP": ("udp", "udp6")}
_PAGES = re.compile(rb" mem (\d+)")


@dataclass(frozen=True, slots=True)
class Sockets:
    """How many there are, and the bytes that wait in them to be read; what may wait in the unix sockets, at most."""

    count: int
    size: int
    unix_size: int = 0


def find_sockets(init: int, most: int) -> Sockets:
    """Those of the network that the process ``init`` is in; of few only the count. Raises OSError.

    To look at each of TCP and UDP takes long: only when all of the host have more than ``most`` bytes.
    """
    overview = read(f"/proc/{init}/net/sockstat")
    count = int(overview.split()[2])  # sockets: used COUNT
    is_much = sum(map(int, _PAGES.findall(overview))) * mmap.PAGESIZE > most
    if count <= QUIET and not is_much:  # as nearly always, and told in a fifth of the time
        return Sockets(count, 0)
    kinds = _counts(f"/proc/{init}/net/protocols")
    size = 0
    if kinds.get("NETLINK", 0) > FEW_NETLINK:
        size += _waiting(f"/proc/{init}/net/netlink", None)
    for kind, tables in _INTERNET.items():
        if is_much and kinds.get(kind, 0) + kinds.get(f"{kind}v6", 0) > FEW_INTERNET:
            for table in tables:
                with contextlib.suppress(FileNotFoundError):  # a system without IPv6
                    size += _waiting(f"/proc/{init}/net/{table}", ":")
    unix = kinds.get("UNIX", 0) + kinds.get("UNIX-STREAM", 0)
    return Sockets(count, size, max(0, unix - FREE_UNIX) * _unix_buffer())


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


def _waiting(path: str, separator: str | None) -> int:
    """``separator``: what stands between the amounts in a line; None: there is one, in decimals."""
    total = 0
    for line in read(path).decode().splitlines()[1:]:
        text = line.split()[4]
        total += int(text) if separator is None else sum(int(part, 16) for part in text.split(separator))
    return total


def terminals(init: int) -> int:
    """How many pseudo terminals the sandbox has."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{init}/root/dev/pts"))
    return 0
