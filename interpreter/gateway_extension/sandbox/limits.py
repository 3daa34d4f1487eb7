"""How much one kernel may use (pure): the numbers, their bounds and the rlimits made of them."""

import dataclasses
import json
import math
import resource
from collections.abc import Mapping
from dataclasses import dataclass

MIB = 1024**2
GIB = 1024**3

# A kernel needs about this much before it runs any code; less would only make it die at start.
SMALLEST = {"memory_bytes": 128 * MIB, "max_processes": 24, "max_open_files": 64, "max_file_bytes": MIB}

# And queued signals. Before Linux 6.13 a timer goes on for a signal that is ignored, at nobody's expense.
MAX_TIMERS = 1024
OWN_PROCESSES = 2  # bubblewrap's, outside and inside


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one kernel with all its processes. 0 means "no limit" where it is allowed."""

    memory_bytes: int = 2 * GIB
    cpu_quota: float = 0.0  # cores; 0: as many as are free
    cpu_share: int = 1024  # weight when the processors are busy; the service and its gateway have as much
    cpu_seconds: float = 0.0  # CPU time over the kernel's life; 0: unlimited
    wall_seconds: float = 0.0  # age of the kernel; 0: unlimited
    max_processes: int = 512  # threads count too
    max_open_files: int = 1024  # per process
    max_file_bytes: int = 2 * GIB  # one file
    workspace_bytes: int = 4 * GIB
    max_workspace_files: int = 100_000
    tmp_bytes: int = 512 * MIB  # /tmp and home, each; counts as memory
    shm_bytes: int = 256 * MIB  # /dev/shm; counts as memory

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"limit {field.name} must be a number")
            optional = field.name in {"cpu_quota", "cpu_seconds", "wall_seconds"}
            smallest = SMALLEST.get(field.name, 1)
            if not (value == 0 and optional) and value < (0.01 if optional else smallest):
                raise ValueError(f"limit {field.name} must be at least {smallest}")

    def bounded(self, bounds: Mapping[str, float]) -> "Limits":
        """These limits, none of them above ``bounds``; an unlimited value becomes the bound.

        Raises ValueError for a name that is not a limit.
        """
        names = {field.name for field in dataclasses.fields(self)}
        changes: dict[str, float] = {}
        for name, bound in bounds.items():
            if name not in names:
                raise ValueError(f"unknown limit {name!r}")
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                raise ValueError(f"limit {name} must be a number")
            own = getattr(self, name)
            if bound > 0 and (own == 0 or own > bound):
                changes[name] = bound
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def requested(self, text: str) -> "Limits":
        """These limits after a session's wish (a JSON object): it can lower them, never raise them."""
        try:
            wish = json.loads(text)
        except ValueError as error:
            raise ValueError("KERNEL_LIMITS is not valid JSON") from error
        if not isinstance(wish, dict):
            raise ValueError("KERNEL_LIMITS must be a JSON object of limit names and numbers")
        return self.bounded(wish)

    @property
    def largest_file_bytes(self) -> int:
        """What a file may grow to: never beyond the workspace, so that no single file fills more."""
        return min(self.max_file_bytes, self.workspace_bytes)

    def rlimits(self, *, own_uid: bool) -> list[tuple[int, int]]:
        """(resource, value) pairs that bubblewrap starts under and every process inherits.

        The numbers of processes and of timers count per uid, so they are among them only for a uid of the
        sandbox's own.
        RLIMIT_DATA is a little below the memory limit, so that a big allocation fails as a clean
        MemoryError before the kernel's OOM killer has to act. RLIMIT_AS would hit thread arenas and
        memory-mapped files, which cost nothing. With an RLIMIT_CORE of 0 a host's program for dumps
        (`core_pattern`) would still get them whole; 1 byte is what the system takes for "none at all".
        """
        pairs = [
            (resource.RLIMIT_DATA, int(self.memory_bytes * 0.95)),
            (resource.RLIMIT_NOFILE, self.max_open_files),
            (resource.RLIMIT_FSIZE, self.largest_file_bytes),
            (resource.RLIMIT_CORE, 1),
            (resource.RLIMIT_MEMLOCK, 64 * 1024),
            (resource.RLIMIT_MSGQUEUE, 0),
        ]
        if own_uid:
            pairs.append((resource.RLIMIT_NPROC, self.max_processes + OWN_PROCESSES))
            pairs.append((resource.RLIMIT_SIGPENDING, MAX_TIMERS))
        if self.cpu_seconds:
            pairs.append((resource.RLIMIT_CPU, math.ceil(self.cpu_seconds) + 1))
        return pairs

    def process_rlimits(self) -> list[tuple[int, int]]:
        """For a process in a user namespace of the sandbox's own, where these count the sandbox only."""
        return [(resource.RLIMIT_NPROC, self.max_processes), (resource.RLIMIT_SIGPENDING, MAX_TIMERS)]

    def threads(self) -> int | None:
        """How many threads numeric libraries should start; None: leave it to them."""
        return max(1, math.ceil(self.cpu_quota)) if self.cpu_quota else None


def size_text(count: float) -> str:
    """Bytes for people: ``512 MiB``."""
    for unit, step in (("GiB", GIB), ("MiB", MIB), ("KiB", 1024)):
        if count >= step:
            return f"{count / step:.4g} {unit}"
    return f"{count:.0f} bytes"
