"""IPython extension of the kernels: processes that a stopped run has started end with it.

An interrupt ends the code of a cell, and of a shell that it waits for often just the first process. The
service then asks for `end_processes`. What began before the run lives on, with all that it starts.

The program of a ``!command`` that is interrupted is ended by what runs it, as in IPython, but not if the interrupt comes
while it starts or is ended: then the program would go on. Here it ends too.

It needs ``/proc``; where there is none (macOS, a sandbox in a container with a masked one) nothing is ended.
"""

import contextlib
import functools
import os
import select
import signal
import sys
import threading
import time

from interpreter_callbacks import call_before_cells

POLITE_SECONDS = 0.5  # between SIGTERM and SIGKILL
MAX_ROUNDS = 5  # a process may start another one while we look
TICKS = os.sysconf("SC_CLK_TCK")


class RunProcesses:
    """Knows which processes began during the latest run."""

    def __init__(self, shell):
        self._shell = shell
        self._kernel = os.getpid()
        self._session = os.getsid(0)  # a kernel is started in one of its own
        self._mark = f"KERNEL_ID={os.environ.get('KERNEL_ID', '')}".encode()
        self._run = None
        self._since = 0
        self._before = set()

    def begin(self, info=None):
        """Called before each cell; code that runs cells itself is still one run."""
        run = self._shell.kernel.get_parent("shell").get("header", {}).get("msg_id")
        if run != self._run and threading.current_thread() is threading.main_thread():
            self._run = run
            self._since = now()
            self._before = set(process_ids())

    def end(self):
        """End what the latest run has started; how many processes these were."""
        count = 0
        for _ in range(MAX_ROUNDS):
            found = self.started()
            if not found:
                break
            count += len(found)
            end_all(found)
        return count

    def started(self):
        """The process ids of what the latest run has started and still lives."""
        processes = {pid: process for pid in process_ids() if (process := read_process(pid))}
        new = {pid for pid, process in processes.items() if self._is_new(pid, process)}
        ancestors = set(chain(self._kernel, processes))
        return [pid for pid in new if self._is_ours(pid, processes, new, ancestors)]

    def _is_new(self, pid, process):
        started = process[0]
        if started == self._since:  # the clock is coarse: a hundredth of a second
            return pid not in self._before
        return started > self._since and pid != self._kernel

    def _is_ours(self, pid, processes, new, ancestors):
        """Whether this new process was not started by an older one, such as a server of an earlier run."""
        origin = next((above for above in chain(pid, processes) if above not in new), None)
        if origin == self._kernel:
            return True
        if origin is not None and origin not in ancestors and self._is_kernels(origin, processes):
            return False
        return self._is_kernels(pid, processes)  # its parents have ended

    def _is_kernels(self, pid, processes):
        if processes[pid][2] == self._session or self._kernel in chain(pid, processes):
            return True
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            return self._mark in file.read().split(b"\0")
        return False


def process_ids():
    """Of all processes that can be seen; none without ``/proc``."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit()]


def read_process(pid):
    """When it started (clock ticks since boot), its parent, its session and its terminal; None when it has ended.

    Source: proc_pid_stat(5).
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19]), int(fields[1]), int(fields[3]), int(fields[4])


def now():
    """The time, as `read_process` tells it."""
    return int(time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) * TICKS)


def chain(pid, processes):
    """The process, its parent, the parent's parent and so on, as far as they are known."""
    seen = set()
    while pid in processes and pid not in seen:
        seen.add(pid)
        yield pid
        pid = processes[pid][1]


def end_all(pids):
    """SIGTERM; SIGKILL for what is still there some time later."""
    handles = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            handles[os.pidfd_open(pid)] = pid
    send(signal.SIGTERM, handles)
    end = time.monotonic() + POLITE_SECONDS
    poll = select.poll()
    left = set(handles)
    for handle in handles:
        poll.register(handle, select.POLLIN)
    while left and (seconds := end - time.monotonic()) > 0:
        for handle, _ in poll.poll(seconds * 1000):
            poll.unregister(handle)
            left.discard(handle)
    send(signal.SIGKILL, left)
    while left and poll.poll(POLITE_SECONDS * 1000):
        for handle, _ in poll.poll(0):
            poll.unregister(handle)
            left.discard(handle)
    for handle in handles:
        os.close(handle)


def send(number, handles):
    """Send a signal; what has ended or may not be ended is left alone."""
    for handle in handles:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(handle, number)


# ---- shell commands


def end_with_wait(run):
    """Wraps a function that starts the program of a command in a terminal of its own and waits for it."""

    @functools.wraps(run)
    def run_or_end(command):
        since = now()
        try:
            return run(command)
        except BaseException:
            end_terminals(since)
            raise

    return run_or_end


def end_terminals(since):
    """End what this process has started in terminals of their own since then, with all that runs there."""
    processes = {pid: process for pid in process_ids() if (process := read_process(pid))}
    own = os.getpid()
    begun = {
        pid
        for pid, (started, parent, session, terminal) in processes.items()
        if parent == own and session == pid and terminal and started >= since
    }
    end_all([pid for pid, process in processes.items() if process[2] in begun])


_of_kernel = []  # RunProcesses, once it is loaded


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    if not _of_kernel and getattr(shell, "kernel", None) is not None:
        _of_kernel.append(RunProcesses(shell))
        call_before_cells(shell, _of_kernel[0].begin)
        module = sys.modules.get("ipykernel.zmqshell")
        if hasattr(module, "system"):
            module.system = end_with_wait(module.system)


def end_processes():
    """End what the latest run has started; how many processes these were."""
    return sum(processes.end() for processes in _of_kernel)
