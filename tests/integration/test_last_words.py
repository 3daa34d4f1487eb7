"""Code that ends its kernel, or never lets it speak again: what it has shown before is there."""

from collections.abc import Callable

import pytest

Run = Callable[..., dict]


@pytest.fixture
def session_id(shared_session_id: str) -> str:
    return shared_session_id


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("print('a'); print('b', end=''); os._exit(1)", "a\nb"),
        ("print('a'); os.kill(os.getpid(), 9)", "a\n"),
        ("print('a', end=''); os.kill(os.getpid(), 15)", "a"),
        ("import signal\nprint('a', end=''); signal.raise_signal(signal.SIGKILL)", "a"),
        ("print('a', end=''); os.abort()", "a"),
        ("print('a', end=''); os.execv('/bin/true', ['true'])", "a"),
    ],
    ids=["_exit", "SIGKILL", "SIGTERM", "raise_signal", "abort", "exec"],
)
def test_the_last_words_of_a_kernel(run: Run, code: str, shown: str) -> None:
    ended = run(f"import os\n{code}")
    assert (ended["status"], ended["stdout"]) == ("kernel_died", shown)


def test_code_that_never_lets_go_of_the_interpreter(run: Run) -> None:
    ended = run("print('a')\nprint('b')\nsum(range(10**12))", timeout=1)
    assert (ended["status"], ended["stdout"]) == ("timeout", "a\nb\n")


def test_what_was_shown_before_a_flush_is_there(run: Run) -> None:
    """Although a flush of an empty stream has nothing to send of its own, and the thread that sends is late."""
    late = "import sys, time\nget_ipython().kernel.iopub_thread.schedule(lambda: time.sleep(0.2))\n"
    ended = run(f"{late}display('a')\nsys.stdout.flush()\nsum(range(10**12))", timeout=1)
    assert ended["status"] == "timeout"
    assert [output["data"]["text/plain"] for output in ended["outputs"] if "data" in output] == ["'a'"]


def test_a_run_that_writes_nothing_waits_for_no_thread(run: Run) -> None:
    """ipykernel flushes six times in it, and each time would wait for an event that its output thread sets."""
    run(
        """
import threading
thread, asked = get_ipython().kernel.iopub_thread, []
def note(function, schedule=thread.schedule):
    asked.append(getattr(function, '__self__', None))
    schedule(function)
thread.schedule = note
None"""
    )
    assert run("1 + 1")["result"] == "2"
    assert run("sum(isinstance(one, threading.Event) for one in asked)")["result"] == "0"
