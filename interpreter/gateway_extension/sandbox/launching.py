"""The gateway's side of the launcher: one process that forks for each sandbox, as a Python of its own takes long.

What it starts is a child of the gateway all the same, and outlives it.
"""

import atexit
import contextlib
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
TIMEOUT = 20.0
FIRST_FD = 3  # of those a sandbox is given: 0, 1 and 2 are its standard ones

# A sandbox ends with the thread that is its parent, which is the one that started the launcher: this one, which
# lives as long as this process.
_parent = ThreadPoolExecutor(1, "sandbox-parent")


class LaunchedProcess:
    """A child process that somebody else has started; like a `subprocess.Popen` without streams."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, or minus the number of the signal that ended it; None while it runs."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended. Raises `subprocess.TimeoutExpired` after ``timeout`` seconds."""
        if (code := self.poll()) is not None:
            return code
        handle = os.pidfd_open(self.pid)  # until we have waited for it the number is nobody else's
        try:
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            ended.poll(None if timeout is None else timeout * 1000)
        finally:
            os.close(handle)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("bubblewrap", timeout or 0.0)
        return code

    def kill(self) -> None:
        """End it, if it runs."""
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, signal.SIGKILL)


class Launcher:
    """Keeps the launcher's process: it is started with the first sandbox, and anew after it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self, plan_fd: int, fds: Sequence[int]) -> LaunchedProcess:
        """Have a process carry out a plan; there ``fds`` are 0, 1 and so on. Blocks; raises OSError."""
        with self._lock:
            if self._control is not None and self._owner == os.getpid():
                with contextlib.suppress(OSError):  # it has ended
                    return self._ask(self._control, plan_fd, fds)
            self._stop()
            return self._ask(self._start(), plan_fd, fds)

    def stop(self) -> None:
        """End the process, if there is one; what it has started lives on."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()

    def _ask(self, control: socket.socket, plan_fd: int, fds: Sequence[int]) -> LaunchedProcess:
        socket.send_fds(control, [b"launch"], [plan_fd, *fds])
        answer = control.recv(64)
        if not answer:
            raise ConnectionResetError("the launcher has ended")
        pid = int(marshal.loads(answer))  # noqa: S302  (our own program's)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return LaunchedProcess(pid)

    def _start(self) -> socket.socket:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(TIMEOUT)
        with theirs:
            self._process = _parent.submit(_start_program, theirs.fileno()).result()
        self._owner = os.getpid()
        return self._control


def _start_program(fd: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", "-S", LAUNCHER],
        stdin=fd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
    )


launcher = Launcher()
atexit.register(launcher.stop)
