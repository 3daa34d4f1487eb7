"""Runtime folders: one per gateway process, in it one per kernel; what a dead gateway left is swept.

A kernel's folder holds ``c.json`` (the connection file), ``s`` (where the kernel makes its sockets) and
``c`` (where the gateway connects). The kernel may do with ``s`` what it likes, say replace a socket by a
link to another program's, so the gateway never follows names in it: sockets are hard-linked into ``c``,
which the sandbox can't reach, before any code can run.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
import threading
from pathlib import Path

from interpreter.gateway_extension.sandbox.removal import remove_tree

MAX_FOLDER = 57  # a socket's path may have 107 bytes; this is what is left for ours and for jupyter's names

_instances: dict[str, "Instance"] = {}
_instances_lock = threading.Lock()


def default_runtime_dir() -> str:
    """A short folder that is only ours: in XDG_RUNTIME_DIR when that is usable, else in /run or /tmp."""
    uid = os.geteuid()
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and len(given) <= 24 and os.access(given, os.W_OK):
        return f"{given}/jks"
    return f"{'/run' if os.access('/run', os.W_OK) else '/tmp'}/jks-{uid}"  # noqa: S108


class KernelFolder:
    """The folder of one kernel."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection_file = path / "c.json"
        self.kernel_file = path / "t.json"  # the connection file of a kernel that knows TCP only
        self.sockets = path / "s"
        self.published = path / "c"
        self.private_workspace = path / "w"

    def prepare(self, uid: int) -> None:
        """Empty socket folders for a new start; ``uid`` is who will bind in them."""
        self.clear_sockets()
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.published.mkdir(mode=0o700)
        self.sockets.mkdir(mode=0o700)
        os.chown(self.sockets, uid, uid if uid != os.geteuid() else -1)

    def clear_sockets(self) -> None:
        """Remove both socket folders with all that is in them."""
        for folder in (self.sockets, self.published):
            remove_tree(folder)

    def publish(self, ports: list[int], uid: int) -> bool:
        """Link the kernel's sockets to where the gateway looks for them; False until all are there.

        Raises ValueError when one of them is not a socket of ``uid``.
        """
        there = set(os.listdir(self.sockets))
        found = [self._find(port, there) for port in ports]
        if None in found:
            return False
        for port, name in zip(ports, found, strict=True):
            link = self.published / f"k-{port}"
            os.link(self.sockets / str(name), link, follow_symlinks=False)
            status = link.lstat()
            if not stat.S_ISSOCK(status.st_mode) or status.st_uid != uid:
                link.unlink()
                raise ValueError("the kernel put something else where its socket belongs")
        return True

    def is_published(self, ports: list[int]) -> bool:
        """Whether somebody else, a relay, has made all sockets for the gateway."""
        return all((self.published / f"k-{port}").is_socket() for port in ports)

    def write_kernel_file(self, first_port: int) -> dict[str, int]:
        """The connection file with TCP ports on loopback instead; {the gateway's socket: port}."""
        info = json.loads(self.connection_file.read_text())
        names = sorted(name for name in info if name.endswith("_port"))
        relayed = {}
        for number, name in enumerate(names):
            relayed[str(self.published / f"k-{info[name]}")] = first_port + number
            info[name] = first_port + number
        self.kernel_file.touch(mode=0o600)
        self.kernel_file.write_text(json.dumps(info | {"transport": "tcp", "ip": "127.0.0.1"}))
        return relayed

    def seal(self) -> None:
        """Let nothing more be made among the sockets (as root: else the owner is the kernel's user)."""
        os.chown(self.sockets, os.geteuid(), -1)
        self.sockets.chmod(0o555)

    def _find(self, port: int, there: set[str]) -> str | None:
        # libzmq's users name an ipc socket "<ip>-<port>", some other implementations "<ip>:<port>".
        for name in (f"k-{port}", f"k:{port}"):
            if name in there:
                return name
        return None

    def remove(self) -> None:
        """Remove everything; what can't be removed is left to a later sweep."""
        with contextlib.suppress(OSError):
            remove_tree(self.path)


class Instance:
    """The folder of this process, locked for as long as it lives."""

    def __init__(self, runtime_dir: Path) -> None:
        _own_folder(runtime_dir)
        self.name = secrets.token_hex(4)
        self.swept = False  # what dead ones left elsewhere than here
        self.path = runtime_dir / self.name
        guard = os.open(runtime_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)  # or another gateway sweeps our folder before it is locked
            self.dead = sweep(runtime_dir)
            self.path.mkdir(mode=0o700)
            self._fd = _try_lock(self.path)  # open, and so locked, until this process ends
        finally:
            os.close(guard)

    def kernel_folder(self) -> KernelFolder:
        """A new folder for one kernel. Raises ValueError when the path gets too long for a socket."""
        folder = KernelFolder(self.path / secrets.token_hex(5))
        if len(os.fsencode(folder.published)) > MAX_FOLDER:
            raise ValueError(
                f"runtime_dir is too long: the path of a kernel's sockets may have {MAX_FOLDER} bytes"
            )
        folder.path.mkdir(mode=0o700)
        return folder


def instance(runtime_dir: str) -> Instance:
    """The instance of this process for a runtime folder; the first call sweeps what dead ones left."""
    with _instances_lock:
        key = f"{os.getpid()}:{runtime_dir}"
        found = _instances.get(key)
        if found is None or not found.path.is_dir():
            found = _instances[key] = Instance(Path(runtime_dir))
        return found


def close_instances() -> None:
    """At exit: remove this process's folders."""
    with _instances_lock:
        for key, found in list(_instances.items()):
            if key.startswith(f"{os.getpid()}:"):
                with contextlib.suppress(OSError):
                    remove_tree(found.path)
                del _instances[key]


def sweep(runtime_dir: Path) -> list[str]:
    """Remove folders of processes that no longer live; their names."""
    dead = []
    for path in runtime_dir.iterdir():
        fd = None
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile by the gateway that it was of
            fd = _try_lock(path) if path.is_dir() and not path.is_symlink() else None
        if fd is not None:
            with contextlib.suppress(OSError):  # one that can't be removed must not stop every start
                remove_tree(path)
            os.close(fd)
            dead.append(path.name)
    return dead


def _try_lock(path: Path) -> int | None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno == errno.EWOULDBLOCK:
            return None
        raise
    return fd


def _own_folder(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError("runtime_dir must be a folder of the gateway's own user")
    path.chmod(0o700)
