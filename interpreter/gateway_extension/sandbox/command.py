"""The bubblewrap command of one sandbox (pure: from a description to arguments)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WORKSPACE = "/mnt/data"
HOME = "/home/user"
PACKAGES = f"{HOME}/.packages"  # there from the start: Python remembers folders of its path that are not
TERMINALS = "/dev/pts"
MAX_TERMINALS = 64  # all sandboxes and containers of a host share some three thousand
UID = 1000  # inside; outside it is the gateway's user, or one of the range when that is root

# Files of an own procfs that tell about the host, or have it work for who reads them (`locks` stops all that lock a
# file, each that watches `pressure` takes milliseconds to end); an unreadable device is bound over each, an empty folder
# over those that are folders.
PROC_FOLDERS = ("/proc/fs",)
PROC_MASKED = (
    *PROC_FOLDERS,
    "/proc/cmdline",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/kallsyms",
    "/proc/locks",
    "/proc/modules",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/irq",
    "/proc/pressure/memory",
    "/proc/sched_debug",
    "/proc/slabinfo",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/vmallocinfo",
)


@dataclass(frozen=True, slots=True)
class Bind:
    """A folder or file of the host shown at ``dest``."""

    source: str
    dest: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """What one sandbox holds. All paths absolute; sizes in bytes."""

    argv: Sequence[str]
    binds: Sequence[Bind]
    env: Mapping[str, str]
    links: Sequence[tuple[str, str]] = ()  # (target, path)
    files: Mapping[str, bytes] = field(default_factory=dict)  # path → content, read-only
    masked: Sequence[str] = ()  # of PROC_MASKED, those that exist here
    tmp_bytes: int = 512 * 1024**2
    shm_bytes: int = 256 * 1024**2
    proc: bool = True  # False where the host's masked /proc forbids a new one
    cwd: str = WORKSPACE


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Open file descriptors that bubblewrap reads from or writes to."""

    status: int
    block: int
    seccomp: int
    files: Mapping[str, int]


def box_files() -> dict[str, bytes]:
    """The few files of /etc that are written for the sandbox instead of shown from the host."""
    return {
        "/etc/passwd": f"user:x:{UID}:{UID}:user:{HOME}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n".encode(),
        "/etc/group": f"user:x:{UID}:\nnogroup:x:65534:\n".encode(),
        "/etc/hosts": b"127.0.0.1 localhost sandbox\n::1 localhost\n",
        "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
        "/etc/resolv.conf": b"",
    }


def _isolation(box: Box, fds: Descriptors) -> list[str]:
    args = [
        "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--new-session",
        "--cap-drop", "ALL", "--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox", "--clearenv",
    ]  # fmt: skip
    for name, value in sorted(box.env.items()):
        args += ["--setenv", name, value]
    args += ["--json-status-fd", str(fds.status), "--block-fd", str(fds.block)]
    return [*args, "--seccomp", str(fds.seccomp)]


def _kernel_filesystems(box: Box) -> list[str]:
    args: list[str] = []
    if box.proc:
        # bubblewrap covers /proc/sys only when it finds the folder writable, which a plain uid's is not
        # though single files in it can be: so always.
        args += ["--proc", "/proc", "--ro-bind-try", "/proc/sys", "/proc/sys"]
        for path in box.masked:
            if path in PROC_FOLDERS:
                args += ["--perms", "0555", "--size", "4096", "--tmpfs", path, "--remount-ro", path]
            else:
                args += ["--ro-bind", "/dev/null", path]
    else:
        args += ["--dir", "/proc"]
    args += ["--dev", "/dev", "--perms", "1777", "--size", str(box.shm_bytes), "--tmpfs", "/dev/shm"]  # noqa: S108
    args += ["--perms", "1777", "--size", str(box.tmp_bytes), "--tmpfs", "/tmp"]  # noqa: S108
    return [*args, "--perms", "0700", "--size", str(box.tmp_bytes), "--tmpfs", HOME, "--dir", PACKAGES]


def bwrap_arguments(
    box: Box, fds: Descriptors, sources: Mapping[str, str] | None = None, terminals: str | None = None
) -> list[str]:
    """Options for bubblewrap, without its own name and the command to run.

    ``sources`` says where a bind's source is to be found when it was staged elsewhere; ``terminals``: a file
    system of terminals that knows a limit, which bubblewrap's own has not. The arguments hold the
    kernel's environment: pass them with ``--args``, or every process list shows them.
    """
    args = _isolation(box, fds)
    for target, path in box.links:
        args += ["--symlink", target, path]
    # Parents first, so that nothing already mounted is covered; /tmp and home before what lies in them.
    system = [bind for bind in box.binds if bind.dest == "/usr" or bind.dest.startswith(("/usr/", "/etc/"))]
    others = [bind for bind in box.binds if bind not in system]
    for bind in sorted(system, key=lambda bind: bind.dest):
        args += _bind(bind, sources)
    for path, fd in fds.files.items():
        args += ["--perms", "0444", "--file", str(fd), path]  # in the root, which is read-only in the end
    args += _kernel_filesystems(box)
    for bind in sorted(others, key=lambda bind: bind.dest):
        args += _bind(bind, sources)
    if terminals is not None:
        args += ["--dev-bind", terminals, TERMINALS]
    if box.proc:
        # What it has of processes, too: their place in line when memory is short, their share of the processors …
        args += ["--remount-ro", "/proc"]
    args += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [*args, "--chdir", box.cwd]


def _bind(bind: Bind, sources: Mapping[str, str] | None) -> list[str]:
    source = bind.source if sources is None else sources[bind.source]
    return ["--bind" if bind.writable else "--ro-bind", source, bind.dest]
