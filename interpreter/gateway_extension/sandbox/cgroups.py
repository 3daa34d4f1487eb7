"""A control group per kernel: version 2 where a subtree is delegated, version 1 where it is writable."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from interpreter.gateway_extension.sandbox.limits import OWN_PROCESSES, Limits

PREFIX = "jks-"
CPU_PERIOD = 100_000  # microseconds
V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
REMOVE_TRIES = 300  # of a hundredth of a second: a busy machine takes its time to end processes
OLD = 60.0  # seconds
# A part of the memory limit that TCP and UDP may have where version 1 counts them, which it does on their own.
SOCKET_SHARE = 16
_COUNTERS_BYTES = 8192  # more than any file of counters has


@dataclass(frozen=True, slots=True)
class Parents:
    """Where groups can be made: the version, and per controller the folder to make them in."""

    version: int  # 0: nowhere
    folders: dict[str, Path]

    @property
    def controllers(self) -> tuple[str, ...]:
        return tuple(sorted(self.folders))


def find_parents(proc: Path = Path("/proc/self")) -> Parents:
    """Look where this process may make control groups."""
    mounts, own = _mounts(proc / "mountinfo"), _own_groups(proc / "cgroup")
    v2 = mounts.get("")
    if v2 is not None and "" in own:
        folder = _delegated(v2 / own[""].lstrip("/"), v2)
        if folder is not None:
            return Parents(2, dict.fromkeys(("memory", "pids", "cpu"), folder))
    folders = {}
    for name in V1_CONTROLLERS:
        if name in mounts and name in own:
            folder = mounts[name] / own[name].lstrip("/")
            if not folder.is_dir():  # a container sees its own group as the mount's root
                folder = mounts[name]
            if os.access(folder, os.W_OK) and (folder / "cgroup.procs").exists():
                folders[name] = folder
    return Parents(1, folders) if "memory" in folders or "pids" in folders else Parents(0, {})


def _mounts(mountinfo: Path) -> dict[str, Path]:
    """Controller → mount point; version 2 under the empty name."""
    found: dict[str, Path] = {}
    for line in mountinfo.read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        point = Path(left.split(" ")[4])
        if kind == "cgroup2":
            found.setdefault("", point)
        elif kind == "cgroup":
            for option in options.split(","):
                if option in V1_CONTROLLERS:
                    found.setdefault(option, point)
    return found


def _own_groups(cgroup: Path) -> dict[str, str]:
    groups = {}
    for line in cgroup.read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            groups[name] = path
    return groups


def _delegated(own: Path, root: Path) -> Path | None:
    """The nearest group that gives memory and pids to children we can make.

    Version 2 lets only groups without processes share out controllers. Ours is the leaf next to the
    kernels' when the service manager made it so (systemd: ``DelegateSubgroup=``, or a container's start
    script); else its processes, when all are ours, move to a leaf below.
    """
    for folder in (own.parent, own):
        if folder != root.parent and os.access(folder / "cgroup.subtree_control", os.W_OK):
            if {"memory", "pids"} <= set((folder / "cgroup.subtree_control").read_text().split()):
                return folder
            if folder == own and _share_out(own):
                return own
    return None


def _share_out(own: Path) -> bool:
    offered = set((own / "cgroup.controllers").read_text().split()) & {"memory", "pids", "cpu"}
    if not {"memory", "pids"} <= offered or not os.access(own, os.W_OK):
        return False
    leaf = own / "service"
    try:
        leaf.mkdir(exist_ok=True)
        for pid in (own / "cgroup.procs").read_text().split():
            (leaf / "cgroup.procs").write_text(pid)
        (own / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(offered)))
    except OSError:
        return False
    return True


class ControlGroup:
    """The group of one kernel (with version 1: one folder per controller)."""

    def __init__(self, parents: Parents, name: str, limits: Limits) -> None:
        self._version = parents.version
        self._folders = {
            controller: folder / f"{PREFIX}{name}" for controller, folder in parents.folders.items()
        }
        for folder in self._folders.values():
            folder.mkdir(exist_ok=True)
        # Some files are read again and again: opening one costs far more than reading it.
        self._opened: dict[str, int] = {}
        self._write_limits(limits)

    @property
    def procs_files(self) -> list[str]:
        """Files to write a process id into (0: the writer), one per hierarchy."""
        return sorted({str(folder / "cgroup.procs") for folder in self._folders.values()})

    @property
    def controllers(self) -> tuple[str, ...]:
        return tuple(sorted(self._folders))

    def join(self, pid: int) -> None:
        """Put a process into the group."""
        for path in self.procs_files:
            Path(path).write_text(str(pid))

    def _write_limits(self, limits: Limits) -> None:
        quota = int(limits.cpu_quota * CPU_PERIOD)
        if self._version == 2:
            weight = max(1, min(10_000, limits.cpu_share * 100 // 1024))
            self._set("memory", "memory.max", limits.memory_bytes)
            self._set("memory", "memory.swap.max", 0)
            self._set("pids", "pids.max", limits.max_processes + OWN_PROCESSES)
            self._set("cpu", "cpu.weight", weight)
            self._set("cpu", "cpu.max", f"{quota or 'max'} {CPU_PERIOD}")
        else:
            self._set("memory", "memory.limit_in_bytes", limits.memory_bytes)
            self._set("memory", "memory.memsw.limit_in_bytes", limits.memory_bytes)
            self._set("memory", "memory.kmem.tcp.limit_in_bytes", limits.memory_bytes // SOCKET_SHARE)
            self._set("pids", "pids.max", limits.max_processes + OWN_PROCESSES)
            self._set("cpu", "cpu.shares", max(2, limits.cpu_share))
            self._set("cpu", "cpu.cfs_quota_us", quota or -1)

    def _set(self, controller: str, name: str, value: object) -> None:
        path = self._folders.get(controller)
        if path is not None and (path / name).exists():
            (path / name).write_text(str(value))

    def oom_kills(self) -> int:
        """How many processes of this group died because it was out of memory."""
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        return self._counter("memory", name, "oom_kill")

    def holds_more_than(self, limit: float) -> bool:
        """Whether the processes themselves have so many bytes of memory, without what they have read of files."""
        v2 = self._version == 2
        name, key = ("memory.current", "anon") if v2 else ("memory.usage_in_bytes", "total_rss")
        with contextlib.suppress(OSError, ValueError):
            if int(self._read("memory", name)) <= limit:  # with the files, and far cheaper to ask for
                return False
        return self._counter("memory", "memory.stat", key) > limit

    def cpu_seconds(self) -> float | None:
        """CPU time of all processes that ever were in the group; None when not counted here."""
        if self._version == 2 and "cpu" in self._folders:
            return self._counter("cpu", "cpu.stat", "usage_usec") / 1e6
        if "cpuacct" in self._folders:
            with contextlib.suppress(OSError, ValueError):
                return int(self._read("cpuacct", "cpuacct.usage")) / 1e9
        return None

    def _counter(self, controller: str, name: str, key: str) -> int:
        with contextlib.suppress(OSError, ValueError, KeyError):
            _, _, rest = f"\n{self._read(controller, name)}".partition(f"\n{key} ")
            return int(rest.partition("\n")[0])
        return 0

    def _read(self, controller: str, name: str) -> str:
        fd = self._opened.get(name)
        if fd is None:
            fd = self._opened[name] = os.open(self._folders[controller] / name, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(fd, _COUNTERS_BYTES, 0).decode()

    def remove(self) -> None:
        """Remove the group once its processes are gone; a few are still ending when we come."""
        while self._opened:
            os.close(self._opened.popitem()[1])
        for folder in self._folders.values():
            _remove_group(folder)


def _remove_group(folder: Path) -> None:
    for _ in range(REMOVE_TRIES):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)  # the kernel tells nobody when the last zombie has left a version 1 group
        else:
            return


def sweep_groups(parents: Parents, instances: list[str]) -> None:
    """Remove the groups of gateways that died (their kernels died with them), and old empty ones.

    Not new ones that are empty: another gateway may be about to fill them. Nor does it matter if one is gone before
    it was looked at: other gateways remove theirs meanwhile.
    """
    for folder in set(parents.folders.values()):
        for group in folder.glob(f"{PREFIX}*"):
            if any(group.name.startswith(f"{PREFIX}{name}-") for name in instances):
                _remove_group(group)
                continue
            with contextlib.suppress(OSError):
                if time.time() - group.stat().st_mtime > OLD:
                    group.rmdir()
