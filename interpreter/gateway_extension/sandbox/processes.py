"""The processes of one sandbox, seen from the host through /proc."""

import contextlib
import ctypes
import itertools
import os
import resource
import select
import signal
import time
from collections.abc import Iterable, Iterator

MAX_PROCESSES = 4096  # a look never takes longer than this, whatever a fork bomb does
_READ_BYTES = 16 * 1024
_MAX_BYTES = 64 * 1024**2
_TICKS = os.sysconf("SC_CLK_TCK")
_EXITING = 4  # PF_EXITING, of a process's flags
_SETRESUID = {"x86_64": 117, "aarch64": 147}
_libc = ctypes.CDLL(None, use_errno=True)
_TMPFS_PATHS = ("tmp", "home/user", "dev/shm")
_FILE_BYTES = 1024  # what the system needs for each file there; attributes it counts as more files


def tree(*roots: int) -> list[int]:
    """The sandbox's first process and its descendants: orphans become children of the first one.

    A kernel that was forked into the sandbox is no descendant, and so a second root.
    """
    return [pid for pid, _ in itertools.islice(walk(*roots), MAX_PROCESSES)]


def walk(*roots: int) -> Iterator[tuple[int, list[int]]]:
    """The same, one process at a time, each with its threads."""
    waiting = [*roots]
    while waiting:
        pid = waiting.pop()
        threads: list[int] = []
        with contextlib.suppress(OSError):
            threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        yield pid, threads
        for thread in threads:
            waiting.extend(_children(pid, thread))


def _children(pid: int, thread: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in read(f"/proc/{pid}/task/{thread}/children").split()]
    return []


class TooLongError(ValueError):
    """What the system tells of a process takes more bytes than anybody wants to read."""


def read(path: str, most: int = _MAX_BYTES) -> bytes:
    """As `open` does, with a third of its system calls: each lets other threads go first.

    Raises OSError, TooLongError above so many bytes: a process can have much told of it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    parts, size = list[bytes](), 0
    try:
        while part := os.read(fd, _READ_BYTES):
            parts.append(part)
            size += len(part)
            if size > most:
                raise TooLongError
        return b"".join(parts)
    finally:
        os.close(fd)


def relations(pids: Iterable[int]) -> tuple[dict[int, int], dict[int, bytes]]:
    """Of each its parent, and what it has used of the processors."""
    parents, used = dict[int, int](), dict[int, bytes]()
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            parents[pid], used[pid] = int(fields[1]), b" ".join(fields[11:13])
    return parents, used


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of processes and of those children that they have waited for."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
            ticks += sum(int(value) for value in fields[11:15])
    return ticks / _TICKS


def memory_sizes(pids: list[int], init: int, seconds: float, *, unnamed: int) -> Iterator[int]:
    """What the sandbox holds of memory: its processes, their page tables, tmpfs, other files. At most, then exactly.

    Resident sizes count what processes share (after a fork, nearly all) once for each. They are read
    fast; the exact shares are slower. ``unnamed``: memory of files that have no name. Raises TooLongError after so
    many ``seconds`` of the processor.
    """
    unmapped = tmpfs_bytes(init) + unnamed
    tables = memory_files(init) * _FILE_BYTES
    end = time.thread_time() + seconds
    anonymous, shared, more = _sum_kilobytes(pids, _AT_MOST, end)
    tables += more
    yield anonymous + tables + max(shared, unmapped)
    anonymous, shared, _ = _sum_kilobytes(pids, _EXACT, end)
    yield anonymous + tables + max(shared, unmapped)


# Of a process: the file that tells it, and what stands before anonymous memory, shared memory, page tables there.
_AT_MOST = ("status", (b"RssAnon:", b"RssShmem:", b"VmPTE:"))
_EXACT = ("smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:", b""))


def _sum_kilobytes(pids: list[int], told: tuple[str, tuple[bytes, ...]], end: float) -> list[int]:
    totals = [0, 0, 0]
    for pid in pids:
        if time.thread_time() > end:
            raise TooLongError
        with contextlib.suppress(OSError, ValueError):
            try:
                found = _kilobytes(pid, *told)
            except PermissionError:  # of a program that may not be read; of its status all are told
                found = _kilobytes(pid, *_AT_MOST)
            totals = [total + each for total, each in zip(totals, found, strict=True)]
    return [total * 1024 for total in totals]


def _kilobytes(pid: int, name: str, words: tuple[bytes, ...]) -> list[int]:
    fields = [line.split(None, 2) for line in _read_living(pid, name).splitlines()]
    numbers = {field[0]: int(field[1]) for field in fields if field and field[0] in words}
    return [numbers.get(word, 0) for word in words]


def _read_living(pid: int, name: str) -> bytes:
    """What a process has, which its first thread no longer tells when that ended before others."""
    with contextlib.suppress(ProcessLookupError):
        text = read(f"/proc/{pid}/{name}")
        if text and b"\nState:\tZ" not in text:
            return text
    return read(f"{living(pid)}/{name}")


def living(pid: int) -> str:
    """Where to read about a process: in the folder of a thread of it that has not ended."""
    folder = f"/proc/{pid}"
    with contextlib.suppress(OSError):
        if not _has_ended(folder):
            return folder
        for task in os.listdir(f"{folder}/task"):
            with contextlib.suppress(OSError):
                if not _has_ended(f"{folder}/task/{task}"):
                    return f"{folder}/task/{task}"
    return folder


def is_ending(pid: int) -> bool:
    """Whether none of its threads runs any more, also when nobody has waited for it: all that it had open goes."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    flags_of_first_thread, threads = int(fields[6]), int(fields[17])
    return bool(flags_of_first_thread & _EXITING) and threads <= 1


def _has_ended(folder: str) -> bool:
    return read(f"{folder}/statm").startswith(b"0 ")


def tmpfs_bytes(init: int) -> int:
    """What the sandbox's memory file systems hold."""
    return sum((status.f_blocks - status.f_bfree) * status.f_frsize for status in _memory_file_systems(init))


def memory_files(init: int) -> int:
    """How many files the sandbox has in its memory file systems (each costs the host memory)."""
    return sum(status.f_files - status.f_ffree for status in _memory_file_systems(init))


def _memory_file_systems(init: int) -> Iterator[os.statvfs_result]:
    with contextlib.suppress(OSError):
        if os.path.samefile(f"/proc/{init}/root", "/"):
            return  # bubblewrap has not changed to the sandbox's root yet: these would be the host's
    for path in _TMPFS_PATHS:
        with contextlib.suppress(OSError):
            yield os.statvfs(f"/proc/{init}/root/{path}")


def kill(pidfd: int) -> None:
    """End the process of a pidfd, if it has not ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def set_file_size(pids: list[int], size: int, uid: int) -> None:
    """Set how large files these processes may make from now on (the soft limit)."""
    with as_owner(uid):
        for pid in pids:
            with contextlib.suppress(OSError, ValueError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                value = size if hard == resource.RLIM_INFINITY else min(size, hard)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (value, hard))


def set_limits(pid: int, limits: list[tuple[int, int]]) -> None:
    """Set what a process may use at most, and all that it starts from now on. Raises OSError."""
    for kind, most in limits:
        _, hard = resource.prlimit(pid, kind)
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(pid, kind, (value, value))


@contextlib.contextmanager
def as_owner(uid: int) -> Iterator[None]:
    """For this thread only, act as the user who made the sandbox's user namespace.

    He may set its processes' limits. Root may not where it lacks CAP_SYS_RESOURCE, as in most containers.
    The C library would change every thread, hence the bare system call.
    """
    number = _SETRESUID.get(os.uname().machine)
    if uid == os.geteuid() or number is None:
        yield
        return
    _libc.syscall(number, -1, uid, -1)
    try:
        yield
    finally:
        _libc.syscall(number, -1, 0, -1)


def is_readable(fd: int, timeout: float) -> bool:
    """Whether the descriptor can be read, or was closed at its other end, within ``timeout`` seconds.

    Not by ``select``: it refuses descriptors above 1023, which a gateway with many kernels has.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout) * 1000))
