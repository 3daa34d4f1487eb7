"""The gateway's side of the fork server: starts zygotes, asks them for kernels, notices when they die.

A zygote serves all kernels of one Python, one set of its options and one list of modules. It is started with
the first of them, and anew after it has died; kernels that it made live on.
"""

import contextlib
import fcntl
import json
import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from interpreter.gateway_extension.sandbox.bubblewrap import SandboxError, memory_file
from interpreter.gateway_extension.sandbox.environment import ALLOCATORS
from interpreter.gateway_extension.sandbox.fork_command import Origin
from interpreter.gateway_extension.sandbox.processes import cpu_seconds

MAIN = str(Path(__file__).with_name("zygote_main.py"))
START_TIMEOUT = 60.0  # the first one may have to build matplotlib's font list
FORK_TIMEOUT = 20.0
MAX_LOOKS = 5  # at one that gives no sign of life but works: then it counts as stuck, too
RETRY_AFTER = 30.0  # seconds: a zygote that could not start is not tried again before
UNKNOWN_EXIT = 121  # of a kernel that outlived its zygote: nobody can say
NS_GET_USERNS = 0xB701
NAMESPACES = ("cgroup", "ipc", "uts", "net", "pid", "mnt", "user")
SIGNAL_PROCESS_GROUP = 1 << 2  # of pidfd_send_signal, since Linux 6.9

_log = logging.getLogger(__name__)


class ZygoteError(SandboxError):
    """The fork server does not work here; kernels have to be started the slow way."""


class ZygoteEndedError(ZygoteError):
    """The zygote had ended before it was asked; another one can be."""


def _ended(handles: Sequence[int], timeout: float | None = None) -> list[int]:
    """Those pidfds whose process has ended; ``timeout`` in seconds, None: wait for one."""
    waiting = select.poll()  # select() knows no descriptors above 1023
    for handle in handles:
        waiting.register(handle, select.POLLIN)
    return [handle for handle, _ in waiting.poll(None if timeout is None else timeout * 1000)]


@dataclass(slots=True)
class ForkedKernel:
    """A kernel that a zygote made: a pid of this host, and its pidfd."""

    pid: int
    handle: int

    def is_alive(self) -> bool:
        """Whether it runs (then ``pid`` is its own)."""
        return self.handle >= 0 and not _ended([self.handle], 0)

    def signal_group(self, number: int) -> None:
        """Send a signal to it and the children in its process group."""
        if not self.is_alive():
            return
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(self.pid) != self.pid:  # it has not made its own group yet
                return
            try:
                signal.pidfd_send_signal(self.handle, number, None, SIGNAL_PROCESS_GROUP)
            except OSError:
                os.killpg(self.pid, number)

    def close(self) -> None:
        """Close the pidfd."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a fork has to go: the sandbox's first process, its plan, and descriptors for it."""

    init: int
    plan: dict[str, object]
    stderr: int
    code: int
    groups: Sequence[str]


class Zygote:
    """One zygote process; `fork` makes kernels. Ends with `stop` or with this process."""

    def __init__(self, origin: Origin, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self._owner = os.getpid()
        self._log_file = folder / "log"
        self._kernels: dict[int, int] = {}  # pidfd → pipe for the exit code
        self._stopped = self._told_ends = self._is_looked_at = False
        self._exit_code: int | None = None
        self._mourners: list[Callable[[int], None]] = []
        self.missing: tuple[str, ...] = ()
        """Modules that could not be imported, since they are not installed."""
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, open(self._log_file, "wb") as log:
                self._process = subprocess.Popen(  # noqa: S603
                    [
                        *(origin.python, *origin.options, MAIN, str(theirs.fileno())),
                        *(*origin.files, *origin.imports),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(folder),
                    pass_fds=[theirs.fileno()],
                    cwd=folder,
                    start_new_session=True,
                )
        except OSError:
            self._control.close()
            raise
        self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait for it to have imported everything. Raises `ZygoteError`."""
        self._control.settimeout(START_TIMEOUT)
        try:
            answer = self._control.recv(65536)
        except OSError as error:
            answer = b""
            _log.debug("no answer of the zygote", exc_info=error)
        if not answer:
            self._discard()
            text = self._log_file.read_text(errors="replace").strip().splitlines()
            raise ZygoteError(f"the fork server did not start: {text[-1] if text else 'it said nothing'}")
        content = json.loads(answer)
        if content["threads"] != 1:
            self._discard()
            raise ZygoteError(
                f"a module of fork_server_imports starts threads: {content['threads']} are there"
            )
        self.missing = tuple(content["missing"])
        threading.Thread(target=self._watch, name="zygote-watch", daemon=True).start()

    def _discard(self) -> None:
        """End it before it ever served."""
        self.stop()
        os.close(self._pidfd)
        self._control.close()

    def fork(self, target: Target) -> ForkedKernel:
        """Have a kernel made in a sandbox. Blocks; raises `ZygoteError`, `ZygoteEndedError`."""
        with contextlib.ExitStack() as stack:
            names, fds = _descriptors(target, stack)
            reply, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(reply)
            with theirs:
                try:
                    message = json.dumps({"fds": ["reply", *names]}).encode()
                    socket.send_fds(self._control, [message], [theirs.fileno(), *fds])
                except OSError as error:
                    raise ZygoteEndedError("the fork server has ended") from error
            reply.settimeout(FORK_TIMEOUT)
            try:
                answer, handles, _, _ = socket.recv_fds(reply, 65536, 1)
            except OSError as error:
                self._look_after()
                raise ZygoteError("the fork server did not answer in time") from error
        content = json.loads(answer) if answer else {"error": "the fork server has ended"}
        if "pid" not in content:
            raise ZygoteError(f"the kernel could not be forked: {content['error']}")
        self._remember(os.dup(handles[0]), os.dup(target.code))
        return ForkedKernel(int(content["pid"]), handles[0])

    def _look_after(self) -> None:
        with self._lock:
            if not self._is_looked_at:
                self._is_looked_at = True
                args = (FORK_TIMEOUT,)
                threading.Thread(
                    target=self._end_if_stuck, args=args, name="zygote-look", daemon=True
                ).start()

    def _end_if_stuck(self, seconds: float) -> None:
        """End it, so that the next kernel is served by another. One that is only slow, as the machine may be, stays."""
        with contextlib.suppress(OSError):  # it has ended
            if not self._gives_sign(seconds):
                self._process.kill()
        self._is_looked_at = False

    def _gives_sign(self, seconds: float) -> bool:
        """Whether it answers as long as it works."""
        sign, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with sign:
            with theirs:
                socket.send_fds(self._control, [json.dumps({"fds": ["reply"]}).encode()], [theirs.fileno()])
            sign.settimeout(seconds)
            for _ in range(MAX_LOOKS):
                before = cpu_seconds([self.pid])
                try:
                    sign.recv(64)
                except TimeoutError:
                    if not is_working(self.pid, before):
                        return False
                else:
                    return True
        return False

    def _remember(self, handle: int, code: int) -> None:
        with self._lock:
            self._kernels[handle] = code
            if self._told_ends:  # it ended just now
                threading.Thread(target=self._tell_ends, name="zygote-orphans", daemon=True).start()
                return
            # While it lives it tells itself how kernels ended.
            for ended in _ended(list(self._kernels), 0):
                os.close(self._kernels.pop(ended))
                os.close(ended)

    def _watch(self) -> None:
        _ended([self._pidfd])
        os.close(self._pidfd)
        code = self._process.wait()
        self._control.close()
        if not self._stopped:
            _log.warning("The fork server ended (%s); the next kernel starts a new one", code)
        with self._lock:
            self._exit_code, mourners = code, self._mourners
        for mourner in mourners:
            mourner(code)
        self._tell_ends()

    def call_at_end(self, mourner: Callable[[int], None]) -> None:
        """Have ``mourner`` called with its exit code, once it has ended: in a thread of ours, or at once."""
        with self._lock:
            if self._exit_code is None:
                self._mourners.append(mourner)
                return
        mourner(self._exit_code)

    def _tell_ends(self) -> None:
        """Do for its kernels what it did: say that one has ended, though not how."""
        while True:
            with self._lock:
                self._told_ends = not self._kernels
                handles = list(self._kernels)
            if not handles:
                return
            for handle in _ended(handles):
                with self._lock:
                    code = self._kernels.pop(handle)
                with contextlib.suppress(OSError):
                    os.write(code, b"%d\n" % UNKNOWN_EXIT)
                os.close(code)
                os.close(handle)

    def stop(self) -> None:
        """End it. Kernels that it made live on."""
        if os.getpid() != self._owner:  # a fork of the gateway that ends
            return
        self._stopped = True
        self._process.kill()
        self._process.wait()


def is_working(pid: int, before: float) -> bool:
    """Whether a process that had used so much processor time runs, waits for a processor or a disk, or has done so."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state in "RD" or cpu_seconds([pid]) > before


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of the gateway's own environment: every kernel could read it."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "MPLCONFIGDIR": str(folder),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's allocator would start a thread
        **ALLOCATORS,
    }


def _descriptors(target: Target, stack: contextlib.ExitStack) -> tuple[list[str], list[int]]:
    """Names and descriptors for the zygote; those opened here are closed with ``stack``."""
    found = {"stderr": target.stderr, "code": target.code}

    def opened(name: str, fd: int) -> None:
        stack.callback(os.close, fd)
        found[name] = fd

    opened("plan", memory_file("plan", json.dumps(target.plan).encode()))
    for name in NAMESPACES:
        path = f"/proc/{target.init}/ns/{name}"
        if os.stat(path).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            opened(name, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    owner = fcntl.ioctl(found["mnt"], NS_GET_USERNS)
    opened("user-outer", owner)
    if os.fstat(owner).st_ino == os.fstat(found["user"]).st_ino:
        del found["user"]
    names, fds = list(found), list(found.values())
    for path in target.groups:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        names.append("group")
        fds.append(fd)
    return names, fds


@dataclass
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    zygote: Zygote | None = None
    failed_at: float | None = None
    failure: str = ""


_slots: dict[tuple[Origin, str], _Slot] = {}
_slots_lock = threading.Lock()


def find_zygote(origin: Origin, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> Zygote:
    """The living zygote of this origin, started when there is none. Blocks; raises `ZygoteError`.

    ``folder`` is a private one of this gateway process, for the zygote's caches.
    """
    _check_program(origin.python)
    with _slots_lock:
        if (serving := _find_serving(origin, folder)) is not None:
            return serving
        slot = _slots.setdefault((origin, str(folder)), _Slot())
    with slot.lock:
        if slot.zygote is not None and slot.zygote.is_alive():
            return slot.zygote
        if slot.failed_at is not None and clock() - slot.failed_at < RETRY_AFTER:
            raise ZygoteError(slot.failure)
        try:
            zygote = Zygote(origin, folder)
            zygote.wait_until_ready()
        except (OSError, ZygoteError) as error:
            slot.failed_at, slot.failure = clock(), str(error)
            raise ZygoteError(str(error)) from error
        slot.zygote, slot.failed_at = zygote, None
        return zygote


def _find_serving(origin: Origin, folder: Path) -> Zygote | None:
    """A living zygote of this gateway, perhaps started for another kernelspec, that has what this one needs."""
    for (known, path), slot in _slots.items():
        fits = known == origin or known.serves(origin)
        if fits and Path(path).parent == folder.parent and slot.zygote is not None and slot.zygote.is_alive():
            return slot.zygote
    return None


def zygote_folder(instance: Path, origin: Origin) -> Path:
    """Where the zygote of this origin keeps its caches, in the folder of a gateway process."""
    return instance / f"z{hash(origin) & 0xFFFFFFFF:08x}"


def _check_program(python: str) -> None:
    """Every process has a way to the file that it was started from (/proc/self/exe), and a fork's lies
    outside of the sandbox, where nothing makes it read-only: its owner must not be the kernel's user."""
    mine = os.geteuid() != 0 and (os.stat(python).st_uid == os.geteuid() or os.access(python, os.W_OK))
    if mine:
        raise ZygoteError("the fork server needs a Python program that belongs to another user (say, root)")


def stop_zygotes() -> None:
    """At exit."""
    with _slots_lock:
        slots = list(_slots.values())
        _slots.clear()
    for slot in slots:
        if slot.zygote is not None:
            slot.zygote.stop()
