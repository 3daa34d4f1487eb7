"""What a fork of the zygote does to become a kernel: enter its sandbox, give up all rights, forget the zygote.

Loaded by ``zygote_main.py`` in the kernels' own Python, so: standard library only, and nothing of this package.
`enter` must run in a process with a single thread. Until the new process has given up its rights no code of
a session runs, and nothing of a session is ever in the zygote: the plan is read after the fork.
"""

import base64
import contextlib
import ctypes
import gc
import json
import locale
import os
import resource
import signal
import site
import sys
import time
from typing import Any

CLONE_NEWUSER = 0x10000000
# The user namespace that owns the others comes first, its own (nested) one last: only from the outer one
# there is the right to enter the others. The control group namespace needs the groups to be joined before.
NAMESPACES = (
    ("user-outer", CLONE_NEWUSER),
    ("cgroup", 0x02000000),
    ("ipc", 0x08000000),
    ("uts", 0x04000000),
    ("net", 0x40000000),
    ("pid", 0x20000000),
    ("mnt", 0x00020000),
    ("user", CLONE_NEWUSER),
)
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 4, 22, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
CAPABILITIES = 64
BARE_DATA = 32 * 1024 * 1024  # of a process that has imported ipykernel and nothing else

_libc = ctypes.CDLL(None, use_errno=True)
_thread_setters: list[Any] = []


class _Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, *args: int) -> int:
    padded = [ctypes.c_ulong(value) for value in (*args, 0, 0, 0, 0)[:4]]
    return int(_libc.prctl(option, *padded))


def set_capabilities(kept: int) -> None:
    """Have the capabilities of the bit mask and no others, and never get another one."""
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for number in range(CAPABILITIES):
        if not kept >> number & 1:
            _prctl(PR_CAPBSET_DROP, number)  # fails for numbers that this kernel doesn't know
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    _check(_libc.capset(header, data), "capset")


def set_no_new_privileges() -> None:
    """Nothing that is executed from now on gets more rights than we have."""
    _check(_prctl(PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")


def close_all_but(kept: set[int]) -> None:
    """Close every descriptor that is not in ``kept``."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # one of them was for listing them
                os.close(int(name))


def read_plan(fd: int) -> Any:
    """The plan (JSON) from a memory file."""
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(fd, "rb") as file:
        return json.load(file)


def enter(fds: dict[str, int], groups: list[int], report: int) -> Any:
    """Become a process of the sandbox; in that process: the plan. Its pid is written to ``report``.

    The process that called ends. Raises OSError when the sandbox can't be entered.
    """
    close_all_but({0, 1, 2, report, *fds.values(), *groups})
    plan = read_plan(fds["plan"])
    for group in groups:
        os.write(group, b"0")
    os.nice(plan["nice"])
    _go_first_without_memory(plan["oom_score"])
    inherited = _inherited_data()
    _set_limits([[k, v + inherited if k == resource.RLIMIT_DATA else v] for k, v in plan["rlimits"]])
    if plan["uid"] is not None:
        os.setgroups([])
        os.setresgid(plan["uid"], plan["uid"], plan["uid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    for name, kind in NAMESPACES:
        if name in fds:
            _check(_libc.setns(fds[name], kind), f"enter the {name} namespace")
    _set_limits(plan["rlimits_inside"])
    pid = os.fork()  # a process id namespace is for children
    if pid != 0:
        os.write(report, str(pid).encode())
        os._exit(0)
    os.setsid()
    stderr = fds["stderr"]
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (stderr, 1), (stderr, 2)):
        os.dup2(source, target)
    os.closerange(3, max(report, *fds.values(), *groups) + 1)  # there may be no /proc here
    _give_up_rights(base64.b64decode(plan["seccomp"]))
    return plan


def _go_first_without_memory(score: int) -> None:
    """Let the system end us by so much (of 1000) sooner than the gateway, when the host has no memory left."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        score = min(int(file.read()) + score, 1000)
        file.seek(0)
        file.write(str(score))


def _inherited_data() -> int:
    """Bytes of data that are the zygote's, and so nothing that the session may be refused memory for."""
    with open("/proc/self/status") as status:
        size = next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:")), 0)
    return max(0, size - BARE_DATA)


def _set_limits(limits: list[list[int]]) -> None:
    for kind, value in limits:
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


def _give_up_rights(filter_: bytes) -> None:
    set_capabilities(0)
    set_no_new_privileges()
    _check(_prctl(PR_SET_DUMPABLE, 1), "dumpable")  # as after an exec: /proc/self belongs to the process
    program = _Program(len(filter_) // 8, filter_)
    _check(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


# ---- what a process that has been started afresh would have


def renew(plan: Any, set_by_imports: dict[str, str]) -> None:
    """Replace all that the zygote had and every kernel must have of its own.

    ``set_by_imports``: variables that modules set when they were imported.
    """
    os.umask(0o022)
    os.chdir(plan["cwd"])
    _renew_environment({**set_by_imports, **plan["env"]})
    _renew_arguments(plan["argv"], plan["command"])
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _renew_modules(plan)
    gc.enable()


def _renew_environment(env: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "")  # as every Python does when it starts
    site.USER_SITE = site.USER_BASE = None  # found again when somebody asks
    sys.path[:0] = [entry for entry in env.get("PYTHONPATH", "").split(":") if entry]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())  # as "python -m" does


def _renew_arguments(argv: list[str], command: list[str]) -> None:
    """In process lists too: the zygote's arguments and environment are where the kernel's belong."""
    sys.argv = argv
    sys.orig_argv = command
    with open("/proc/self/stat") if os.path.exists("/proc/self/stat") else open(os.devnull) as stat:
        fields = stat.read().rpartition(")")[2].split()
    if len(fields) < 49:
        return
    arg_start, arg_end, env_start, env_end = (int(value) for value in fields[45:49])
    text = b"\0".join(os.fsencode(arg) for arg in command)[: arg_end - arg_start - 1]
    ctypes.memset(arg_start, 0, arg_end - arg_start)
    ctypes.memmove(arg_start, text, len(text))
    ctypes.memset(env_start, 0, env_end - env_start)


def _renew_modules(plan: Any) -> None:
    """Modules that keep what differs from process to process. `random` renews itself after a fork."""
    modules = sys.modules
    if "numpy" in modules:
        modules["numpy"].random.seed()
        _set_threads(plan["threads"])
    if "multiprocessing.process" in modules:
        process: Any = modules["multiprocessing.process"]
        process.current_process().authkey = os.urandom(32)
    if "tempfile" in modules:
        tempfile: Any = modules["tempfile"]
        tempfile.tempdir = tempfile._name_sequence = None
    if "uuid" in modules:
        uuid: Any = modules["uuid"]
        uuid._last_timestamp = None
    if "matplotlib" in modules:
        _renew_matplotlib(modules["matplotlib"])


def _renew_matplotlib(matplotlib: Any) -> None:
    for name in ("get_configdir", "get_cachedir"):  # each remembers its first answer in a closure
        function = getattr(matplotlib, name, None)
        variables = getattr(getattr(function, "__code__", None), "co_freevars", ())
        for variable, cell in zip(variables, getattr(function, "__closure__", None) or (), strict=False):
            if variable == "called":
                cell.cell_contents = False
    if os.environ.get("MPLBACKEND"):
        matplotlib.rcParams["backend"] = os.environ["MPLBACKEND"]


class _System:
    """What ipykernel takes for `sys`; ``modules`` are other ones."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self.modules = modules

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


class _File:
    def __init__(self, path: str) -> None:
        self.__file__ = path


def remember_kernel_modules() -> None:
    """Let the modules that are here now be those of the kernel itself, which its debugger steps over.

    ipykernel takes all there are when it starts. In a fork pandas would be one of them, and to look at each of
    some thousand modules copies a third of the pages that a kernel's start changes.
    """
    ipkernel: Any = sys.modules.get("ipykernel.ipkernel")
    if getattr(ipkernel, "sys", None) is sys:
        paths = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
        ipkernel.sys = _System({name: _File(path) for name, path in paths.items() if path})


def find_thread_setters() -> None:
    """Remember how to tell numpy's linear algebra its number of threads.

    In the zygote, since the sandbox may show the library at another path than the one it was loaded from.
    """
    with open("/proc/self/maps") if os.path.exists("/proc/self/maps") else open(os.devnull) as maps:
        paths = {line.split()[-1] for line in maps if "openblas" in line}
    for path in paths:
        library = ctypes.CDLL(path)
        for name in ("openblas_set_num_threads", "scipy_openblas_set_num_threads64_"):
            function = getattr(library, name, None)
            if function is not None:
                _thread_setters.append(function)


def _set_threads(count: int | None) -> None:
    """Let numpy's linear algebra use so many threads, as its environment variable would have."""
    if count is not None:
        for function in _thread_setters:
            function(ctypes.c_int(count))
