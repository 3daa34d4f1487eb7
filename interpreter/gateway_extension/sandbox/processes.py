"""The processes of one sandbox, seen from the host through /proc."""

import contextlib
import ctypes
import itertools
import os
import resource
import select
from collections.abc import Iterator

MAX_PROCESSES = 4096  # a look never takes longer than this, whatever a fork bomb does
_READ_BYTES = 16 * 1024
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


def read(path: str) -> bytes:
    """As `open` does, with a third of its system calls: each lets other threads go first."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, _READ_BYTES), b""))
    finally:
        os.close(fd)


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of processes and of those children that they have waited for."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
            ticks += sum(int(value) for value in fields[11:15])
    return ticks / _TICKS


def memory_exceeds(pids: list[int], init: int, limit: int, *, unnamed: int) -> bool:
    """Whether the sandbox holds more memory than ``limit``: its processes, their page tables, tmpfs, other files.

    Resident sizes count what processes share (after a fork, nearly all) once for each. They are read
    fast; only when their sum is too large the exact, slower shares decide. ``unnamed``: memory of files
    that have no name.
    """
    unmapped = tmpfs_bytes(init) + unnamed
    tables = memory_files(init) * _FILE_BYTES
    if unmapped + tables > limit:
        return True
    for name, words in (
        ("status", ("RssAnon:", "RssShmem:", "VmPTE:")),
        ("smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")),
    ):
        anonymous, shared, *more = _sum_kilobytes(pids, name, words)
        tables += sum(more)
        if anonymous + tables + max(shared, unmapped) <= limit:
            return False
    return True


def _sum_kilobytes(pids: list[int], name: str, words: tuple[str, ...]) -> list[int]:
    totals = dict.fromkeys(words, 0)
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            for line in _read_living(pid, name).decode(errors="replace").splitlines():
                word, *values = line.split()
                if word in totals:
                    totals[word] += int(values[0])
    return [total * 1024 for total in totals.values()]


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
