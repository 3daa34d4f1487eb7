"""Sessions of a service whose kernels are forked: asked for over REST, beside the pool of warm kernels."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from sandbox_kit import host_processes_with
from service_process import ServiceProcess, running_service

MIB = 1024**2
ON = "The fork server is on: kernels are forked from a process that has imported numpy, pandas, json."
IS_FORKED = "import sys; print('pandas' in sys.modules)"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """In Tokyo, which the fork server does not know, with one kernel that waits for its session."""
    names = {
        "FORK_SERVER": "1",
        "FORK_SERVER_IMPORTS": "numpy, pandas, json",
        "POOL_SIZE": "1",
        "INTERRUPT_GRACE": "4",
        "KERNEL_MEMORY_BYTES": str(512 * MIB),
    }
    running = ServiceProcess(
        tmp_path_factory.mktemp("forked"),
        {"TZ": "Asia/Tokyo"} | {f"INTERPRETER_{name}": value for name, value in names.items()},
    )
    running.start()
    yield running
    running.stop()


@pytest.fixture
def other(api: httpx.Client) -> Iterator[Callable[..., dict]]:
    """Runs code in a second session."""
    with session_of(api) as run:
        yield run


@contextlib.contextmanager
def session_of(api: httpx.Client) -> Iterator[Callable[..., dict]]:
    made = api.post("/v1/sessions", json={})
    assert made.status_code == 201, made.text
    url = f"/v1/sessions/{made.json()['id']}"

    def run(code: str, **fields: object) -> dict:
        ended: dict = api.post(f"{url}/runs", json={"code": code, **fields}).json()
        return ended

    yield run
    api.delete(url)


def zygotes(service: ServiceProcess) -> list[psutil.Process]:
    children = service.gateway.children()  # and not theirs: forks look the same at first
    return [process for process in children if any("zygote_main" in word for word in process.cmdline())]


def wait_until_on(api: httpx.Client) -> None:
    deadline = time.monotonic() + 60
    while api.get("/readyz").json()["checks"]["fork_server"] != {"ok": True, "detail": ON}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_start_waits_for_it_and_log_and_readiness_say_so(service: ServiceProcess) -> None:
    assert ON in service.log_path.read_text()
    with service.client() as api:
        assert api.get("/readyz").json()["checks"]["fork_server"] == {"ok": True, "detail": ON}


def test_sessions_are_forked_and_have_nothing_in_common(
    run: Callable[..., dict], other: Callable[..., dict]
) -> None:
    code = "import numpy, os; secret = numpy.random.rand(); print(secret, os.urandom(4).hex(), os.listdir())"
    for session in (run, other):
        assert session(IS_FORKED)["stdout"] == "True\n"
    first, second = (session(code)["stdout"].split() for session in (run, other))
    assert [mine for mine, theirs in zip(first, second, strict=True) if mine == theirs] == ["[]"]
    assert run("os.environ['TZ'] = 'UTC'; x = numpy.random.seed(1); 1")["result"] == "1"
    assert other("'x' in globals()")["result"] == "False"
    assert other("os.getpid() == int(os.readlink('/proc/self')), os.getppid()")["result"] == "(True, 0)"


def test_the_time_zone_is_the_services(run: Callable[..., dict]) -> None:
    code = "import time, datetime; (time.tzname[0], datetime.datetime(2026, 1, 1).astimezone().utcoffset().seconds)"
    assert run(code)["result"] == "('JST', 32400)"


def test_a_timeout_interrupts_and_keeps_what_was_there(run: Callable[..., dict]) -> None:
    assert run("x = 5")["status"] == "ok"
    ended = run("import time; print('begun'); time.sleep(60)", timeout=1)
    assert (ended["status"], ended["stdout"]) == ("timeout", "begun\n")
    assert run("x")["result"] == "5"


STUBBORN = "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass"


@pytest.mark.parametrize("end", ["timeout", "death", "restart"])
def test_the_next_kernel_is_forked_too(
    api: httpx.Client, session_id: str, run: Callable[..., dict], end: str
) -> None:
    run("x = 5")
    if end == "timeout":
        assert run(STUBBORN, timeout=1)["kernel_restarted"] is True
    elif end == "death":
        died = run("import os; os._exit(7)")
        assert died["status"] == "kernel_died"
        assert "exit code 7" in died["error"]["evalue"]
    else:
        assert api.post(f"/v1/sessions/{session_id}/restart", json={}).status_code == 200
    assert run(f"print('x' in globals()); {IS_FORKED}")["stdout"] == "False\nTrue\n"


def test_memory_is_limited_beyond_what_the_fork_server_had(run: Callable[..., dict]) -> None:
    refused = run("import numpy; numpy.ones(600 << 17)")
    assert refused["error"]["ename"] in ("MemoryError", "_ArrayMemoryError")
    assert run("numpy.ones(200 << 17).sum() > 0")["status"] == "ok"
    died = run("import mmap\nm = mmap.mmap(-1, 700 << 20)\nfor at in range(0, len(m), 4096): m[at] = 1")
    assert died["status"] == "kernel_died"
    assert "out of memory (limit 512 MiB)" in died["error"]["evalue"]


def test_a_deleted_session_leaves_no_process(api: httpx.Client) -> None:
    mark = f"86399.{os.getpid()}"
    code = f"import subprocess; subprocess.Popen(['sh', '-c', 'trap \"\" TERM INT HUP; sleep {mark} & sleep {mark}'], start_new_session=True)"
    with session_of(api) as run:
        assert run(code)["status"] == "ok"
        assert host_processes_with(mark)
    assert not host_processes_with(mark)


def test_when_it_is_killed_sessions_go_on_and_it_is_started_again(
    service: ServiceProcess, api: httpx.Client, run: Callable[..., dict]
) -> None:
    wait_until_on(api)
    run("x = 'kept'")
    [zygote] = zygotes(service)
    os.kill(zygote.pid, signal.SIGKILL)
    with session_of(api) as meanwhile:
        assert meanwhile("1 + 1")["result"] == "2"
    assert run("x")["result"] == "'kept'"
    assert run("import time; time.sleep(60)", timeout=0.3)["status"] == "timeout"
    wait_until_on(api)
    [successor] = zygotes(service)
    assert successor.pid != zygote.pid
    assert [
        line
        for line in service.log_path.read_text().splitlines()
        if line.startswith("[W ") and "is being started again: it was killed by signal 9" in line
    ]
    assert run("x")["result"] == "'kept'"
    # The pool's kernel may have been started meanwhile, without it; all that come after are forked.
    with session_of(api), session_of(api) as one, session_of(api) as two:
        assert [session(IS_FORKED)["stdout"] for session in (one, two)] == ["True\n"] * 2


def test_without_a_sandbox_there_is_none_and_readiness_says_so(tmp_path: Path) -> None:
    with running_service(tmp_path, fork_server="1", sandbox="off") as service, service.client() as api:
        check = api.get("/readyz").json()["checks"]["fork_server"]
        assert check["ok"] is True
        assert "kernels run without a sandbox" in check["detail"]
        assert check["detail"] in service.log_path.read_text()
        assert not zygotes(service)
