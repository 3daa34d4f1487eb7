"""The processes of one sandbox, seen from the host through /proc."""

import contextlib
import ctypes
import functools
import os
import resource
import select
from collections.abc import Iterator

MAX_PROCESSES = 4096  # a look never takes longer than this, whatever a fork bomb does
MAX_OPEN_FILES = 4096
_READ_BYTES = 16 * 1024
_TICKS = os.sysconf("SC_CLK_TCK")
_SETRESUID = {"x86_64": 117, "aarch64": 147}
_libc = ctypes.CDLL(None, use_errno=True)
_TMPFS_PATHS = ("tmp", "home/user", "dev/shm")


def tree(*roots: int) -> list[int]:
    """The sandbox's first process and its descendants: orphans become children of the first one.

    A kernel that was forked into the sandbox is no descendant, and so a second root.
    """
    found: list[int] = []
    waiting = [*roots]
    while waiting and len(found) < MAX_PROCESSES:
        pid = waiting.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    waiting.extend(map(int, read(f"/proc/{pid}/task/{task}/children").split()))
    return found


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


def memory_exceeds(pids: list[int], init: int, limit: int) -> bool:
    """Whether the sandbox holds more memory than ``limit``: its processes, memory files and tmpfs.

    Resident sizes count what processes share (after a fork, nearly all) once for each. They are read
    fast; only when their sum is too large the exact, slower shares decide.
    """
    unmapped = tmpfs_bytes(init) + unlinked_bytes(pids, None)
    for name, words in (("status", ("RssAnon:", "RssShmem:")), ("smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))):
        anonymous, shared = (_sum_kilobytes(pids, name, word) for word in words)
        if anonymous + max(shared, unmapped) <= limit:
            return False
    return True


def _sum_kilobytes(pids: list[int], name: str, word: str) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/{name}") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith(word))
    return total * 1024


def unlinked_bytes(pids: list[int], devices: set[int] | None) -> int:
    """Space of files that are open but have no name, on the given file systems; None: in memory."""
    wanted = _memory_devices() if devices is None else devices
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        for status in _open_files(pid):
            if status.st_nlink == 0 and status.st_dev in wanted:
                sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _open_files(pid: int) -> Iterator[os.stat_result]:
    with contextlib.suppress(OSError):
        folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in os.listdir(folder)[:MAX_OPEN_FILES]:
                with contextlib.suppress(OSError):
                    yield os.stat(name, dir_fd=folder)
        finally:
            os.close(folder)


@functools.cache
def _memory_devices() -> frozenset[int]:
    """The file system that the kernel keeps memfd_create's files on."""
    fd = os.memfd_create("probe")
    try:
        return frozenset({os.fstat(fd).st_dev})
    finally:
        os.close(fd)


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


def set_process_limit(init: int, count: int) -> None:
    """Let the sandbox's user namespace hold ``count`` processes and threads. Raises OSError."""
    _, hard = resource.prlimit(init, resource.RLIMIT_NPROC)
    value = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.prlimit(init, resource.RLIMIT_NPROC, (value, value))


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
