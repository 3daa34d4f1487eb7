"""A thread per sandbox that enforces what the system has no limit for, and notes how the kernel ended.

The workspace is a plain folder (a quota would need a file system of its own), CPU time and age count over
the whole life of a sandbox, and without control groups its memory does too.
"""

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from interpreter.gateway_extension.sandbox import processes
from interpreter.gateway_extension.sandbox.cgroups import ControlGroup
from interpreter.gateway_extension.sandbox.command import MAX_TERMINALS
from interpreter.gateway_extension.sandbox.crowds import UNWATCHED, Crowd, CrowdWatch
from interpreter.gateway_extension.sandbox.holdings import Holdings
from interpreter.gateway_extension.sandbox.limits import MIB, Limits, size_text
from interpreter.gateway_extension.sandbox.pace import SHORTEST_TICK, Amounts, Pace
from interpreter.gateway_extension.sandbox.sockets import QUIET, Sockets, find_sockets, terminals
from interpreter.gateway_extension.sandbox.unseen import UnseenFiles
from interpreter.gateway_extension.sandbox.workspace import Usage, measure

log = logging.getLogger(__name__)

SMALL_FILE = (
    16 * 1024
)  # bytes that a file may have when the workspace is full: else no program could be started
SHORT_OF_MEMORY = 0.6  # of the limit; what is reserved and was never used counts against it too
SLACK = 16 * MIB  # growth that is tolerated once writing has been stopped
OVERSHOOT = (
    1024 * MIB
)  # above the limit, which no disk is filled with between two looks: ends the sandbox at once
NO_START = "; no kernel can start before files are deleted through the API"
SOCKET_SHARE = 8  # a part of the memory limit that may wait in sockets, where it is on nobody's account
MAX_SOCKETS = 4096
MAX_SOCKET_FOLDER = 64  # entries of the socket folder: a kernel makes five
MAX_FAILURES = 20  # looks in a row
MAX_TIME_OVER = 2.0  # seconds in which a sandbox has to end after its kernel
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
    holdings: Holdings
    inside: Callable[[], Sequence[int]]  # of its processes: `init`, then a kernel forked into it
    roots: Callable[[], Sequence[int]]  # the same, and helpers
    is_over: Callable[[], bool] | None = None  # whether that kernel has ended, which ends the sandbox


class Watchdog:
    """Starts with `start`, ends with the sandbox or with `stop`; then `on_end` has been called."""

    def __init__(self, watched: Watched, on_end: Callable[[str | None], None]) -> None:
        self._watched = watched
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name="sandbox-watchdog", daemon=True)
        self._wake_read, self._wake_write = os.pipe()
        self._up_at: float | None = None
        most = watched.limits.workspace_bytes, watched.limits.max_workspace_files
        self._pace = Pace(most)
        self._unseen = UnseenFiles(most, self._measure_named, self._free_on_disk, watched.inside)
        self._usage = Usage(0, 0)  # at the last count
        self._free = 0  # bytes of the disk, when the files with a name were counted last
        self._free_for_sockets = 0  # bytes of their folder's disk, when it was measured last
        self._full: Usage | None = None  # the usage at which writing was stopped
        self._sockets = Sockets(0, 0)  # at the last look
        self._sockets_change = False
        self._crowd_watch: CrowdWatch | None = None
        self._failures = 0
        self._log = b""
        self.was_short_of_memory = False  # at the last look

    def start(self) -> None:
        watched = self._watched
        if watched.cgroup is None or "cpu" not in watched.cgroup.controllers:
            crowd = Crowd(watched.init, watched.roots, watched.uid)
            self._crowd_watch = CrowdWatch(crowd, watched.init_fd, self._wake_read)
            self._crowd_watch.start()
        self._thread.start()

    def stop(self) -> None:
        """End the thread, whether or not the sandbox lives, and wait for it."""
        if self._wake_write >= 0:
            os.close(self._wake_write)
            self._wake_write = -1
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def kernel_is_up(self) -> None:
        """From now on its age counts, and it may be kept from writing: while it starts, that would end it."""
        self._up_at = time.monotonic()

    @property
    def log(self) -> str:
        """The last of what the kernel wrote to its stderr."""
        return self._log.decode(errors="replace")

    def _run(self) -> None:
        reason: str | None = None
        over_at: float | None = None
        ended = select.poll()
        ended.register(self._watched.init_fd, select.POLLIN)
        ended.register(self._wake_read, select.POLLHUP)
        try:
            while not ended.poll(self._tick * 1000):
                self._drain()
                reason = reason or self._try_to_look()
                if self._watched.is_over is not None and self._watched.is_over():
                    over_at = over_at or time.monotonic()
                    if time.monotonic() - over_at > MAX_TIME_OVER:
                        reason = reason or "the kernel ended"
                if reason:
                    processes.kill(self._watched.init_fd)
            self._drain()
        except Exception:
            log.exception("the watch on a sandbox failed, which ends it")
            reason = UNWATCHED
            processes.kill(self._watched.init_fd)
        finally:
            if self._crowd_watch is not None:
                reason = self._crowd_watch.wait() or reason
            os.close(self._wake_read)
            self._on_end(reason)

    @property
    def _tick(self) -> float:
        """Seconds until the next look."""
        return SHORTEST_TICK if self._sockets_change else self._pace.tick

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
        age = 0.0 if self._up_at is None else time.monotonic() - self._up_at
        if limits.wall_seconds and age > limits.wall_seconds:
            return f"wall time limit reached ({limits.wall_seconds:g} s)"
        return self._look_at_processes(limits) or self._look_at_sockets(limits) or self._look_at_files(limits)

    def _look_at_processes(self, limits: Limits) -> str | None:
        cgroup, reason = self._watched.cgroup, None
        cpu = cgroup.cpu_seconds() if cgroup is not None and limits.cpu_seconds else None
        counts_memory = self._counts_memory
        if cgroup is not None and counts_memory:
            self.was_short_of_memory = cgroup.holds_more_than(SHORT_OF_MEMORY * limits.memory_bytes)
        if not counts_memory or (limits.cpu_seconds and cpu is None):
            pids = self._pids()
            if limits.cpu_seconds and cpu is None:
                cpu = processes.cpu_seconds(pids)
            if not counts_memory:
                reason = self._look_at_memory(pids, limits)
        if reason is None and limits.cpu_seconds and cpu is not None and cpu > limits.cpu_seconds:
            return f"CPU time limit reached ({limits.cpu_seconds:g} s)"
        return reason

    @property
    def _counts_memory(self) -> bool:
        """Whether the system does."""
        cgroup = self._watched.cgroup
        return cgroup is not None and "memory" in cgroup.controllers

    def _look_at_memory(self, pids: list[int], limits: Limits) -> str | None:
        holdings = self._watched.holdings
        holdings.look(pids, self._has_become_far)
        if holdings.memory_exceeds(pids, limits.memory_bytes):
            return f"out of memory (limit {size_text(limits.memory_bytes)})"
        return holdings.excess

    def _look_at_sockets(self, limits: Limits) -> str | None:
        init, most = self._watched.init, limits.memory_bytes // SOCKET_SHARE
        before, self._sockets = self._sockets, find_sockets(init, most)
        sockets = self._sockets
        self._sockets_change = sockets.count > QUIET and sockets != before
        if sockets.count > MAX_SOCKETS:
            return f"too many sockets (limit {MAX_SOCKETS})"
        if not self._counts_memory and sockets.unix_size > limits.memory_bytes:
            return f"out of memory (limit {size_text(limits.memory_bytes)}; unix sockets may hold as much)"
        if sockets.size > most:
            return f"too much waits in sockets to be read (limit {size_text(most)})"
        return f"too many terminals (limit {MAX_TERMINALS})" if terminals(init) > MAX_TERMINALS + 1 else None

    def _look_at_files(self, limits: Limits) -> str | None:
        if reason := self._look_at_socket_folder():
            return reason
        if not self._pace.see(time.monotonic(), self._free_on_disk()):
            return None
        # The processor's time: on a busy machine a count is not made more seldom because it had to wait.
        started = time.thread_time()
        try:
            return self._count(limits)
        finally:
            unseen_size, unseen_files = self._unseen.unseen
            used = (self._usage.size + unseen_size, self._usage.files + unseen_files)
            seconds = time.thread_time() - started + self._unseen.seconds
            self._pace.counted(time.monotonic(), used, seconds=seconds)

    def _look_at_socket_folder(self) -> str | None:
        """It has few files, and may be on a disk of its own that is small, or memory."""
        free = _free_bytes(self._watched.sockets_fd)
        if self._free_for_sockets - free < MIB // 2:
            self._free_for_sockets = max(free, self._free_for_sockets)
            return None
        self._free_for_sockets = free
        sockets = measure(self._watched.sockets_fd, max_files=MAX_SOCKET_FOLDER)
        is_filled = not sockets.complete or sockets.size > MIB
        return "the folder of the kernel's sockets was filled" if is_filled else None

    def _count(self, limits: Limits) -> str | None:
        watched = self._watched
        if processes.memory_files(watched.init) > limits.max_workspace_files:
            return f"too many files in memory (limit {limits.max_workspace_files})"
        usage = self._usage = self._measure()
        if reason := watched.holdings.excess:
            return reason
        if not usage.complete or (usage.files > limits.max_workspace_files and self._grew(usage)):
            text = (
                f"too many or too deeply nested files in the workspace (limit {limits.max_workspace_files})"
            )
            return text if usage.complete else text + NO_START
        return self._check_space(usage, limits)

    def _measure(self) -> Usage:
        """What the workspace holds, files that have no name any more included."""
        watched, limits = self._watched, self._watched.limits
        disks = [(fd, os.fstatvfs(fd)) for fd in (watched.sockets_fd, watched.workspace_fd)]
        free = self._free_on_disk()
        usage = self._unseen.check(self._measure_named(), free)
        if not usage.complete or self._is_far_above(usage):
            return usage
        levels = dict[int, int]()  # of both folders', which mostly are on one disk
        for fd, disk in disks:
            in_sight = usage.size if fd == watched.workspace_fd else 0
            levels[os.fstat(fd).st_dev] = -disk.f_bfree * disk.f_frsize - in_sight
        if not watched.holdings.look(self._pids(), self._has_become_far):
            return self._measure_named()
        room = limits.workspace_bytes - usage.size
        hidden = sum(watched.holdings.disk_bytes(device, level, room) for device, level in levels.items())
        return replace(usage, size=usage.size + hidden)

    def _measure_named(self) -> Usage:
        watched = self._watched
        self._free = _free_bytes(watched.workspace_fd)
        return measure(watched.workspace_fd, max_files=int(watched.limits.max_workspace_files * 1.1) + 10)

    def _free_on_disk(self) -> Amounts:
        disk = os.fstatvfs(self._watched.workspace_fd)
        return disk.f_bfree * disk.f_frsize, disk.f_ffree

    def _is_far_above(self, usage: Usage) -> bool:
        return usage.size > self._watched.limits.workspace_bytes + OVERSHOOT

    def _has_become_far(self) -> bool:
        """Whether so much was written since the last count that a look at the processes has to wait."""
        if _free_bytes(self._watched.workspace_fd) > self._free - OVERSHOOT:
            return False
        return self._is_far_above(self._measure_named())

    def _pids(self) -> list[int]:
        return processes.tree(*self._watched.roots())

    def _check_space(self, usage: Usage, limits: Limits) -> str | None:
        """First stop all writing but of small files (a clean OSError), then end who finds another way."""
        if usage.size <= limits.workspace_bytes and usage.files <= limits.max_workspace_files:
            if self._full is not None:
                processes.set_file_size(self._pids(), limits.largest_file_bytes, self._watched.uid)
                self._full = None
            return None
        far = self._is_far_above(usage)
        if far or self._grew(usage):
            return f"workspace full (limit {size_text(limits.workspace_bytes)})" + (NO_START if far else "")
        if self._up_at is not None:
            processes.set_file_size(self._pids(), SMALL_FILE, self._watched.uid)
        if self._full is None:
            self._full = self._measure()  # what was written while we counted is nobody's fault
        return None

    def _grew(self, usage: Usage) -> bool:
        return self._full is not None and (
            usage.size > self._full.size + SLACK or usage.files > self._full.files + 1000
        )


def _free_bytes(fd: int) -> int:
    disk = os.fstatvfs(fd)
    return disk.f_bfree * disk.f_frsize
