"""What a run answers, one snippet per claim, on real kernels."""

import json
from collections.abc import Callable, Iterator

import httpx
import nbformat
import pytest
from behaviours_data import CASES, Case
from service_process import ServiceProcess
from watching import eventually

Run = Callable[..., dict]

MARGIN_MS = 20_000  # what a busy machine may add to any bound; less than the code would take
BOUND_MS = 1000 + 5000 + MARGIN_MS  # timeout, grace


@pytest.fixture
def session_id(shared_session_id: str) -> str:
    return shared_session_id


@pytest.fixture(scope="module")
def shared(service: ServiceProcess) -> Iterator[Run]:
    """Execute in one session for all snippets that leave the kernel as they found it."""
    with service.client() as client:
        session_id = client.post("/v1/sessions", json={}).json()["id"]

        def execute(code: str) -> dict:
            answer = client.post(f"/v1/sessions/{session_id}/runs", json={"code": code, "timeout": 30})
            assert answer.status_code == 200, answer.text
            return json.loads(answer.content, parse_constant=_no_constant)

        yield execute
        notebook = nbformat.reads(client.get(f"/v1/notebooks/{session_id}").text, as_version=4)
        nbformat.validate(notebook)
        assert client.get(f"/v1/notebooks/{session_id}/verify").json()["valid"] is True
        client.delete(f"/v1/sessions/{session_id}")


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_snippet(shared: Run, case: Case) -> None:
    run = shared(case.code)
    shown = {**run, "outputs": str(run["outputs"])[:1000]}
    for field, expected in case.fields.items():
        assert run[field] == expected, (field, shown)
    assert case.claim(run), shown
    assert run["code"] == case.code
    assert run["recorded"] is True


# Every run ends, on time

STUBBORN = "while True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass"
ENDING: dict[str, tuple[str, bool]] = {  # name: code, whether the kernel must be another one afterwards
    "sleep": ("import time\ntime.sleep(60)", False),
    "busy": ("while True: pass", False),
    "await": ("import asyncio\nawait asyncio.sleep(60)", False),
    "await of a future": ("import asyncio\nawait asyncio.get_running_loop().create_future()", False),
    "await that swallows": (
        "import asyncio\nfor _ in range(40):\n    try:\n        await asyncio.sleep(60)\n    except BaseException:\n        pass",
        True,
    ),
    "swallowed": (f"import time\n{STUBBORN}", True),
    "ignored": ("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)", True),
    # The pause: `flush` returns before the kernel's thread has sent, and a C loop lets no thread work.
    "C loop": ("import time\ntime.sleep(0.1)\nsum(range(10**11))", True),
    "regex": ("import re\nre.match('(a+)+b', 'a' * 60)", False),
    "shell": ("!sleep 61", False),
    "shell tree": ("!sh -c 'sleep 62 & sleep 62 & wait'", False),
    "bash that traps": ("%%bash\ntrap '' INT TERM\nwhile true; do sleep 1; done", None),
    "shell that waits for input": ("!read x", None),
    "subprocess": ("import subprocess\nsubprocess.run('sleep 63; sleep 63', shell=True)", False),
    "join of a thread": (
        "import threading\nt = threading.Thread(target=threading.Event().wait, daemon=True); t.start(); t.join()",
        False,
    ),
    "lock": ("import threading\nl = threading.Lock(); l.acquire(); l.acquire()", False),
    "recursion without an end": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef f():\n    while True:\n        try: f()\n        except BaseException: pass\nf()",
        None,
    ),
    "print loop": ("while True: print('x', flush=True)", False),
}


@pytest.mark.parametrize("name", ENDING)
def test_run_ends_within_timeout_and_grace(run: Run, name: str) -> None:
    code, restarted = ENDING[name]
    run("kept = 1")
    ended = run(f"print('begun', flush=True)\n{code}" if code[0] != "%" else code, timeout=1)
    if name == "recursion without an end" and ended["status"] == "kernel_died":
        assert ended["kernel_restarted"] is True  # it used up the C stack before the timeout
    else:
        assert ended["status"] == "timeout"
        assert any("1 second " in notice for notice in ended["notices"])
    assert ended["duration_ms"] < BOUND_MS
    if code[0] != "%":
        assert ended["stdout"].startswith("begun")
    if restarted is not None:
        assert ended["kernel_restarted"] is restarted
    after = run("kept")
    if ended["kernel_restarted"]:
        assert (after["error"]["ename"], after["kernel_restarted"]) == ("NameError", True)
        assert any("restarted" in notice for notice in after["notices"])
    else:
        assert (after["result"], after["kernel_restarted"]) == ("1", False)
    assert run("2")["kernel_restarted"] is False


SLEEPERS = (
    "import psutil\n"
    "sorted(p.info['cmdline'][-1] for p in psutil.process_iter(['cmdline']) if 'sleep' in (p.info['cmdline'] or []))"
)


@pytest.mark.parametrize(
    "code",
    [
        "!sh -c 'sleep 4242 & sleep 4242'",
        "!sleep 4242 & sleep 4242",
        "import subprocess\nsubprocess.run('sleep 4242 & sleep 4242', shell=True)",
        "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '4242'])\ntime.sleep(60)",
        "import os, time\nos.system('(setsid sleep 4242 &) &')\ntime.sleep(60)",
        "%%capture\nimport os\nos.system('sleep 4242 &')\nget_ipython().run_cell('!sleep 4242')",
        "%%bash\nsleep 4242 & sleep 4242",
        "%%bash\ntrap '' INT TERM\nsleep 4242 & sleep 4242",
        "get_ipython().run_cell('%%bash --bg\\nsleep 4242')\n!sleep 4242",
    ],
)
def test_timeout_ends_every_process_that_the_run_has_started(run: Run, code: str) -> None:
    ended = run(code, timeout=1)
    assert (ended["status"], ended["kernel_restarted"]) == ("timeout", False)
    assert ended["duration_ms"] < BOUND_MS
    assert run(SLEEPERS)["result"] == "[]"


def test_timeout_spares_what_an_earlier_run_has_started_and_what_that_starts(own_run: Run) -> None:
    # In sessions of their own, as an interrupt goes to all processes of the kernel's group.
    own_run(
        "import subprocess\n"
        "def start(*command):\n"
        "    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)\n"
        "server = start('sh', '-c', 'read line; sleep 4244; true')\n"
        "other = start('sleep', '4243')"
    )
    ended = own_run("server.stdin.write(b'go\\n'); server.stdin.flush()\n!sleep 4242", timeout=1)
    assert ended["status"] == "timeout"
    assert own_run(SLEEPERS)["result"] == "['4243', '4244']"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os\nos._exit(0)", "0"),
        ("import os\nos.abort()", "SIGABRT"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nimport time; time.sleep(30)", "SIGTERM"),
        (
            "import sys\nsys.setrecursionlimit(10**9)\nf = lambda: [f()]\nimport ctypes\nctypes.string_at(1)",
            "SIGSEGV",
        ),
        ("quit()", "quit()"),
        (
            "import threading, os\nthreading.Thread(target=lambda: os._exit(9)).start()\nimport time; time.sleep(30)",
            "9",
        ),
        ("get_ipython().kernel.do_shutdown(False)\nimport os; os._exit(5)", "5"),
    ],
    ids=["exit 0", "abort", "SIGTERM", "segfault", "quit", "thread exits", "shutdown and exit"],
)
def test_kernel_death_is_told_within_seconds(run: Run, code: str, cause: str) -> None:
    ended = run(f"print('begun', flush=True)\n{code}", timeout=20)
    assert (ended["status"], ended["kernel_restarted"]) == ("kernel_died", True)
    assert ended["stdout"] == "begun\n"
    assert cause in ended["error"]["evalue"], ended["error"]
    assert ended["duration_ms"] < MARGIN_MS
    after = run("1 + 1")
    assert (after["status"], after["result"], after["kernel_restarted"]) == ("ok", "2", True)


def test_forked_copy_of_the_kernel_does_not_end_the_run(own_run: Run) -> None:
    code = "import os, time\npid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)\nprint('parent')\ntime.sleep(0.3)\n'whole'"
    ended = own_run(code)
    assert (ended["status"], ended["stdout"], ended["result"]) == ("ok", "parent\n", "'whole'")
    # The child returns from the cell too, as a second kernel on the same sockets.
    ended = own_run("import os, time\nif os.fork():\n    time.sleep(1)\n    print('parent')", timeout=10)
    assert (ended["status"], ended["stdout"]) == ("ok", "parent\n")
    assert own_run("1 + 1")["result"] == "2"


def test_late_output_of_a_task_is_marked(api: httpx.Client, session_id: str, run: Run) -> None:
    first = run(
        "import asyncio\nasync def late():\n    await go.wait()\n    print('late')\n"
        "go = asyncio.Event()\ntask = asyncio.ensure_future(late())\nprint('now')"
    )
    second = run("go.set()\nawait task\nprint('mine')")
    assert second["stdout"] == "mine\n"
    assert run("1")["stdout"] == ""
    outputs = api.get(f"/v1/runs/{first['id']}").json()["outputs"]
    assert [output["text"] for output in outputs] == ["now\n", "late\n"]

    def cell() -> dict:
        cells = api.get(f"/v1/notebooks/{session_id}").json()["cells"]
        return next(one for one in cells if one["metadata"]["interpreter"]["run_id"] == first["id"])

    assert eventually(lambda: len(cell()["outputs"]) == 2)  # late output is recorded soon, not at once
    assert cell()["metadata"]["interpreter"]["late_outputs"] == [1]
    assert api.get(f"/v1/notebooks/{session_id}/verify").json()["valid"] is True


def test_runs_queue_in_order(api: httpx.Client, session_id: str) -> None:
    path = f"/v1/sessions/{session_id}/runs"
    api.post(path, json={"code": "seen = []"})
    codes = [
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)",
        *(f"seen.append({i})" for i in range(10)),
    ]
    made = [api.post(path, json={"code": code, "background": True}).json() for code in codes]
    api.put(f"/v1/sessions/{session_id}/files/go", content=b"").raise_for_status()
    assert api.post(path, json={"code": "seen"}).json()["result"] == str(list(range(10)))
    assert {run["status"] for run in made[1:]} == {"queued"}
    assert all(api.get(f"/v1/runs/{run['id']}").json()["status"] == "ok" for run in made)


def test_a_failed_run_does_not_abort_what_waits(api: httpx.Client, session_id: str) -> None:
    path = f"/v1/sessions/{session_id}/runs"
    failing = api.post(path, json={"code": "import time; time.sleep(0.3); 1/0", "background": True}).json()
    assert api.post(path, json={"code": "'went on'"}).json()["result"] == "'went on'"
    assert api.get(f"/v1/runs/{failing['id']}").json()["status"] == "error"


def test_same_key_runs_once(api: httpx.Client, session_id: str) -> None:
    path, headers = f"/v1/sessions/{session_id}/runs", {"Idempotency-Key": "k1"}
    api.post(path, json={"code": "n = 0"})
    first = api.post(path, json={"code": "n += 1; n"}, headers=headers).json()
    again = api.post(path, json={"code": "n += 1; n"}, headers=headers).json()
    assert (first["id"], first["result"]) == (again["id"], again["result"])
    assert api.post(path, json={"code": "other"}, headers=headers).status_code == 409
    assert api.post(path, json={"code": "n"}).json()["result"] == "1"


def test_client_that_leaves_interrupts_its_run(
    service: ServiceProcess, api: httpx.Client, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/runs"
    api.post(path, json={"code": "kept = 1"})
    with service.client() as leaving, pytest.raises(httpx.ReadTimeout):
        leaving.post(
            path, json={"code": "print('begun', flush=True)\nimport time; time.sleep(60)"}, timeout=2
        )
    assert api.post(path, json={"code": "kept"}).json()["result"] == "1"
    left = api.get(path).json()["data"][1]
    assert (left["status"], left["stdout"]) == ("cancelled", "begun\n")
    assert left["duration_ms"] < BOUND_MS


def test_stream_resumes_after_an_event(api: httpx.Client, session_id: str) -> None:
    code = "for i in range(5): display(i)"
    api.post(f"/v1/sessions/{session_id}/runs", json={"code": ""})  # whatever happened to the kernel before
    made = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code}).json()

    def ids(**query: int) -> list[int]:
        with api.stream("GET", f"/v1/runs/{made['id']}/events", params=query) as stream:
            return [int(line[3:]) for line in stream.iter_lines() if line.startswith("id:")]

    every = ids()
    assert every == sorted(set(every))
    assert len(every) == 7
    assert ids(after=every[2]) == every[3:]
    with api.stream(
        "GET", f"/v1/runs/{made['id']}/events", headers={"Last-Event-ID": str(every[4])}
    ) as stream:
        assert [int(line[3:]) for line in stream.iter_lines() if line.startswith("id:")] == every[5:]


def test_what_a_long_text_overwrites_itself_is_not_lost(run: Run) -> None:
    ended = run("print('ab\\r' * 2_000_000)")
    assert (ended["stdout"], ended["truncated"]) == ("ab\r\n", False)
    bar = "''.join(f'\\r{i:>7} ' + '#' * 30 for i in range(100_000))"
    assert run(f"print({bar})")["stdout"].strip() == "99999 " + "#" * 30
