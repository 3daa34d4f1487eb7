"""Exceptions that are more than a message can hold, or than can be shown soon: their names arrive, and the session goes on."""

from collections.abc import Callable

import pytest

Run = Callable[..., dict]

MIB = 1024**2
ERRORS = {  # name: code, the error's name
    "a long message": ("raise ValueError('q' * 50_000_000)", "ValueError"),
    "a long text of bytes": ("raise ValueError(bytes(20_000_000))", "ValueError"),
    "a long text": ("class E(Exception):\n def __str__(self): return 'z' * 80_000_000\nraise E", "E"),
    "a long key": ("{}['k' * 50_000_000]", "KeyError"),
    "a long syntax error": (
        "raise SyntaxError('s' * 50_000_000, ('f', 1, 1, 't' * 10_000_000))",
        "SyntaxError",
    ),
    "a long name": ("raise type('N' * 30_000_000, (Exception,), {})", "N" * 100),
    "many notes": (
        "e = ValueError()\nfor _ in range(200_000): e.add_note('n' * 500)\nraise e",
        "ValueError",
    ),
    "a long traceback of its own": (
        "class E(Exception):\n def _render_traceback_(self): return ['r' * 80_000_000, 'end']\nraise E",
        "E",
    ),
    "no traceback of its own": ("class E(Exception):\n def _render_traceback_(self): return 5\nraise E", "E"),
    "a text for a traceback": (
        "class E(Exception):\n def _render_traceback_(self): return 'text'\nraise E",
        "E",
    ),
    "many exceptions in a group": (
        "raise ExceptionGroup('g', [ValueError(i) for i in range(5000)])",
        "ExceptionGroup",
    ),
}


@pytest.fixture
def session_id(shared_session_id: str) -> str:
    return shared_session_id


@pytest.mark.parametrize(("code", "name"), ERRORS.values(), ids=ERRORS)
def test_a_huge_error_keeps_its_name(run: Run, code: str, name: str) -> None:
    run("kept = 42")
    ended = run(code, timeout=40)
    assert ended["status"] == "error"
    assert ended["error"]["ename"][:100] == name
    assert len(str(ended["error"])) < 16 * MIB
    assert run("print(kept)")["stdout"] == "42\n"


def test_of_a_long_message_head_and_tail_are_kept(run: Run) -> None:
    ended = run("raise ValueError('head' + 'q' * 50_000_000 + 'tail')")
    text = ended["error"]["evalue"]
    assert (text[:5], text[-5:]) == ("headq", "qtail")
    assert "bytes were left out]" in text
    assert ended["truncated"]
    assert ended["dropped_bytes"] > 90_000_000  # of the message and the traceback


def test_a_message_that_is_only_long_is_whole(run: Run) -> None:
    assert run("raise ValueError('q' * 4_000_000)")["error"]["evalue"] == "q" * 4_000_000


MANY_FRAMES = """
import sys
sys.setrecursionlimit(300_000)
def down(n):
    if n == 0:
        1 / 0
    down(n - 1)
down(100_000)
"""
MANY_FUNCTIONS = """
import sys
sys.setrecursionlimit(30_000)
functions = [f"def f{i}(): f{i + 1}()" for i in range(9000)]
exec(compile("\\n".join([*functions, "def f9000(): 1 / 0", "f0()"]), "many.py", "exec"))
"""
MANY_CAUSES = """
error = ZeroDivisionError("first")
for number in range(20_000):
    try:
        raise ZeroDivisionError(number) from error
    except ZeroDivisionError as raised:
        error = raised
raise error
"""


@pytest.mark.parametrize(
    ("code", "note"),
    [
        (MANY_FRAMES, "frames in the middle are not shown"),
        (MANY_FUNCTIONS, "frames in the middle are not shown"),
        (MANY_CAUSES, "the exceptions before are not shown"),
    ],
    ids=["frames", "functions", "causes"],
)
def test_the_traceback_of_a_huge_error_is_soon_there(run: Run, code: str, note: str) -> None:
    run("kept = 42")
    ended = run(code, timeout=20)
    assert (ended["status"], ended["error"]["ename"]) == ("error", "ZeroDivisionError")
    assert note in "".join(ended["error"]["traceback"])
    assert run("import sys; sys.setrecursionlimit(3000); print(kept)")["stdout"] == "42\n"
