"""Starts a kernel gateway that leaves nothing behind: ``python -m … PARENT_PID [gateway options]``.

Two processes. The first is a small supervisor: the "subreaper" of all that the gateway starts
(prctl(2), PR_SET_CHILD_SUBREAPER), so that orphans of any depth become its children and can be
ended, however the gateway or a kernel went. The second is the gateway. The supervisor is told by
the kernel when its parent, the service, dies (PR_SET_PDEATHSIG), and ends everything then.

The gateway's token comes as the first line of standard input: an environment variable could be
read by every process of the same user in ``/proc``.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

STOP_TIMEOUT = 5.0
"""Seconds between SIGTERM and SIGKILL for the gateway."""

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def main(argv: Sequence[str]) -> int:
    """Runs until the gateway ends or a signal comes; returns the gateway's exit code."""
    parent_pid, options = int(argv[0]), list(argv[1:])
    token = sys.stdin.readline().strip()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:  # it died before the line above
        return 1
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            return 1
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return _run_gateway(token, options)
    try:
        return _supervise(pid)
    finally:
        _end_descendants()
        runtime_dir = os.environ.get("JUPYTER_RUNTIME_DIR", "")
        if runtime_dir and os.getppid() != parent_pid:  # the service is gone and won't remove it
            from interpreter.gateway_extension.sandbox.removal import remove_tree  # noqa: PLC0415  (costs each start nothing)

            with contextlib.suppress(OSError):
                remove_tree(Path(runtime_dir))


def _run_gateway(token: str, options: list[str]) -> int:
    # Not dumpable: other processes of this user can't read its memory or environment.
    _prctl(_PR_SET_DUMPABLE, 0)
    # Ten or so descriptors for each kernel: the usual soft limit of 1024 ends at a hundred kernels.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    from interpreter.imports import import_jsonschema  # noqa: PLC0415

    import_jsonschema()  # before jupyter_events does
    from kernel_gateway.gatewayapp import KernelGatewayApp  # noqa: PLC0415

    from interpreter.eventloop import make_default  # noqa: PLC0415

    make_default()

    os.environ["KG_AUTH_TOKEN"] = token  # setenv(3) does not reach /proc/PID/environ
    KernelGatewayApp.launch_instance(argv=options)
    return 0


def _supervise(pid: int) -> int:
    deadline = None
    while True:
        left = 3600.0 if deadline is None else max(0.0, deadline - time.monotonic())
        received = signal.sigtimedwait(_SIGNALS, left)
        if received is None:
            if deadline is not None:
                os.kill(pid, signal.SIGKILL)
                deadline = time.monotonic() + STOP_TIMEOUT
        elif received.si_signo != signal.SIGCHLD:
            if deadline is None:
                deadline = time.monotonic() + STOP_TIMEOUT
                os.kill(pid, signal.SIGTERM)
        else:
            for child, status in _reap(os.WNOHANG):
                if child == pid:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code  # as shells tell a signal


def _reap(flags: int) -> Iterator[tuple[int, int]]:
    while True:
        try:
            child, status = os.waitpid(-1, flags)
        except ChildProcessError:
            return
        if child == 0:
            return
        yield child, status


def _end_descendants() -> None:
    """Kills every child until none is left; a killed child's own children become ours in turn."""
    while children := _children(os.getpid()):
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_bytes()
            except OSError:
                continue
            # proc(5): the name stands in parentheses and may hold any character; ppid is the 2nd after it
            if int(stat.rpartition(b")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) was refused")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
