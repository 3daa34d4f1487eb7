"""What the processes of one sandbox hold together, and whether it is too much.

A file without a name uses memory or disk for as long as somebody has it open or mapped, and nothing but these tells
of it. Pipes and what is watched with epoll count for the host's user, who may be the same for all sandboxes.
"""

import contextlib
import ctypes
import functools
import itertools
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from interpreter.gateway_extension.sandbox import tracing
from interpreter.gateway_extension.sandbox.held import (
    MAX_LINES,
    MAX_WATCHES,
    File,
    Held,
    Place,
    look_at,
    memory_device,
)
from interpreter.gateway_extension.sandbox.hidden import (
    Answer,
    HiddenBytes,
    Inquiry,
    bytes_of_files,
    files_in_memory,
    memory_numbers,
    size_of_files,
    used_memory,
)
from interpreter.gateway_extension.sandbox.pace import PEACE
from interpreter.gateway_extension.sandbox.processes import (
    TooLongError,
    memory_sizes,
    relations,
    tmpfs_bytes,
)
from interpreter.gateway_extension.sandbox.tracing import Caller

MAX_DESCRIPTORS = 65_536  # in all processes together
MAX_PIPES = 4096
FEW = 16  # watches of one epoll that are not worth finding out whether several processes have the same
# Seconds until the next look in any case: at processes that seem to do nothing (less than 10 ms of each are not
# seen), at busy ones, and at many. What uses much memory or disk is looked at sooner, as the host then has less.
QUIET_INTERVAL, BUSY_INTERVAL, MANY_INTERVAL, FEW_PROCESSES = 20.0, 10.0, 0.75, 8
MUCH_MEMORY, MUCH_DISK = 16 * 1024**2, 4 * 1024**2
VERY_MUCH = 1024**3  # bytes: once the host has so much less, there is no peace after a look that took long
MAX_SECONDS = 6.0  # of the processor for one look; 512 large programs take 0.7 to 1.5
PATIENCE = 2.0  # seconds for which descriptors may be on their way, or a process closed to us
HASTE = 5.0  # seconds for which processes may end before they are looked at; then all stand still for a look
SMALL_PART = 16  # of the memory limit
TOO_LONG = "what its processes hold takes too long to look at"
SMALL_BYTES = 256  # what the system needs for each mapping, and each lock of a part of a file
LARGE_MAPS = 1000  # mappings: a program with many libraries has about as many
# What it needs for each mapping and each process that a process has come from by fork; and how many are usual.
LINK_BYTES, FEW_FORKS = 64, 4
_SYSCALL_KCMP = {"x86_64": 312, "aarch64": 272}
_libc = ctypes.CDLL(None, use_errno=True)


class Holdings:
    """Of one sandbox. ``folders``: where it may write on a disk, by the names that it knows → descriptor.

    ``inside``: its first process, then others that are no descendants of that and run its code, too.
    """

    def __init__(
        self, folders: Mapping[str, int], largest_file: int, inside: Callable[[], Sequence[int]]
    ) -> None:
        self._inside, self._init = inside, inside()[0]
        self._folders = [(os.fsencode(path) + b"/", os.fstat(fd).st_dev) for path, fd in folders.items()]
        self._descriptors = [*folders.values()]
        self._free: list[int] = []  # of the host's, when the processes were looked at
        self._largest_file = largest_file
        self._held: dict[int, Held] = {}  # by process
        self._used: dict[int, bytes] = {}  # of the processors' time, when they were looked at
        self._forks: dict[int, int] = {}  # by process: it came from the first one by so many, at the least
        self._looked_at = self._not_before = 0.0
        self._odd_since: float | None = None
        self._missed_since: float | None = None
        self._missed_at = -math.inf
        self._takes_too_long = False  # a look
        self._used_at_sum, self._sum_not_before = 0, 0.0  # of the host's memory, when theirs was added up
        self._memory_limit: int | None = None
        self._exceeds = False  # theirs that limit, as was seen while they stood still
        self.excess: str | None = None  # what is too much, if anything is
        self._in_memory = HiddenBytes()
        self._on_disk = defaultdict[int, HiddenBytes](HiddenBytes)
        self._all = Inquiry[bool]()

    def look(self, pids: Sequence[int], has_to_end: Callable[[], bool] = lambda: False) -> bool:
        """Look again if something may have become much since; False if that had to end before it was done."""
        now = time.monotonic()
        free = [_available_memory(), *map(_free_bytes, self._descriptors)]
        if now < self._not_before and not self._took_much(free, VERY_MUCH, VERY_MUCH):
            return True
        parents, used = relations(pids)
        self._note_forks(parents)
        if len(pids) > FEW_PROCESSES:
            interval = MANY_INTERVAL if used == self._used else 0.0
        else:
            interval = QUIET_INTERVAL if used == self._used else BUSY_INTERVAL
        is_unsure = self._odd_since is not None or self._missed_since is not None
        if now < self._looked_at + interval and not is_unsure and not self._took_much(free):
            return True
        started = time.thread_time()
        has_ended = False

        def goes_on(_: int) -> bool:
            nonlocal has_ended
            has_ended = has_to_end()
            return not has_ended

        held = self._look_at_each(itertools.takewhile(goes_on, pids))
        if has_ended:
            return False
        self._held, self._used, self._free, self._looked_at = held, used, free, now
        self._not_before = now + PEACE * (time.thread_time() - started)
        self.excess = self._find_excess(now)
        self._note_missed(len(pids) - len(held), now)
        return True

    def _note_forks(self, parents: Mapping[int, int]) -> None:
        """``parents``: of each process, parents first. Who has lost its own keeps what it got."""
        before, self._forks = self._forks, {}
        for pid, parent in parents.items():
            self._forks[pid] = max(before.get(pid, 0), self._forks.get(parent, -1) + 1)

    def _note_missed(self, count: int, now: float) -> None:
        """Who ends before it is looked at may have handed on what it held: if that goes on, all have to stand still."""
        if count == 0:
            self._missed_since = None
            return
        self._missed_at = now
        self._missed_since = self._missed_since or now
        if now - self._missed_since > HASTE and self._can_ask and self._all.find(self._look_at_all):
            self._missed_since = None

    def _look_at_all(self) -> bool:
        """Also at their memory, if it was asked for: others may have given back as much as they took."""
        if self._memory_limit is None:
            with tracing.stopped(self._inside) as threads:
                self._look_at_standing(threads)
        else:
            self._exceeds = self._ask_for_memory([], self._memory_limit).is_too_much
        self.excess = self.excess or self._find_excess(time.monotonic())
        return True

    def _took_much(self, free: list[int], memory: int = MUCH_MEMORY, disk: int = MUCH_DISK) -> bool:
        """Whether the host has so much less that it may be for what they hold."""
        steps = itertools.chain([memory], itertools.repeat(disk))
        return not self._free or any(
            before - left > step for before, left, step in zip(self._free, free, steps, strict=False)
        )

    def memory_exceeds(self, pids: list[int], limit: int) -> bool:
        """Whether all that these processes hold, in whatever way, is more memory.

        After a sum that took long there is peace, unless the host has much less.
        """
        used = used_memory()
        if time.monotonic() < self._sum_not_before and used < self._used_at_sum + limit // SMALL_PART:
            return False
        started = time.thread_time()
        try:
            return self._memory_exceeds(pids, limit)
        except TooLongError:
            self.excess = TOO_LONG
            return False
        finally:
            self._used_at_sum = used
            self._sum_not_before = time.monotonic() + PEACE * (time.thread_time() - started)

    def _ask_for_memory(self, others: Sequence[int], limit: int) -> Answer:
        """``others``: processes outside of the sandbox that are on its account."""
        used = used_memory()
        with tracing.stopped(self._inside) as threads:
            self._look_at_standing(threads)
            hidden = self._ask_each(memory_device(), bytes_of_files, threads)
            every = [*{*others, *threads}]
            *_, size = memory_sizes(every, self._init, MAX_SECONDS, unnamed=self.memory_bytes + hidden)
        return Answer(hidden, used - (size - hidden), size > limit)

    def _memory_exceeds(self, pids: list[int], limit: int) -> bool:
        self._memory_limit = limit
        size = unnamed = self.memory_bytes
        if unnamed > limit or self._exceeds:
            return True
        for size in memory_sizes(pids, self._init, MAX_SECONDS, unnamed=unnamed):
            if size + self._hidden_in_memory(size) <= limit:
                return False
        ask = functools.partial(self._ask_for_memory, pids, limit)
        return size > limit or self._in_memory.is_too_much(ask, trusted=self._is_open(memory_device()))

    def _hidden_in_memory(self, in_sight: int) -> int:
        """At most."""
        if self._can_ask:
            return self._in_memory.at_most(used_memory() - in_sight)
        # In this order: what grows meanwhile is not missed.
        level = -self._memory_in_sight() + files_in_memory()
        if not self._only_mapped(memory_device()):
            self._in_memory.are_none(level)
        return self._in_memory.at_most(level)

    @functools.cached_property
    def _can_ask(self) -> bool:
        """Whether they can be made to stand still. If not, what is seen has to do, and for mapped files a guess."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(tracing.is_allowed, self._init).result()

    def _is_open(self, device: int) -> bool:
        """Whether all of it was seen at the last looks, and nothing points to more."""
        return time.monotonic() - self._missed_at > HASTE and not self._only_mapped(device)

    @property
    def memory_bytes(self) -> int:
        """Of files in memory without a name that are known, and of what the system needs for mappings and locks."""
        links = sum(
            held.mappings * max(0, self._forks.get(pid, 0) - FEW_FORKS) for pid, held in self._held.items()
        )
        mappings = sum(max(0, held.mappings - LARGE_MAPS) for held in self._held.values())
        locks = sum(held.locks for held in self._held.values())
        return self._known_bytes(memory_device()) + (mappings + locks) * SMALL_BYTES + links * LINK_BYTES

    def _memory_in_sight(self) -> int:
        return tmpfs_bytes(self._init) + self._known_bytes(memory_device())

    def disk_bytes(self, device: int, level: int, enough: int) -> int:
        """Of files without a name there; above ``enough`` only what is known. ``level``: see `HiddenBytes`."""

        def ask() -> Answer:
            with tracing.stopped(self._inside) as threads:
                self._look_at_standing(threads)
                size = self._ask_each(device, size_of_files, threads)
            exactly = self._known_bytes(device)
            return Answer(size, level - exactly, exactly + size > enough)

        exactly, hidden = self._known_bytes(device), self._on_disk[device]
        if not self._can_ask and not self._only_mapped(device):
            hidden.are_none(level - exactly)
        size = hidden.at_most(level - exactly)
        if not self._can_ask:
            size = min(size, sum(map(len, self._only_mapped(device).values())) * self._largest_file)
        if exactly + size > enough:
            is_too_much = hidden.is_too_much(ask, trusted=self._is_open(device))
            # What is not known keeps it from writing, but does not end it.
            size = min(size, max(hidden.known, enough - exactly + 1) if is_too_much else hidden.known)
        return exactly + size

    def _known_bytes(self, device: int) -> int:
        sizes = dict[File, int]()
        for held in self._held.values():
            for file, size in held.files.items():
                if file[0] == device:
                    sizes[file] = max(size, sizes.get(file, 0))
        return sum(sizes.values())

    def _only_mapped(self, device: int) -> dict[int, list[Place]]:
        """Files there that no process has open: process → where it has them mapped, each once."""
        done = set[File]().union(*(held.files for held in self._held.values()))
        places = dict[int, list[Place]]()
        for pid, held in self._held.items():
            found = {file: at for file, at in held.mapped.items() if file[0] == device and file not in done}
            if found:
                places[pid] = [*found.values()]
                done.update(found)
        return places

    def _ask_each(
        self, device: int, ask: Callable[[Caller, Sequence[Place]], int], threads: Mapping[int, Sequence[int]]
    ) -> int:
        size = 0
        for pid, addresses in self._only_mapped(device).items():
            with Caller(pid, threads[pid][0]) as caller:
                size += ask(caller, addresses)
        return size

    def _find_excess(self, now: float) -> str | None:
        if len(set[int]().union(*(held.pipes for held in self._held.values()))) > MAX_PIPES:
            return f"too many pipes (limit {MAX_PIPES})"
        if self._watches() > MAX_WATCHES:
            return f"too much is watched with epoll (limit {MAX_WATCHES})"
        if sum(held.descriptors for held in self._held.values()) > MAX_DESCRIPTORS:
            return f"too many open files in all processes (limit {MAX_DESCRIPTORS})"
        if any(held.lines > MAX_LINES for held in self._held.values()):
            return f"too much is locked or watched with epoll in one process (limit {MAX_LINES})"
        if self._takes_too_long:
            return TOO_LONG
        return self._hides(now)

    def _hides(self, now: float) -> str | None:
        odd = self._odd()
        if odd is None:
            self._odd_since = None
            return None
        self._odd_since = self._odd_since or now
        return odd if now - self._odd_since > PATIENCE else None

    def _odd(self) -> str | None:
        """What passes soon, unless somebody hides something in it."""
        if any(held.on_their_way for held in self._held.values()):
            return "open files were kept in messages that nobody received"
        if any(held.closed for held in self._held.values()):
            return "a process hid what it has open"
        return None

    def _watches(self) -> int:
        """Processes inherit what is open, by the same number: the same epoll counts once."""
        few, different = 0, defaultdict[tuple[int, int], list[int]](list)
        for pid, held in self._held.items():
            for fd, count in held.epolls:
                alike = different[fd, count]
                if count > FEW and any(_is_same_file(pid, fd, other, fd) for other in alike):
                    continue
                alike.append(pid)
                few += count
                if few > MAX_WATCHES:
                    return few
        return few

    def _look_at_each(self, pids: Iterable[int]) -> dict[int, Held]:
        held, end = {}, time.thread_time() + MAX_SECONDS
        for pid in pids:
            try:
                with contextlib.suppress(OSError):
                    held[pid] = look_at(pid, self._find_folder)
            except TooLongError:
                self._takes_too_long = True
            if self._takes_too_long or time.thread_time() > end:
                self._takes_too_long = True
                break
        return held

    def _look_at_standing(self, pids: Iterable[int]) -> None:
        """Raises BlockingIOError while something is where nobody can see it: it will be in sight, or end them."""
        self._held = self._look_at_each(pids)
        if self._odd():
            raise BlockingIOError

    def _find_folder(self, path: bytes) -> int | None:
        return next((device for folder, device in self._folders if path.startswith(folder)), None)


def _available_memory() -> int:
    """Bytes of the host's, without what the system would give back."""
    return memory_numbers().get(b"MemAvailable", 0)


def _free_bytes(fd: int) -> int:
    """Of the disk that the folder is on."""
    status = os.fstatvfs(fd)
    return status.f_bavail * status.f_frsize


def _is_same_file(pid: int, fd: int, other_pid: int, other_fd: int) -> bool:
    number = _SYSCALL_KCMP.get(os.uname().machine)
    return number is not None and _libc.syscall(number, pid, other_pid, 0, fd, other_fd) == 0
