"""Output that comes while another run executes: it is told by the run that it belongs to, and by no other.

Nothing waits for a time to pass: a second run lets what the first one has started go on, and waits for its end.
"""

import time
from collections.abc import Callable

import httpx
import pytest

Run = Callable[..., dict]
START = "import subprocess, sys, threading\ngo = threading.Event()\n"
FINISH = "go.set(); wait(); print('mine')"

GO_ON: dict[str, tuple[str, str]] = {  # name: what a run starts (and how `wait` ends), what it shows late
    "thread": (
        "def late():\n    go.wait(); print('late', flush=True)\n"
        "t = threading.Thread(target=late); t.start(); wait = t.join",
        "late\n",
    ),
    "thread of a thread": (
        "def late():\n    go.wait(); t = threading.Thread(target=print, args=('late',)); t.start(); t.join()\n"
        "t = threading.Thread(target=late); t.start(); wait = t.join",
        "late\n",
    ),
    "raw thread": (
        "import _thread\ndone = threading.Event(); wait = done.wait\n"
        "def late():\n    go.wait(); print('late'); done.set()\n"
        "_thread.start_new_thread(late, ());",
        "late\n",
    ),
    "job of a pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def late():\n    go.wait(); print('late')\n"
        "pool = ThreadPoolExecutor(1); job = pool.submit(late); wait = job.result",
        "late\n",
    ),
    "job of multiprocessing's pool": (
        "from multiprocessing.pool import ThreadPool\n"
        "def late():\n    go.wait(); print('late')\n"
        "pool = ThreadPool(1); job = pool.apply_async(late); wait = job.get",
        "late\n",
    ),
    "process": (
        "p = subprocess.Popen('read x; echo late', shell=True, stdin=subprocess.PIPE)\n"
        "wait = lambda: (p.stdin.close(), p.wait())",
        "late\n",
    ),
    "process of a thread": (
        "def late():\n    go.wait(); subprocess.run('echo late', shell=True)\n"
        "t = threading.Thread(target=late); t.start(); wait = t.join",
        "late\n",
    ),
    "descriptor that a thread writes to": (
        "import os\ndef late():\n    go.wait(); os.write(1, memoryview(b'late\\n'))\n"
        "t = threading.Thread(target=late); t.start(); wait = t.join",
        "late\n",
    ),
    "system of a thread": (
        "import os\nended = []\n"
        "def late():\n    go.wait(); ended.append(os.system('echo late; exit 3'))\n"
        "t = threading.Thread(target=late); t.start()\ndef wait():\n    t.join(); assert ended == [3 << 8]",
        "late\n",
    ),
    "fork of a thread": (
        "import multiprocessing\ndef late():\n    go.wait()\n"
        "    p = multiprocessing.get_context('fork').Process(target=print, args=('late',)); p.start(); p.join()\n"
        "t = threading.Thread(target=late); t.start(); wait = t.join",
        "late\n",
    ),
}


@pytest.fixture
def session_id(shared_session_id: str) -> str:
    return shared_session_id


def texts(run: dict, name: str = "stdout") -> str:
    return "".join(o["text"] for o in run["outputs"] if o["output_type"] == "stream" and o["name"] == name)


def when_late(api: httpx.Client, run: dict, is_there: Callable[[dict], object]) -> dict:
    """The run, once its late output has come."""
    deadline = time.monotonic() + 60
    found = api.get(f"/v1/runs/{run['id']}").json()
    while not is_there(found) and time.monotonic() < deadline:
        found = api.get(f"/v1/runs/{run['id']}").json()
    return found


@pytest.mark.parametrize("name", GO_ON)
def test_what_goes_on_speaks_for_its_own_run(api: httpx.Client, run: Run, name: str) -> None:
    code, shown = GO_ON[name]
    first = run(START + code)
    assert (first["status"], first["stdout"]) == ("ok", ""), first["error"]
    second = run(FINISH)
    assert (second["status"], texts(second)) == ("ok", "mine\n")
    assert texts(when_late(api, first, texts)) == shown


def test_errors_and_displays_of_a_thread_too(api: httpx.Client, run: Run) -> None:
    first = run(
        f"{START}from IPython.display import display\n"
        "def late():\n    go.wait(); display('shown'); print('told', file=sys.stderr); 1 / 0\n"
        "t = threading.Thread(target=late); t.start(); wait = t.join"
    )
    second = run(FINISH)
    assert [output["output_type"] for output in second["outputs"]] == ["stream"]
    late = when_late(api, first, lambda run: "ZeroDivisionError" in texts(run, "stderr"))
    assert late["outputs"][0]["data"] == {"text/plain": "'shown'"}
    assert texts(late, "stderr").startswith("told\nException in thread")


def test_a_job_belongs_to_the_run_that_handed_it_in(run: Run) -> None:
    run(
        "from concurrent.futures import ThreadPoolExecutor\nfrom multiprocessing.pool import ThreadPool\n"
        "one, other = ThreadPoolExecutor(1), ThreadPool(1)\none.submit(int).result(); other.apply(int);"
    )
    ended = run(
        "one.submit(print, 'a').result(); list(one.map(print, 'b')); other.map(print, 'c')\nprint('d')"
    )
    assert texts(ended) == "a\nb\nc\nd\n"


def test_a_thread_has_none_of_the_code_s_own_context(run: Run) -> None:
    ended = run(
        "import contextvars, threading\nname = contextvars.ContextVar('name', default='none'); name.set('set')\n"
        "t = threading.Thread(target=lambda: print(name.get())); t.start(); t.join()"
    )
    assert ended["stdout"] == "none\n"


def test_processes_without_an_end_use_up_no_file_descriptors(run: Run) -> None:
    run(
        "import os, subprocess\nleft = []\ncount = lambda: len(os.listdir('/proc/self/fd'))\nbefore = count()"
    )
    for _ in range(20):
        run("left.append(subprocess.Popen(['cat'], stdin=subprocess.PIPE))")
    assert int(run("count() - before - len(left)")["result"]) <= 32
    run("for process in left: process.stdin.close(); process.wait()")
    run("pass")
    ended = run("os.system('echo still here')\ncount() - before <= 4")
    assert (texts(ended), ended["result"]) == ("still here\n", "True")


def test_a_descriptor_that_the_code_redirects_stays_so(run: Run) -> None:
    run("import os\nsaved = os.dup(1); file = open('out.txt', 'w+'); os.dup2(file.fileno(), 1);")
    assert texts(run("os.system('echo to the file');")) == ""
    run("os.dup2(saved, 1);")
    assert texts(run("os.system('echo back');")) == "back\n"
    assert run("file.seek(0); file.read()")["result"] == "'to the file\\n'"
    run("os.close(1)")
    assert texts(run("os.system('echo opened');")) == "opened\n"


def test_a_stream_as_the_output_of_a_program(run: Run) -> None:
    ended = run(
        "import subprocess, sys\nsubprocess.run(['echo', 'x'], stdout=sys.stdout, stderr=sys.stderr);"
    )
    assert ended["stdout"] == "x\n"


def test_what_c_code_has_not_flushed(run: Run) -> None:
    assert run("import ctypes\nctypes.CDLL(None).puts(b'from C');")["stdout"] == "from C\n"


def test_lines_of_programs_and_prints_are_in_order(run: Run) -> None:
    ended = run(
        "import os, subprocess\nfor i in range(0, 40, 4):\n    print(i, flush=i < 20)\n    os.system(f'echo {i + 1}')\n"
        "    subprocess.run(['echo', str(i + 2)])\n    os.write(1, b'%d\\n' % (i + 3))"
    )
    assert ended["stdout"].split() == [str(number) for number in range(40)]


def test_what_python_s_first_stdout_holds_back(run: Run) -> None:
    assert run("import sys\nprint('shown', file=sys.__stdout__)")["stdout"] == "shown\n"
