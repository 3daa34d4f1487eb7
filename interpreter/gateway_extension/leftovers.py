"""Processes that a kernel started and that outlived it."""

import os
import signal
from pathlib import Path

_MAX_ROUNDS = 20


def kill_leftovers(kernel_id: str) -> None:
    """Kills every process whose environment names this kernel, also those in a session of their own.

    A process that wiped its environment gets away; a sandbox (pid namespace) leaves none.
    """
    for _ in range(_MAX_ROUNDS):  # one may fork while we look
        found = _processes_of(kernel_id)
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def _processes_of(kernel_id: str) -> list[int]:
    mark = f"KERNEL_ID={kernel_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in environment.split(b"\0"):
                found.append(int(entry.name))
    return found
