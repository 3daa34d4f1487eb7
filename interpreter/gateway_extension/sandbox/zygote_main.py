"""The zygote: a process of the kernels' Python that has imported what kernels need, and forks into them.

``python zygote_main.py FD MODULES… -- MODULES…``; FD is a SOCK_SEQPACKET socket of the gateway, whose end is
the zygote's. The modules before ``--`` are the kernel's own; an absolute path is the file of one. Each message asks for one
kernel: JSON with the names of the descriptors that come with it. The answer goes to the descriptor ``reply``: JSON
``{"pid": …}`` with a pidfd, or ``{"error": …}``. When a kernel ends, its exit code (128 + the number of a signal) is
written to the descriptor ``code``. A message with ``reply`` alone asks for a sign of life: ``{}``.

It has one thread, no ZeroMQ context, no event loop, no file of a session, and an environment without
anything of the gateway. Standard library only, and nothing of this package but ``forked.py``.
"""

import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
from typing import Any

if not sys.flags.safe_path:
    sys.path.pop(0)  # this script's folder
MAX_FDS = 64
CAP_SETGID, CAP_SETUID = 6, 7
PR_SET_CHILD_SUBREAPER = 36
MADV_COLLAPSE = 25
HUGE_PAGE = 2 * 1024 * 1024
END_OF_KERNEL = "--"
RESERVED = 48 * 1024 * 1024  # bytes; pandas and matplotlib take some 40 MB of small objects
SMALL_OBJECT = 448  # bytes; from 512 on objects are no small ones
_libc = ctypes.CDLL(None, use_errno=True)


def load_forked() -> Any:
    """The module beside this file."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forked.py")
    module = types.ModuleType("forked")
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), "forked.py", "exec"), module.__dict__)  # noqa: S102
    return module


class Zygote:
    """Serves the gateway until its socket ends."""

    def __init__(self, control: socket.socket, forked: Any) -> None:
        self._control = control
        self._forked = forked
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._forks: dict[int, tuple[int, int, int]] = {}  # report pipe → pid, reply, code
        self._kernels: dict[int, tuple[int, int]] = {}  # pidfd → pid, code

    def serve(self) -> Any:
        """None when the gateway has gone; in a new kernel: its plan."""
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._kernels:
                    self._reap(fd)
                elif fd in self._forks:
                    self._adopt(fd)
                else:
                    message, fds, _, _ = socket.recv_fds(self._control, 65536, MAX_FDS)
                    if not message:
                        return None
                    names = json.loads(message)["fds"]
                    if names == ["reply"]:
                        self._answer(fds[0], {}, [])
                    elif (plan := self._fork(names, fds)) is not None:
                        return plan

    def _fork(self, names: list[str], fds: list[int]) -> Any:
        named = {name: fd for name, fd in zip(names, fds, strict=True) if name != "group"}
        groups = [fd for name, fd in zip(names, fds, strict=True) if name == "group"]
        reply, code = named.pop("reply"), named.pop("code")
        read, write = os.pipe()
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:  # what another one was doing would be broken for good in the fork
            os.write(write, f"!the zygote has {threads} threads".encode())
        pid = os.fork() if threads == 1 else -1
        if pid == 0:
            try:
                return self._forked.enter(named, groups, write)
            except BaseException as error:  # noqa: BLE001  (a fork must never run the zygote's loop)
                os.write(write, f"!{type(error).__name__}: {error}".encode())
                os._exit(1)
        for fd in (write, *named.values(), *groups):
            os.close(fd)
        self._forks[read] = (pid, reply, code)
        self._poll.register(read, select.POLLIN)
        return None

    def _adopt(self, read: int) -> None:
        """The fork has made the kernel and ended: being its nearest reaper, we are its parent now."""
        text = os.read(read, 4096).decode(errors="replace")
        self._poll.unregister(read)
        os.close(read)
        fork, reply, code = self._forks.pop(read)
        if fork > 0:
            os.waitpid(fork, 0)
        if text.isdigit():
            pid = int(text)
            handle = os.pidfd_open(pid)
            self._kernels[handle] = (pid, code)
            self._poll.register(handle, select.POLLIN)
            self._answer(reply, {"pid": pid}, [handle])
        else:
            os.close(code)
            self._answer(reply, {"error": text[1:] or "the fork ended"}, [])

    def _answer(self, reply: int, content: dict[str, Any], fds: list[int]) -> None:
        # perhaps nobody waits any more
        with socket.socket(fileno=reply) as end, contextlib.suppress(OSError):
            socket.send_fds(end, [json.dumps(content).encode()], fds)

    def _reap(self, handle: int) -> None:
        pid, code = self._kernels.pop(handle)
        self._poll.unregister(handle)
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        number = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):  # the sandbox may have ended before
            os.write(code, b"%d\n" % (number if number >= 0 else 128 - number))
        os.close(code)


def reserve_memory() -> list[Any]:
    """Have Python get its memory for small objects in one piece, between no libraries, so that huge pages fit in.

    What modules do not need of it goes back when the returned list does.
    """
    objects: list[Any] = [None] * (RESERVED // SMALL_OBJECT)
    for number in range(len(objects)):
        objects[number] = bytes(SMALL_OBJECT - sys.getsizeof(b""))
    return objects[:: 128 * 1024 // SMALL_OBJECT]


def prepare(modules: list[str], forked: Any) -> list[str]:
    """Import the modules; those names that are not installed here. As root: with hardly any right."""
    if os.geteuid() == 0:
        forked.set_capabilities(1 << CAP_SETGID | 1 << CAP_SETUID)
    forked.set_no_new_privileges()
    gc.disable()
    reserve = reserve_memory()
    missing = []
    for name in modules:
        if name == END_OF_KERNEL:
            forked.remember_kernel_modules()
            continue
        try:
            load(name)
        except ImportError:
            if not os.path.isabs(name):  # nobody is told of paths; the kernel will say what is wrong with it
                missing.append(name)
    forked.find_thread_setters()
    if os.fork() == 0:  # numpy's threads end at a fork and start again when they are needed
        os._exit(0)
    os.wait()
    reserve.clear()
    gc.collect()
    gc.freeze()
    _libc.malloc_trim(0)
    collapse_memory()
    return missing


def load(name: str) -> None:
    """Import a module by its name or the path of its file. Raises ImportError."""
    if not os.path.isabs(name):
        importlib.import_module(name)
        return
    stem = os.path.splitext(os.path.basename(name))[0]
    spec = importlib.util.spec_from_file_location(stem, name)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    sys.modules[stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def collapse_memory() -> None:
    """Gather our data in huge pages as far as it goes: a fork copies a line per page, and so hundreds less.

    What a kernel changes is still copied for it in small pages. Systems before Linux 6.1, or with other
    sizes of pages, refuse; then forks only take longer.
    """
    with open("/proc/self/maps") if os.path.exists("/proc/self/maps") else open(os.devnull) as maps:
        lines = [line.split() for line in maps]
    for addresses, rights, *_, name in lines:  # of unnamed ones the last word is the inode, 0
        if rights.startswith("rw-p") and name in ("0", "[heap]"):
            start, end = (int(text, 16) for text in addresses.split("-"))
            for at in range(-(-start // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
                _libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(HUGE_PAGE), MADV_COLLAPSE)


def main() -> None:
    """Be the zygote; in a fork of it: be the kernel."""
    control = socket.socket(fileno=int(sys.argv[1]))
    forked = load_forked()
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # those every Python ignores
        if signal.getsignal(number) == signal.SIG_IGN:  # as the gateway does, under nohup, say
            signal.signal(number, signal.SIG_DFL)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = dict(os.environ)
    missing = prepare(sys.argv[2:], forked)
    set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    ready = {"missing": missing, "threads": len(os.listdir("/proc/self/task"))}
    control.send(json.dumps(ready).encode())
    plan = Zygote(control, forked).serve()
    if plan is None:
        os._exit(0)
    control.detach()
    forked.renew(plan, set_by_imports)
    sys.modules["__main__"] = types.ModuleType("__main__")
    # what "python -m" itself calls
    runpy._run_module_as_main(plan["module"])  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
