"""What the processes of one sandbox hold by their descriptors and mappings, seen from the host through /proc.

A file without a name uses memory or disk for as long as somebody has it open or mapped, and nothing but these tells
of it. Pipes and what is watched with epoll count for the host's user, who may be the same for all sandboxes.
"""

import contextlib
import ctypes
import functools
import itertools
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from interpreter.gateway_extension.sandbox import tracing
from interpreter.gateway_extension.sandbox.hidden import (
    Answer,
    HiddenBytes,
    bytes_of_files,
    files_in_memory,
    memory_numbers,
    size_of_files,
)
from interpreter.gateway_extension.sandbox.pace import PEACE
from interpreter.gateway_extension.sandbox.processes import (
    is_ending,
    living,
    memory_exceeds,
    read,
    tmpfs_bytes,
    tree,
)
from interpreter.gateway_extension.sandbox.tracing import Caller

MAX_DESCRIPTORS = 65_536  # in all processes together
MAX_PIPES = 4096
MAX_WATCHES = 65_536  # of epoll; a user has 4 % of the memory for them
MAX_LINES = 8 * MAX_WATCHES  # of one process: each number of the same epoll, or locked file, tells all again
FEW = 16  # watches of one epoll that are not worth finding out whether several processes have the same
# Seconds until the next look in any case: at processes that seem to do nothing (less than 10 ms of each are not
# seen), at busy ones, and at many. What uses much memory or disk is looked at sooner, as the host then has less.
QUIET_INTERVAL, BUSY_INTERVAL, MANY_INTERVAL, FEW_PROCESSES = 20.0, 10.0, 0.75, 8
MUCH_MEMORY, MUCH_DISK = 16 * 1024**2, 4 * 1024**2
VERY_MUCH = 1024**3  # bytes: once the host has so much less, there is no peace after a look that took long
MAX_SECONDS = 3.0  # of the processor for one look; 512 large programs take 0.7
PATIENCE = 2.0  # seconds for which descriptors may be on their way, or a process closed to us
SMALL_BYTES = 256  # what the system needs for each mapping, and each lock of a part of a file
LARGE_MAPS = 1000  # mappings: a program with many libraries has about as many
_SYSCALL_KCMP = {"x86_64": 312, "aarch64": 272}
_libc = ctypes.CDLL(None, use_errno=True)
_UNNAMED = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ...(.) [0-9a-f]+ \S+ (\d+) +(/.*) \(deleted\)$", re.MULTILINE
)
_SHARED_MEMORY = b"/dev/zero"  # what anonymous shared memory is called
_MEMORY_FILE = b"/memfd:"
_SHARED = b"s"

File = tuple[int, int]  # device and inode


@dataclass(slots=True)
class Held:
    """By one process."""

    files: dict[File, int] = field(default_factory=dict)  # those without a name, and their bytes
    mapped: dict[File, int] = field(default_factory=dict)  # those that are only mapped, and where
    pipes: set[int] = field(default_factory=set)
    epolls: list[tuple[int, int]] = field(default_factory=list)  # descriptor and watches
    descriptors: int = 0
    on_their_way: int = 0  # descriptors in messages that nobody has received yet
    mappings: int = 0
    locks: int = 0  # of files
    lines: int = 0  # in which the system tells of its descriptors, more for each watch and lock
    closed: bool = False  # we may not look


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
        self._looked_at = self._not_before = 0.0
        self._odd_since: float | None = None
        self._takes_too_long = False  # a look
        self.excess: str | None = None  # what is too much, if anything is
        self._in_memory = HiddenBytes()
        self._on_disk = defaultdict[int, HiddenBytes](HiddenBytes)

    def look(self, pids: Sequence[int], has_to_end: Callable[[], bool] = lambda: False) -> bool:
        """Look again if something may have become much since; False if that had to end before it was done."""
        now = time.monotonic()
        free = [_available_memory(), *map(_free_bytes, self._descriptors)]
        if now < self._not_before and not self._took_much(free, VERY_MUCH, VERY_MUCH):
            return True
        used = _used(pids)
        if len(pids) > FEW_PROCESSES:
            interval = MANY_INTERVAL if used == self._used else 0.0
        else:
            interval = QUIET_INTERVAL if used == self._used else BUSY_INTERVAL
        if now < self._looked_at + interval and self._odd_since is None and not self._took_much(free):
            return True
        started, total = time.thread_time(), files_in_memory()
        has_ended = False

        def goes_on(_: int) -> bool:
            nonlocal has_ended
            has_ended = has_to_end()
            return not has_ended

        held = self._look_at_each(itertools.takewhile(goes_on, pids))
        if has_ended:
            return False
        self._held, self._used, self._free, self._looked_at = held, used, free, now
        if not self._only_mapped(_memory_device()):
            self._in_memory.are_none(total - self._memory_in_sight())
        self._not_before = now + PEACE * (time.thread_time() - started)
        self.excess = self._find_excess(now)
        return True

    def _took_much(self, free: list[int], memory: int = MUCH_MEMORY, disk: int = MUCH_DISK) -> bool:
        """Whether the host has so much less that it may be for what they hold."""
        steps = itertools.chain([memory], itertools.repeat(disk))
        return not self._free or any(
            before - left > step for before, left, step in zip(self._free, free, steps, strict=False)
        )

    def memory_exceeds(self, pids: list[int], limit: int) -> bool:
        """Whether all that these processes hold, in whatever way, is more memory."""

        def ask() -> Answer:
            total = files_in_memory()
            with tracing.stopped(lambda: tree(*self._inside())) as threads:
                self._held = self._look_at_each(threads)
                hidden = self._ask_each(_memory_device(), bytes_of_files, threads)
                own = self._bytes(hidden)
                is_too_much = memory_exceeds([*{*pids, *threads}], self._init, limit, unnamed=own)
            return Answer(hidden, total - self._memory_in_sight(), is_too_much)

        if not memory_exceeds(pids, self._init, limit, unnamed=self.memory_bytes):
            return False
        return not self._only_mapped(_memory_device()) or self._in_memory.is_too_much(ask)

    @property
    def memory_bytes(self) -> int:
        """Of files in memory without a name, at most, and of what the system needs for mappings and locks."""
        if not self._only_mapped(_memory_device()):
            return self._bytes(0)
        # In this order: what grows meanwhile is not missed.
        return self._bytes(self._in_memory.at_most(-self._memory_in_sight() + files_in_memory()))

    def _bytes(self, hidden: int) -> int:
        mappings = sum(max(0, held.mappings - LARGE_MAPS) for held in self._held.values())
        locks = sum(held.locks for held in self._held.values())
        return self._known_bytes(_memory_device()) + hidden + (mappings + locks) * SMALL_BYTES

    def _memory_in_sight(self) -> int:
        return tmpfs_bytes(self._init) + self._known_bytes(_memory_device())

    def disk_bytes(self, device: int, level: int, enough: int) -> int:
        """Of files without a name there; above ``enough`` only what is known. ``level``: see `HiddenBytes`."""

        def ask() -> Answer:
            with tracing.stopped(lambda: tree(*self._inside())) as threads:
                self._held = self._look_at_each(threads)
                size = self._ask_each(device, size_of_files, threads)
            exactly = self._known_bytes(device)
            return Answer(size, level - exactly, exactly + size > enough)

        exactly, hidden = self._known_bytes(device), self._on_disk[device]
        files = sum(map(len, self._only_mapped(device).values()))
        if not files:
            hidden.are_none(level - exactly)
            return exactly
        size = min(files * self._largest_file, hidden.at_most(level - exactly))
        if exactly + size > enough and not hidden.is_too_much(ask):
            size = min(size, hidden.known)
        return exactly + size

    def _known_bytes(self, device: int) -> int:
        sizes = dict[File, int]()
        for held in self._held.values():
            for file, size in held.files.items():
                if file[0] == device:
                    sizes[file] = max(size, sizes.get(file, 0))
        return sum(sizes.values())

    def _only_mapped(self, device: int) -> dict[int, list[int]]:
        """Files there that no process has open: process → where it has them mapped, each once."""
        done = set[File]().union(*(held.files for held in self._held.values()))
        places = dict[int, list[int]]()
        for pid, held in self._held.items():
            found = {file: at for file, at in held.mapped.items() if file[0] == device and file not in done}
            if found:
                places[pid] = [*found.values()]
                done.update(found)
        return places

    def _ask_each(
        self, device: int, ask: Callable[[Caller, Sequence[int]], int], threads: Mapping[int, Sequence[int]]
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
            return "what its processes hold takes too long to look at"
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
            with contextlib.suppress(OSError):
                held[pid] = self._look_at(pid)
            if time.thread_time() > end:
                self._takes_too_long = True
                break
        return held

    def _look_at(self, pid: int) -> Held:
        held = Held()
        folder = living(pid)
        maps = read(f"{folder}/maps")
        held.mappings = maps.count(b"\n")
        if b" (deleted)\n" in maps:
            self._note_mapped(folder, maps, held)
        try:
            self._note_open(folder, held)
        except PermissionError:  # so it is, too, with a child that ended and that nobody has waited for
            held.closed = os.geteuid() != 0 and not is_ending(pid)
        return held

    def _note_mapped(self, folder: str, maps: bytes, held: Held) -> None:
        for start, end, kind, inode, path in _UNNAMED.findall(maps):
            device = self._device(path)
            if device is None:
                continue
            file = device, int(inode)
            with contextlib.suppress(OSError):  # only root may, and is told exactly
                _note_unnamed(os.stat(f"{folder}/map_files/{start.decode()}-{end.decode()}"), file, held)
                continue
            with contextlib.suppress(OSError):  # it may be its name that ends so
                status = os.lstat(b"%s/root%s (deleted)" % (folder.encode(), path))
                if (status.st_dev, status.st_ino) == file:
                    continue
            if kind == _SHARED or file not in held.mapped:  # no other can be mapped once more
                held.mapped[file] = int(start, 16)

    def _device(self, path: bytes) -> int | None:
        """Where a file is that the sandbox may have made. (A system's file goes when it is upgraded.)"""
        if path == _SHARED_MEMORY or path.startswith(_MEMORY_FILE):
            return _memory_device()
        return next((device for folder, device in self._folders if path.startswith(folder)), None)

    @staticmethod
    def _note_open(thread: str, held: Held) -> None:
        with contextlib.suppress(
            OSError
        ):  # its program, which is mapped; bubblewrap's may be a copy in memory
            _note_unnamed_file(os.stat(f"{thread}/exe"), held)
        folder = os.open(f"{thread}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in os.listdir(folder):
                held.descriptors += 1
                if held.lines > MAX_LINES:
                    continue
                with contextlib.suppress(OSError):
                    _note(thread, name, os.stat(name, dir_fd=folder), held)
        finally:
            os.close(folder)


def _note(thread: str, name: str, status: os.stat_result, held: Held) -> None:
    told = read(f"{thread}/fdinfo/{name}")
    held.lines += told.count(b"\n")
    held.locks += told.count(b"\nlock:")  # anything that is open can be locked, with any number of locks
    if stat.S_ISFIFO(status.st_mode):
        held.pipes.add(status.st_ino)
    elif stat.S_ISSOCK(status.st_mode):
        _, found, count = told.partition(b"scm_fds:")
        held.on_their_way += int(count.split()[0]) if found else 0
    elif status.st_dev == _anonymous_device():
        if watches := told.count(b"\ntfd:"):
            held.epolls.append((int(name), watches))
    else:
        _note_unnamed_file(status, held)


def _note_unnamed_file(status: os.stat_result, held: Held) -> None:
    _note_unnamed(status, (status.st_dev, status.st_ino), held)


def _note_unnamed(status: os.stat_result, file: File, held: Held) -> None:
    if status.st_nlink == 0:
        held.files[file] = status.st_blocks * 512


def _used(pids: Iterable[int]) -> dict[int, bytes]:
    """What each has used of the processors."""
    used = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            used[pid] = b" ".join(read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[11:13])
    return used


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


@functools.cache
def _memory_device() -> int:
    """The file system that the system keeps memfd_create's files, and shared memory, on."""
    return _device_of(os.memfd_create("probe"))


@functools.cache
def _anonymous_device() -> int:
    """The one that epolls are on, and others."""
    return _device_of(os.eventfd(0))


def _device_of(fd: int) -> int:
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)
