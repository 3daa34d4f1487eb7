"""What a cell breaks or hides: a `sys.stdout` that takes nothing, a shell command that failed."""

from collections.abc import Callable

import pytest

Run = Callable[..., dict]


@pytest.fixture
def session_id(shared_session_id: str) -> str:
    return shared_session_id


@pytest.mark.parametrize(
    "code",
    [
        "sys.stdout = None",
        "sys.stderr = sys.stdout = None",
        "del sys.stdout, sys.stderr",
        "sys.stdout = sys.stderr = object()",
        "sys.stdout.close(); sys.stderr.close()",
        "with open('out.txt', 'w') as sys.stdout: pass",
        "import io\nwith io.StringIO() as sys.stdout: pass",
    ],
    ids=["None", "both None", "deleted", "no stream", "closed", "closed file", "closed text"],
)
def test_a_broken_stream_is_whole_again_in_the_next_run(run: Run, code: str) -> None:
    run("import sys")
    ended = run(f"{code}\n1")
    assert (ended["status"], ended["result"]) == ("ok", "1")
    failed = run(f"{code}\n1 / 0")
    assert (failed["status"], failed["error"]["ename"]) == ("error", "ZeroDivisionError")
    ended = run("print('out'); print('err', file=sys.stderr)")
    assert (ended["status"], ended["stdout"], ended["stderr"]) == ("ok", "out\n", "err\n")


def test_a_stream_of_the_code_s_own_stays(run: Run) -> None:
    run("import io, sys\nown, sys.stdout = sys.stdout, io.StringIO()")
    assert run("print('kept')")["stdout"] == ""
    assert run("sys.stdout.getvalue()")["result"] == "'kept\\n'"
    run(
        "class Tee:\n    def write(self, text): return own.write(text)\n    def flush(self): own.flush()\n"
        "sys.stdout = Tee()"
    )
    assert run("print('through it')")["stdout"] == "through it\n"
    run("sys.stdout = own")


@pytest.mark.parametrize(
    ("code", "texts"),
    [
        (
            "sys.stdout = sys.__stdout__\nprint('a')\nsys.stdout.flush(); display(1)\nprint('b')",
            ["a\n", "1", "b\n"],
        ),
        ("sys.stdout = sys.__stdout__\nprint('a'); 1", ["a\n", "1"]),
        (
            "sys.stdout = io.StringIO()\nprint('unseen', 'a', file=own) or os.system('echo b'); 1",
            ["unseen a\nb\n", "1"],
        ),
        ("sys.stdout = io.StringIO()\nprint('a', file=sys.__stdout__)", ["a\n"]),
    ],
    ids=["Python's first, displays", "Python's first, result", "a program", "beside it"],
)
def test_what_goes_past_a_stream_of_the_code_s_own_is_the_run_s(
    run: Run, code: str, texts: list[str]
) -> None:
    run("import io, os, sys\nown = sys.stdout")
    outputs = run(code)["outputs"]
    run("sys.stdout = own")
    assert [o["text"] if "text" in o else o["data"]["text/plain"] for o in outputs] == texts


@pytest.mark.parametrize(
    ("code", "notices"),
    [
        ("!exit 3", ["The shell command `exit 3` ended with exit code 3."]),
        ("!kill -9 $$", ["The shell command `kill -9 $$` was ended by SIGKILL."]),
        (
            "def call(code):\n    get_ipython().system('exit {code}')\ncall(4)",
            ["The shell command `exit 4` ended with exit code 4."],
        ),
        ("!true", []),
    ],
    ids=["code", "signal", "names of the caller", "success"],
)
def test_the_exit_code_of_a_shell_command_is_told(run: Run, code: str, notices: list[str]) -> None:
    ended = run(code)
    assert (ended["status"], ended["outputs"], ended["notices"]) == ("ok", [], notices)
    after = run("_exit_code")
    assert (after["result"] == "0", after["notices"]) == (not notices, [])


def test_it_is_told_of_a_failed_run_too(run: Run) -> None:
    ended = run("!exit 5\n1 / 0")
    assert ended["status"] == "error"
    assert ended["notices"] == ["The shell command `exit 5` ended with exit code 5."]
