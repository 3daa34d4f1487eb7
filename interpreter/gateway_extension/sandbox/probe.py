"""Can kernels be put into a sandbox here, and which limits hold? ``python -m …sandbox`` prints it."""

import contextlib
import os
import subprocess
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from interpreter.gateway_extension.sandbox.bubblewrap import HeldProcess, SandboxError, Terms, start_held
from interpreter.gateway_extension.sandbox.cgroups import Parents, find_parents
from interpreter.gateway_extension.sandbox.command import Box, box_files
from interpreter.gateway_extension.sandbox.environment import masked_proc_files, system_binds
from interpreter.gateway_extension.sandbox.folders import default_runtime_dir
from interpreter.gateway_extension.sandbox.launching import launcher
from interpreter.gateway_extension.sandbox.seccomp import SeccompUnavailableError, seccomp_filter
from interpreter.gateway_extension.sandbox.uids import NoUidLeftError, UidPool

UID_RANGE = (200_000, 265_535)
TIMEOUT = 10.0

ADVICE = (
    (
        "mount proc",
        "The container's masked /proc forbids a new one: start the container with "
        "--security-opt systempaths=unconfined (Kubernetes: procMount: Unmasked).",
    ),
    (
        "setting up uid map",
        "User namespaces are restricted (Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an "
        "AppArmor profile for bwrap).",
    ),
    (
        "No permissions to create a new namespace",
        "User namespaces are off: sysctl kernel.unprivileged_userns_clone=1 (Debian) or "
        "user.max_user_namespaces; in Docker a seccomp profile that allows clone, unshare, mount and "
        "pivot_root, and --security-opt apparmor=unconfined.",
    ),
    (
        "CAP_SYS_ADMIN",
        "The gateway is root without CAP_SYS_ADMIN: run it as an ordinary user, which needs no capability.",
    ),
    (
        "No space left on device",
        "The limit of user namespaces is reached: raise sysctl user.max_user_namespaces.",
    ),
)
GENERAL_ADVICE = (
    "bubblewrap needs user namespaces and mount(2): in Docker a seccomp profile that allows clone, unshare, mount "
    "and pivot_root, --security-opt apparmor=unconfined and systempaths=unconfined; in Kubernetes the same by "
    "seccompProfile, appArmorProfile and procMount."
)


_probing = threading.Lock()
_worked: "dict[tuple[int, int], Probe]" = {}


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether the sandbox works here, why not, what to do; and what enforces each limit."""

    ok: bool
    reason: str | None
    fix: str | None
    proc: bool
    seccomp: bool
    enforced: dict[str, str]

    def as_json(self) -> dict[str, object]:
        """For ``/readyz`` and for logs."""
        return asdict(self)


def enforced_limits(parents: Parents | None = None) -> dict[str, str]:
    """Limit → what enforces it here: ``cgroup v1``, ``cgroup v2``, ``rlimit``, ``watchdog``, ``tmpfs``…"""
    parents = find_parents() if parents is None else parents
    group = f"cgroup v{parents.version}"
    has = set(parents.controllers)
    cpu = group if "cpu" in has else None
    counted = group if {"cpuacct", "cpu"} & has and parents.version else "rlimit per process"
    return {
        "memory_bytes": f"{group} + rlimit" if "memory" in has else "rlimit per process + watchdog",
        "cpu_quota": cpu or "not enforced",
        "cpu_share": cpu or "scheduler's autogroup",
        "cpu_seconds": f"{counted} + watchdog",
        "wall_seconds": "watchdog",
        "max_processes": f"{group} + rlimit" if "pids" in has else "rlimit",
        "max_open_files": "rlimit",
        "max_file_bytes": "rlimit",
        "workspace_bytes": "watchdog",
        "max_workspace_files": "watchdog",
        "tmp_bytes": "tmpfs",
        "shm_bytes": "tmpfs",
    }


def probe(uid_range: tuple[int, int] = UID_RANGE) -> Probe:
    """Make a sandbox around ``true``, the same way as for a kernel (about 50 ms; once it works it is not done again).

    What failed is tried again when next asked for: a machine that was busy, say, is not for good.
    ``uid_range``: of kernels, when we are root. Raises ValueError for one that holds no plain uids.
    """
    with _probing:
        found = _worked.get(uid_range)
        if found is None:
            found = _probe(uid_range)
            if found.ok:
                _worked[uid_range] = found
        return found


def _probe(uid_range: tuple[int, int]) -> Probe:
    enforced = enforced_limits()
    try:
        seccomp_filter()
    except SeccompUnavailableError as error:
        return Probe(False, str(error), "Install libseccomp and pyseccomp.", True, False, enforced)
    try:
        reason = _try(uid_range, proc=True)
        without_proc = reason is not None and "proc" in reason and _try(uid_range, proc=False) is None
    finally:
        launcher.stop()  # whoever asks may never start a kernel
    if reason is None:
        return Probe(True, None, None, True, True, enforced)
    if without_proc:
        # ipykernel needs no /proc; only psutil and the like lose something.
        fix = next(text for key, text in ADVICE if key == "mount proc")
        return Probe(True, f"kernels run without /proc ({reason})", fix, False, True, enforced)
    return Probe(False, reason, advice(reason), False, True, enforced)


def advice(reason: str) -> str:
    """What to do about a failure that bubblewrap or the launcher reported."""
    return next((text for key, text in ADVICE if key in reason), GENERAL_ADVICE)


def uid_folder(runtime_dir: str) -> Path:
    """Where uids are locked: one place for all gateways of the host that run as root."""
    return Path("/run/jupyter-kernel-uids") if os.access("/run", os.W_OK) else Path(runtime_dir) / "uids"


def _try(uid_range: tuple[int, int], *, proc: bool) -> str | None:
    """Why it failed; None when it worked."""
    binds, links = system_binds()
    box = Box(
        argv=["/usr/bin/true"],
        binds=binds,
        env={},
        links=links,
        files=box_files(),
        masked=masked_proc_files() if proc else (),
        proc=proc,
        cwd="/",
    )
    lease = None
    held: HeldProcess | None = None
    try:
        if os.geteuid() == 0:
            lease = UidPool(uid_folder(default_runtime_dir()), *uid_range).acquire()
        held = start_held(box, Terms(uid=lease.uid if lease is not None else None))
        held.wait_until_held(TIMEOUT)
        held.go()
        code = held.process.wait(TIMEOUT)
        return None if code == 0 else _error_text(held, code)
    except (OSError, SandboxError, NoUidLeftError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        if held is not None:
            held.process.kill()
            held.process.wait()
            held.close()
        if lease is not None:
            lease.release()


def _error_text(held: HeldProcess, code: int) -> str:
    with contextlib.suppress(BlockingIOError):
        text = os.read(held.stderr_fd, 4096).decode(errors="replace").strip()
        if text:
            return text
    return f"bubblewrap ended with {code}"
