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
