"""What a fork must not have in common with the process it comes from, nor with its siblings."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox_kit import FORK, Boxed, boxed, kernel_python, zygote_of

PLAIN = [kernel_python(), "-m", "ipykernel_launcher", "-f", "{connection_file}"]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Boxed, Boxed]]:
    """Two kernels of one zygote."""
    with (
        boxed(FORK, env={"TZ": "Asia/Tokyo"}, argv=PLAIN) as one,
        boxed(FORK, env={"TZ": "America/New_York"}, argv=PLAIN) as two,
    ):
        assert zygote_of(one) == zygote_of(two)
        yield one, two


@pytest.fixture(scope="module")
def cold() -> Iterator[Boxed]:
    with boxed({"fork_server": False}, env={"TZ": "Asia/Tokyo"}, argv=PLAIN) as kernel:
        kernel.run("import numpy, pandas, matplotlib.pyplot")
        yield kernel


def test_it_has_imported_what_the_zygote_has(pair: tuple[Boxed, Boxed]) -> None:
    code = "import sys; print([n for n in ('numpy', 'pandas', 'matplotlib.pyplot') if n not in sys.modules])"
    assert pair[0].run(code) == "[]\n"


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('random').random()",
        "__import__('numpy').random.rand()",
        "__import__('numpy').random.default_rng().random()",
        "__import__('numpy').random.get_state()[1].tolist()",
        "__import__('uuid').uuid4()",
        "__import__('uuid').uuid1()",
        "__import__('secrets').token_hex()",
        "__import__('ssl').RAND_bytes(8)",
        "__import__('tempfile').mktemp()",
        "bytes(__import__('multiprocessing').current_process().authkey)",
        "get_ipython().kernel.session.session",
        "__import__('jupyter_client').session.new_id()",
    ],
)
def test_what_is_random_differs_between_siblings(pair: tuple[Boxed, Boxed], expression: str) -> None:
    first, second = (kernel.run(f"print({expression})") for kernel in pair)
    assert first != second
    assert "Error" not in first


# What a kernel that was started has, a forked one has too. Name → code that prints it.
PORTRAIT = {
    "environment": "{k: v for k, v in sorted(os.environ.items()) if k not in ('LINES', 'COLUMNS')}",
    "arguments": "[re.sub(r'jks[^ ]*', '', a) for a in sys.argv]",
    "path": "sys.path",
    "flags": "sys.flags[:-2]",
    "folder": "os.getcwd()",
    "home": "(os.path.expanduser('~'), __import__('IPython').paths.get_ipython_dir(), __import__('site').getusersitepackages())",
    "jupyter": "__import__('jupyter_core.paths').paths.jupyter_config_path()",
    "temporary": "__import__('tempfile').gettempdir()",
    "matplotlib": "(mpl.get_configdir(), mpl.get_cachedir(), mpl.matplotlib_fname(), mpl.rcParams['backend'], mpl.rcParams['savefig.dpi'])",
    "signals": "{s.name: getattr(signal.getsignal(s), '__qualname__', str(signal.getsignal(s))) for s in signal.valid_signals() if isinstance(s, signal.Signals)}",
    "mask": "signal.pthread_sigmask(signal.SIG_BLOCK, ())",
    "groups": "(os.getgroups(), os.getuid(), os.getgid(), os.getresuid())",
    "nice": "os.nice(0)",
    "umask": "(os.umask(0o22), os.umask(0o22))[0]",
    "limits": "{n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith('RLIMIT_') and n != 'RLIMIT_DATA'}",
    "threads": "sorted(t.name.rpartition('-')[0] or t.name for t in threading.enumerate())",
    "main thread": "(threading.main_thread().ident == threading.get_ident(), threading.get_native_id() == os.getpid())",
    "event loop": "(type(asyncio.get_event_loop_policy()).__name__, type(asyncio.get_running_loop()).__name__)",
    "logging": "(logging.root.level, logging.root.handlers)",
    "warnings": "sorted(map(str, warnings.filters))",
    "garbage": "(gc.isenabled(), gc.get_threshold())",
    "main module": "sorted(n for n in vars(sys.modules['__main__']) if not n.startswith('_') and n not in ('numpy', 'pandas', 'matplotlib'))",
    "streams": "(type(sys.stdout).__name__, sys.stdout.encoding, type(sys.__stdout__).__name__, sys.__stderr__.encoding, sys.__stdin__.encoding)",
    "locale": "(__import__('locale').getlocale(), sys.getfilesystemencoding())",
    "time": "(time.tzname, time.localtime(0).tm_hour)",
    "dumpable": "ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)",
    "recursion": "(sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile())",
    "status": "[l for l in open('/proc/self/status') if l.startswith(('Cap', 'Seccomp', 'NoNew', 'Uid', 'Gid', 'Groups', 'Sig', 'Shd', 'Umask', 'Speculation_Store'))]",
    "namespaces": "sorted(os.listdir('/proc/self/ns'))",
}
PORTRAIT_IMPORTS = """
import asyncio, ctypes, gc, logging, os, re, resource, signal, sys, threading, time, warnings
import matplotlib as mpl
"""


@pytest.mark.parametrize("name", PORTRAIT)
def test_it_is_like_one_that_was_started(pair: tuple[Boxed, Boxed], cold: Boxed, name: str) -> None:
    forked, started = (
        kernel.run(f"{PORTRAIT_IMPORTS}\nprint({PORTRAIT[name]})") for kernel in (pair[0], cold)
    )
    assert forked == started
    assert "Error" not in forked


@pytest.mark.parametrize("forked", [True, False])
def test_what_the_gateway_ignores_a_kernel_does_not(forked: bool) -> None:
    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        with boxed({"fork_server": forked, "fork_server_imports": []}) as kernel:  # a zygote of its own
            code = f"import signal; print([signal.getsignal(n) == signal.SIG_IGN for n in {[*map(int, numbers)]}])"
            assert kernel.run(code) == "[False, False, False]\n"
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_no_descriptor_of_the_zygote_is_left(pair: tuple[Boxed, Boxed]) -> None:
    kernel = pair[0].provisioner._sandbox.forking.kernel.pid

    def open_in(pid: int) -> set[str]:
        folder = Path(f"/proc/{pid}/fd")
        return {os.readlink(path) for path in folder.iterdir()} - {"/dev/null"}

    def unnamed(links: set[str]) -> set[str]:
        return {link for link in links if link.startswith(("socket:", "pipe:", "/"))}

    assert unnamed(open_in(kernel)) & open_in(zygote_of(pair[0])) == set()
    assert not [
        link for link in open_in(kernel) if "pidfd" in link or "memfd" in link or "ns" in link.split(":")[0]
    ]


def test_what_came_with_the_fork_is_the_users_to_its_debugger(pair: tuple[Boxed, Boxed]) -> None:
    code = """
own = get_ipython().kernel._kernel_modules
print([any(f'/{name}/' in path for path in own) for name in ('ipykernel', 'tornado', 'pandas', 'matplotlib')])
"""
    assert pair[0].run(code) == "[True, True, False, False]\n"


def test_process_ids_are_its_own(pair: tuple[Boxed, Boxed]) -> None:
    kernel = pair[0]
    pid = int(kernel.run("import os; print(os.getpid())"))
    assert kernel.run("print(os.readlink('/proc/self'))") == f"{pid}\n"
    request = kernel.start_run("1")
    assert kernel.client is not None
    while (reply := kernel.client.get_shell_msg(timeout=10))["parent_header"].get("msg_id") != request:
        pass
    assert reply["header"]["msg_id"].split("_")[1] == str(pid)


def test_each_has_its_time_zone(pair: tuple[Boxed, Boxed]) -> None:
    code = "import pandas, datetime; print(datetime.datetime(2026, 1, 1).astimezone().utcoffset().total_seconds())"
    assert [kernel.run(code) for kernel in pair] == ["32400.0\n", "-18000.0\n"]


def test_figures_and_linear_algebra_work(pair: tuple[Boxed, Boxed]) -> None:
    kernel = pair[0]
    messages: list[dict[str, Any]] = []
    assert kernel.client is not None
    kernel.client.execute_interactive(
        "import matplotlib.pyplot as plt; plt.plot([1, 2])", output_hook=messages.append, timeout=30
    )
    assert any("image/png" in m["content"].get("data", {}) for m in messages)
    code = "import numpy as np; a = np.ones((900, 900)); print((a @ a)[0, 0], pd.DataFrame(a).sum().sum())"
    assert kernel.run(f"import pandas as pd; {code}") == "900.0 810000.0\n"


def test_a_processor_quota_is_the_number_of_threads() -> None:
    code = """
import ctypes, numpy
path = next(l.split()[-1] for l in open('/proc/self/maps') if 'openblas' in l)
print(ctypes.CDLL(path).scipy_openblas_get_num_threads64_(), os.environ['OMP_NUM_THREADS'])
"""
    with boxed(FORK | {"cpu_quota": 1.0}) as kernel:
        assert kernel.run(f"import os{code}") == "1 1\n"


def test_modules_of_the_session_are_found_before_others(pair: tuple[Boxed, Boxed]) -> None:
    code = "open('own_module.py', 'w').write('x = 5'); import own_module; print(own_module.x)"
    assert pair[0].run(code) == "5\n"


def test_processes_of_python_can_be_started(pair: tuple[Boxed, Boxed]) -> None:
    code = """
import concurrent.futures as f, multiprocessing as m
with f.ProcessPoolExecutor(2, mp_context=m.get_context('fork')) as pool: print(sum(pool.map(abs, range(-5, 5))))
"""
    assert pair[0].run(code) == "25\n"


def test_a_polite_end_runs_what_was_registered_for_it() -> None:
    with boxed(FORK) as kernel:
        kernel.run("import atexit; atexit.register(lambda: open('ended', 'w').close())")
        kernel.manager.shutdown_kernel()
        assert (kernel.workspace / "ended").exists()


def test_the_program_outside_can_not_be_changed_through_its_link(pair: tuple[Boxed, Boxed]) -> None:
    code = """
import os
exe = '/proc/self/exe'
for attempt in (
    lambda: os.chmod(exe, 0), lambda: os.utime(exe), lambda: os.truncate(exe, 0), lambda: os.open(exe, os.O_RDWR),
    lambda: os.link(exe, 'program', follow_symlinks=True), lambda: os.setxattr(exe, 'user.x', b'1'),
    lambda: os.open(f'{exe}/../..', os.O_RDONLY),
):
    try: attempt(); print('done')
    except OSError: pass
print('tried')
"""
    assert pair[0].run(code) == "tried\n"


def test_who_stops_or_floods_what_stands_for_the_kernel_only_ends_the_session() -> None:
    code = """
import os, signal
os.kill(2, signal.SIGSTOP)
try:
    fd = os.open('/proc/2/fd/0', os.O_WRONLY | os.O_NONBLOCK)
    while True: os.write(fd, bytes(4096))
except OSError: pass
os._exit(5)
"""
    with boxed(FORK) as kernel, boxed(FORK) as other:
        kernel.start_run(code)
        kernel.wait_for_death()
        with boxed(FORK) as next_one:  # the zygote waits for nobody
            assert next_one.run("print(1)") == other.run("print(1)") == "1\n"
