"""What the processes of a sandbox hold, and nobody sees who looks at one after the other while they go on.

A process may end before it is looked at, with all that it holds in a child by then. And of a file that it has mapped
nothing tells an ordinary user the size: it may have only a part of it mapped, or use none of it. But the host tells
what of its memory is used, and a disk what is free. Only when a sandbox could have too much of what went its
processes have to stand still, and to say what they have (see `tracing`).
"""

import bisect
import contextlib
import errno
import math
import mmap
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from interpreter.gateway_extension.sandbox.held import Place
from interpreter.gateway_extension.sandbox.pace import PEACE
from interpreter.gateway_extension.sandbox.processes import read
from interpreter.gateway_extension.sandbox.tracing import Caller

# Seconds for which there may be no answer (on a busy machine it takes long until all stand still), and until they
# are asked again at the latest.
PATIENCE, PEACE_AT_MOST = 5.0, 2.0
# Bytes of a file that are looked at, where the process may have as many addresses: of a larger one nothing is known.
WINDOWS = (64 * 1024**3, 1024**3, 64 * 1024**2)
_WAIT = 0.2  # seconds for an answer, which mostly comes in a hundredth; meanwhile nothing else is looked at
_STEP = 64 * 1024  # pages
_ANYWHERE, _NONE_NEW = 1, 0x10000
_SHARED, _NO_FILE = 0x21, 2**64 - 1  # a process may be near the limit of what is its own
_NUMBERS = re.compile(rb"^(\w+): +(\d+) kB$", re.MULTILINE)

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes that they have, the level when they were asked, and whether it is too much."""

    known: int
    level: int
    is_too_much: bool


class Inquiry(Generic[Found]):
    """Something to be found out in a thread that then ends, again and again; after one that took long there is peace."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._found: Found | None = None
        self._unsure_since = self._asked_at = self._not_before = 0.0

    def find(self, ask: Callable[[], Found]) -> Found | None:
        """What ``ask`` gives, which may block; None: nothing yet."""
        now = time.monotonic()
        if now - self._asked_at > PATIENCE:
            self._unsure_since = now
        self._asked_at = now
        if self._thread is None and now >= self._not_before:
            self._start(ask)
        if self._thread is not None:
            self._thread.join(_WAIT)
            if not self._thread.is_alive():
                self._thread = None
        found, self._found = self._found, None
        if found is not None:
            self._unsure_since = now
        return found

    @property
    def takes_long(self) -> bool:
        """Whether nothing was found for so long that it may not be by chance."""
        return self._asked_at - self._unsure_since > PATIENCE

    def _start(self, ask: Callable[[], Found]) -> None:
        thread = threading.Thread(target=self._find_out, args=(ask,), name="sandbox-hidden", daemon=True)
        with contextlib.suppress(RuntimeError):  # the system has no thread for us now
            thread.start()
            self._thread = thread

    def _find_out(self, ask: Callable[[], Found]) -> None:
        started = time.monotonic()
        with contextlib.suppress(OSError, ValueError, IndexError):
            self._found = ask()
        peace = PEACE * (time.monotonic() - started)
        self._not_before = time.monotonic() + min(peace, PEACE_AT_MOST)


class HiddenBytes:
    """What of that one sandbox has in memory, or on a disk.

    ``level``, here and below: what the host has used of it altogether, without what can be seen of this sandbox.
    """

    def __init__(self) -> None:
        self.known = 0  # when they were asked last
        self._lowest: float = math.inf  # level since then
        self._inquiry = Inquiry[Answer]()

    def at_most(self, level: int) -> int:
        """What they had, and all by which the level has grown since."""
        self._lowest = min(self._lowest, level)
        return self.known + level - int(self._lowest)

    def are_none(self, level: int) -> None:
        """Nothing was hidden at this level."""
        self.known, self._lowest = 0, level

    def is_too_much(self, ask: Callable[[], Answer], *, trusted: bool = False) -> bool:
        """Where it could be: whether it is. Who gives no answer for long is not believed, unless ``trusted``."""
        answer = self._inquiry.find(ask)
        if answer is None:
            return self._inquiry.takes_long and not trusted
        self.known, self._lowest = answer.known, answer.level
        return answer.is_too_much


def bytes_of_files(caller: Caller, places: Sequence[Place]) -> int:
    """What the files in memory have, at most, that its process has mapped at these places. Raises OSError."""
    answers = caller.call("mmap", 0, _STEP, mmap.PROT_READ | mmap.PROT_WRITE, _SHARED, _NO_FILE, 0)
    used = 0
    try:
        for place in places:
            with _whole_file(caller, place) as (start, pages, before):
                used += before
                for page in range(0, pages, _STEP):
                    count = min(_STEP, pages - page)
                    caller.call("mincore", start + page * mmap.PAGESIZE, count * mmap.PAGESIZE, answers)
                    used += count - caller.read(answers, count).count(0)
        return used * mmap.PAGESIZE
    finally:
        caller.call("munmap", answers, _STEP)


def size_of_files(caller: Caller, places: Sequence[Place]) -> int:
    """How large the files are that its process has mapped at these places. Raises OSError."""
    size = 0
    for place in places:
        with _whole_file(caller, place) as (_, pages, before):
            size += (before + pages) * mmap.PAGESIZE
    return size


@contextlib.contextmanager
def _whole_file(caller: Caller, place: Place) -> Iterator[tuple[int, int, int]]:
    """Whatever part of it is mapped there, the file is mapped once more, from its begin: where, and its pages.

    Of one that was opened for reading only that can't be done: then from the same part on, and how many pages are
    before that.
    """
    address, offset = place
    window, size = _new_window(caller, address)
    before = offset // mmap.PAGESIZE
    try:
        caller.call("mprotect", window, size, mmap.PROT_READ)
        if before and _goes_to_its_begin(caller, window, size):
            before = 0
        most = size // mmap.PAGESIZE
        pages = bisect.bisect_left(
            range(most), x=True, key=lambda page: _is_behind_its_end(caller, window + page * mmap.PAGESIZE)
        )
        if pages == most:
            raise OSError(errno.EFBIG, "too large a file to look at")
        yield window, pages, before
    finally:
        caller.call("munmap", window, size)


def _goes_to_its_begin(caller: Caller, window: int, size: int) -> bool:
    try:
        caller.call("remap_file_pages", window, size, 0, 0, _NONE_NEW)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _new_window(caller: Caller, address: int) -> tuple[int, int]:
    for size in WINDOWS:
        try:
            return caller.call("mremap", address, 0, size, _ANYWHERE), size
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
    raise OSError(errno.ENOMEM, "no room in its addresses")


def _is_behind_its_end(caller: Caller, address: int) -> bool:
    try:
        caller.read(address, 1)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        return True
    return False


def files_in_memory() -> int:
    """Bytes that all files in memory of the host have together, also those that were swapped out."""
    numbers = memory_numbers()
    return sum(numbers.get(name, 0) for name in (b"Shmem", b"SwapTotal")) - numbers.get(b"SwapFree", 0)


def used_memory() -> int:
    """Bytes of the host's that are used, without what the system would give back, also what was swapped out."""
    numbers = memory_numbers()
    swapped = numbers.get(b"SwapTotal", 0) - numbers.get(b"SwapFree", 0)
    return numbers.get(b"MemTotal", 0) - numbers.get(b"MemAvailable", 0) + swapped


def memory_numbers() -> dict[bytes, int]:
    """Of the host's memory, by the names that the system gives them, in bytes."""
    return {name: int(number) * 1024 for name, number in _NUMBERS.findall(read("/proc/meminfo"))}
