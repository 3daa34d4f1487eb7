"""The short program between the gateway and bubblewrap: ``python -I -S launcher.py``.

Its stdin is a SOCK_SEQPACKET socket of the gateway; no other number is sure to be closed in a sandbox, whatever
the gateway had open. With each message come descriptors: that of a plan, and those that bubblewrap gets as 0, 1
and so on. The answer is the process id of a fork, a child of the gateway like this program itself. The fork does
what must happen in a process of its own, before bubblewrap:

* join the kernel's control groups, so that nothing it starts is ever outside of them;
* as root, collect the sandbox's folders in a private mount namespace (they may lie below folders that the
  kernel's user can't enter, such as /root), then become the kernel's plain user for good. bubblewrap must
  never run as uid 0 of the host: the sandbox could then write /proc/sys, core_pattern included;
* die with the gateway, even when that dies right now.

A fork of this small process takes a tenth of the time of a Python that starts. Standard library only.
"""

import ctypes
import errno
import marshal
import os
import resource
import socket

CLONE_NEWNS = 0x00020000
MNT_DETACH = 2
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
SIGKILL, SIGCHLD, SIGNALS = 9, 17, range(1, 65)
CLONE_PARENT = 0x8000
CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "loongarch64": 220, "ppc64le": 120}  # system call
UNNEEDED = (b"/sys", b"/dev/shm", b"/dev/pts", b"/dev/mqueue", b"/dev/hugepages")
"""bubblewrap reads the list of all mounts, with those of control groups below /sys, after each one that it makes."""
MAX_FDS = 64
FAR = 256  # above all descriptors that are given

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [value.encode() if value is not None else None for value in (source, target, kind)]
    options = data.encode() if data is not None else None
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), options), f"mount {target}")


def _stage(folder: str, sources: dict[str, str], terminals: tuple[str, int]) -> None:
    """Bind each source to ``folder``/<its name>, visible to this process and its children only.

    ``terminals``: the name and the size of a file system of terminals.
    """
    # not os.unshare: new in Python 3.12
    _check(_libc.unshare(CLONE_NEWNS), "unshare the mount namespace (needs CAP_SYS_ADMIN)")
    _mount("none", "/", None, MS_REC | MS_SLAVE)
    # before the mount below hides some of them, after the change of namespace that binds need
    handles = {name: os.open(source, os.O_PATH | os.O_CLOEXEC) for name, source in sources.items()}
    _mount("tmpfs", folder, "tmpfs", 0, "mode=0755,size=1m")
    for name, handle in handles.items():
        target = f"{folder}/{name}"
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        _mount(f"/proc/self/fd/{handle}", target, None, MS_BIND | MS_REC)
        os.close(handle)
    name, most = terminals
    os.mkdir(f"{folder}/{name}", 0o755)
    _mount("devpts", f"{folder}/{name}", "devpts", 0, f"newinstance,mode=0620,ptmxmode=0666,max={most}")
    for path in UNNEEDED:
        _libc.umount2(path, MNT_DETACH)  # fails where nothing is mounted, or not by us


def serve(control: socket.socket) -> None:
    """Fork for each message until the gateway has gone."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, 64, MAX_FDS)
        if not message:
            return
        pid = _fork_sibling()
        if pid == 0:
            _be_launched(fds)
        for fd in fds:
            os.close(fd)
        control.send(marshal.dumps(pid))


def _go_first_without_memory(score: int) -> None:
    """Let the system end us by so much (of 1000) sooner than the gateway, when the host has no memory left."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            score = min(int(file.read()) + score, 1000)
            file.seek(0)
            file.write(str(score))
    except OSError:
        pass  # a container whose /proc is read-only


def _fork_sibling() -> int:
    """As os.fork, but the new process is a child of our parent. A negative number is that of an error.

    Python need not be told: there is a single thread, and the new process soon is another program.
    """
    number = CLONE.get(os.uname().machine)
    if number is None:
        return -errno.ENOSYS
    pid = int(_libc.syscall(number, CLONE_PARENT | SIGCHLD, None, None, None, None))
    return pid if pid >= 0 else -ctypes.get_errno()


def _be_launched(fds: list[int]) -> None:
    """Never returns."""
    try:
        for number, fd in enumerate(fds):
            os.dup2(fd, FAR + number, inheritable=False)
        os.closerange(0, FAR)
        for number in range(1, len(fds)):
            os.dup2(FAR + number, number - 1)
        carry_out(FAR)
    except (OSError, ValueError, KeyError, EOFError) as problem:
        os.write(2, f"launcher: {problem}\n".encode())
    finally:
        os._exit(125)


def carry_out(fd: int) -> None:
    """Do what the plan says; ends in bubblewrap."""
    with os.fdopen(fd, "rb") as file:
        plan = marshal.load(file)  # noqa: S302  (the gateway's, which runs the same Python)
    for path in plan["cgroup_procs"]:
        with open(path, "w") as group:
            group.write("0")
    os.nice(plan["nice"])
    _go_first_without_memory(plan["oom_score"])
    if plan["staging"]:
        _stage(plan["staging"], plan["sources"], plan["terminals"])
    if plan["uid"] is not None:
        os.setgroups([])
        os.setresgid(plan["uid"], plan["uid"], plan["uid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    for kind, value in plan["rlimits"]:
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    # After the change of user, which clears it; then look whether the parent has gone already.
    _check(_libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "parent death signal")
    if os.getppid() != plan["parent"]:
        os._exit(1)
    # What the gateway ignores (under nohup, say, or because Python does) is nothing to a kernel.
    for number in SIGNALS:
        _libc.signal(number, None)  # SIG_DFL; some can't be set, and are never ignored
    os.chdir("/")
    os.umask(0o022)
    if plan["program_fd"] is not None:  # a copy that nobody shares; its libraries are not found beside it
        os.set_inheritable(plan["program_fd"], False)
        try:  # noqa: SIM105  (contextlib would have to be imported)
            os.execve(plan["program_fd"], plan["argv"], {"LD_LIBRARY_PATH": plan["libraries"]})  # noqa: S606
        except PermissionError:
            pass  # this machine starts no programs from memory (sysctl vm.memfd_noexec)
    os.execve(plan["argv"][0], plan["argv"], {})  # noqa: S606


if __name__ == "__main__":
    _check(_libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "parent death signal")
    serve(socket.socket(fileno=0))
