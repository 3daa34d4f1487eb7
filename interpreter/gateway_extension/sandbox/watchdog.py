"""A thread per sandbox that enforces what the system has no limit for, and notes how the kernel ended.

The workspace is a plain folder (a quota would need a file system of its own), CPU time and age count over
the whole life of a sandbox, and without control groups its memory does too.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from interpreter.gateway_extension.sandbox import processes
from interpreter.gateway_extension.sandbox.cgroups import ControlGroup
from interpreter.gateway_extension.sandbox.limits import MIB, Limits, size_text
from interpreter.gateway_extension.sandbox.workspace import Usage, measure

TICK = 0.25  # seconds between looks; a look takes well under a millisecond unless files must be counted
WALK_INTERVAL = 3.0  # files are counted at least this often, and at once when the disk fills fast
WALK_SHARE = 8  # a count that took t seconds is followed by WALK_SHARE * t seconds of peace
SLACK = 16 * MIB  # growth that is tolerated once writing has been stopped
MAX_SOCKET_FOLDER = 64  # entries of the socket folder: a kernel makes five
MAX_FAILURES = 20  # looks in a row
MAX_TICKS_OVER = 8  # in which a sandbox has to end after its kernel
LOG_BYTES = 8 * 1024
LOG_CHUNK = 64 * 1024  # of stderr per tick; who writes more waits


@dataclass(frozen=True, slots=True)
class Watched:
    """What a watchdog looks after. ``init`` is the sandbox's first process, ``init_fd`` its pidfd."""

    init: int
    init_fd: int
    workspace_fd: int
    sockets_fd: int
    stderr_fd: int
    limits: Limits
    cgroup: ControlGroup | None
    uid: int
    roots: Callable[[], Sequence[int]]  # of its processes: `init`, and a kernel forked into the sandbox
    is_over: Callable[[], bool] | None = None  # whether that kernel has ended, which ends the sandbox


class Watchdog:
    """Starts with `start`, ends with the sandbox or with `stop`; then `on_end` has been called."""

    def __init__(self, watched: Watched, on_end: Callable[[str | None], None]) -> None:
        self._watched = watched
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name="sandbox-watchdog", daemon=True)
        self._wake_read, self._wake_write = os.pipe()
        self._started_at = time.monotonic()
        self._walk_at = 0.0
        self._free: tuple[int, int] | None = None
        self._full: Usage | None = None  # the usage at which writing was stopped
        self._failures = 0
        self._log = b""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, whether or not the sandbox lives, and wait for it."""
        if self._wake_write >= 0:
            os.close(self._wake_write)
            self._wake_write = -1
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def log(self) -> str:
        """The last of what the kernel wrote to its stderr."""
        return self._log.decode(errors="replace")

    def _run(self) -> None:
        reason: str | None = None
        over = 0
        ended = select.poll()
        ended.register(self._watched.init_fd, select.POLLIN)
        ended.register(self._wake_read, select.POLLHUP)
        try:
            while not ended.poll(TICK * 1000):
                self._drain()
                reason = reason or self._try_to_look()
                over = (over + 1) if self._watched.is_over is not None and self._watched.is_over() else 0
                if over > MAX_TICKS_OVER:
                    reason = reason or "the kernel ended"
                if reason:
                    signal.pidfd_send_signal(self._watched.init_fd, signal.SIGKILL)
            self._drain()
        except ProcessLookupError:
            pass  # it ended by itself before our signal
        finally:
            os.close(self._wake_read)
            self._on_end(reason)

    def _drain(self) -> None:
        try:
            text = os.read(self._watched.stderr_fd, LOG_CHUNK)
        except BlockingIOError:
            return
        self._log = (self._log + text)[-LOG_BYTES:]

    def _try_to_look(self) -> str | None:
        """A look that fails (say, no descriptor is free) may be made up for; many may not."""
        try:
            reason = self._look()
        except OSError as error:
            self._failures += 1
            return f"limits can't be watched ({error.strerror})" if self._failures > MAX_FAILURES else None
        self._failures = 0
        return reason

    def _look(self) -> str | None:
        """Why the sandbox has to end now, or None."""
        limits = self._watched.limits
        if limits.wall_seconds and time.monotonic() - self._started_at > limits.wall_seconds:
            return f"wall time limit reached ({limits.wall_seconds:g} s)"
        return self._look_at_processes(limits) or self._look_at_files(limits)

    def _look_at_processes(self, limits: Limits) -> str | None:
        cgroup = self._watched.cgroup
        cpu = cgroup.cpu_seconds() if cgroup is not None else None
        counts_memory = cgroup is not None and "memory" in cgroup.controllers
        if not counts_memory or (limits.cpu_seconds and cpu is None):
            init = self._watched.init
            pids = processes.tree(*self._watched.roots())
            cpu = processes.cpu_seconds(pids) if cpu is None else cpu
            if not counts_memory and processes.memory_exceeds(pids, init, limits.memory_bytes):
                return f"out of memory (limit {size_text(limits.memory_bytes)})"
        if limits.cpu_seconds and cpu is not None and cpu > limits.cpu_seconds:
            return f"CPU time limit reached ({limits.cpu_seconds:g} s)"
        return None

    def _look_at_files(self, limits: Limits) -> str | None:
        if not self._walk_is_due(limits):
            return None
        started = time.monotonic()
        reason = self._count(limits)
        now = time.monotonic()
        self._walk_at = now + max(TICK, WALK_SHARE * (now - started))
        return reason

    def _walk_is_due(self, limits: Limits) -> bool:
        """Count files when the disk has filled since the last count, or when it is long ago."""
        now = time.monotonic()
        if now < self._walk_at:
            return False
        status = os.fstatvfs(self._watched.workspace_fd)
        free = (status.f_bfree * status.f_frsize, status.f_ffree)
        step = (limits.workspace_bytes // 8, max(1, limits.max_workspace_files // 8))
        fast = self._free is not None and any(
            before - after > size for before, after, size in zip(self._free, free, step, strict=True)
        )
        if self._full is None and not fast and self._free is not None and now < self._walk_at + WALK_INTERVAL:
            return False
        self._free = free
        return True

    def _count(self, limits: Limits) -> str | None:
        watched = self._watched
        sockets = measure(watched.sockets_fd, max_files=MAX_SOCKET_FOLDER)
        if not sockets.complete or sockets.size > MIB:
            return "the folder of the kernel's sockets was filled"
        if processes.memory_files(watched.init) > limits.max_workspace_files:
            return f"too many files in memory (limit {limits.max_workspace_files})"
        usage = measure(watched.workspace_fd, max_files=int(limits.max_workspace_files * 1.1) + 10)
        if not usage.complete or (usage.files > limits.max_workspace_files and self._grew(usage)):
            return (
                f"too many or too deeply nested files in the workspace (limit {limits.max_workspace_files})"
            )
        pids = processes.tree(*watched.roots())
        devices = {os.fstat(fd).st_dev for fd in (watched.workspace_fd, watched.sockets_fd)}
        hidden = processes.unlinked_bytes(pids, devices)
        return self._check_space(Usage(usage.size + hidden, usage.files), pids, limits)

    def _check_space(self, usage: Usage, pids: list[int], limits: Limits) -> str | None:
        """First stop all writing (a clean OSError in the program), then end who finds another way."""
        if usage.size <= limits.workspace_bytes and usage.files <= limits.max_workspace_files:
            if self._full is not None:
                processes.set_file_size(pids, limits.max_file_bytes, self._watched.uid)
                self._full = None
            return None
        if self._grew(usage):
            return f"workspace full (limit {size_text(limits.workspace_bytes)})"
        if self._full is None:
            self._full = usage
        processes.set_file_size(pids, 0, self._watched.uid)
        return None

    def _grew(self, usage: Usage) -> bool:
        return self._full is not None and (
            usage.size > self._full.size + SLACK or usage.files > self._full.files + 1000
        )
