"""Code that takes from the kernel what that needs: the run ends on time, and the session goes on."""

from collections.abc import Callable

import pytest

Run = Callable[..., dict]

STREAM = """
import sys
class Stream:
    def write(self, text): {action}
    def flush(self): {action}
sys.stdout = sys.stderr = Stream()
"""
KEPT = {  # name: code that the kernel survives
    "the loop stopped": "import asyncio; asyncio.get_event_loop().stop()",
    "the loop stopped later": "import asyncio; l = asyncio.get_event_loop(); l.call_soon(l.call_soon, l.stop);",
    "an interrupt in the loop": """
import asyncio
def interrupt():
    raise KeyboardInterrupt
asyncio.get_event_loop().call_soon(interrupt);
""",
    "no loop": "import asyncio; asyncio.set_event_loop(None)",
    "other loops": "import asyncio; asyncio.set_event_loop(asyncio.new_event_loop())",
    "all tasks cancelled": "import asyncio\nfor task in asyncio.all_tasks(): task.cancel()",
    "a stream that interrupts": STREAM.format(action="raise KeyboardInterrupt"),
    "a stream that exits": STREAM.format(action="raise SystemExit(3)"),
    "a stream that raises": STREAM.format(action="raise BaseException"),
    "a low recursion limit": "import sys; sys.setrecursionlimit(50)",
    "the lowest recursion limit": "import sys; sys.setrecursionlimit(35)",
    "interrupts ignored": "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);",
    "signals blocked": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals());",
    "no threads": "import threading; threading.Thread = None",
    "no collector": "import gc; gc.disable(); gc.freeze()",
    "no channels": "get_ipython().kernel.shell_streams = []",
    "a hook after cells": "def h(): raise KeyboardInterrupt\nget_ipython().events.register('post_execute', h)",
    "an end that hangs": "import atexit, time; atexit.register(time.sleep, 1000);",
    "warnings as errors": "import warnings; warnings.simplefilter('error')",
}
LOST = {  # name: code of which the kernel may die, or has to be replaced
    "no len": "import builtins; del builtins.len",
    "no builtins": "import builtins\nfor name in list(vars(builtins)): delattr(builtins, name)",
    "descriptors closed": "import os\nos.closerange(3, 100)",
    "all descriptors closed": "import os\nos.closerange(0, 100)",
    "no modules": "import sys; sys.modules.clear()",
    "an exit in the loop": """
import asyncio
def end():
    raise SystemExit(5)
asyncio.get_event_loop().call_soon(end);
""",
    "nothing that runs cells": "get_ipython().run_cell = get_ipython().run_cell_async = None",
}


@pytest.mark.parametrize("code", KEPT.values(), ids=KEPT)
def test_the_kernel_goes_on(run: Run, code: str) -> None:
    run("kept = 42")
    ended = run(code, timeout=20)
    assert ended["status"] == "ok"
    for _ in range(2):
        again = run("print(kept)\nkept")
        assert (again["status"], again["result"], again["kernel_restarted"]) == ("ok", "42", False)
        assert again["stdout"].startswith("42\n")
        failed = run("1 / 0")
        assert failed["error"]["ename"] == "ZeroDivisionError"
        assert "----> 1" in "".join(failed["error"]["traceback"])


@pytest.mark.parametrize("code", LOST.values(), ids=LOST)
def test_the_session_goes_on_with_another_kernel(run: Run, code: str) -> None:
    run("kept = 42")
    ended = run(code, timeout=2)
    assert ended["status"] in ("ok", "error", "timeout", "kernel_died")
    if ended["status"] == "ok":  # it shows when the kernel is asked next
        run("pass", timeout=2)
    again = run("print('good')\n6 * 7")
    assert (again["status"], again["stdout"], again["result"]) == ("ok", "good\n", "42")


def test_a_stream_that_does_not_let_go_is_replaced_when_it_is_interrupted(run: Run) -> None:
    run("kept = 42")
    ended = run(STREAM.format(action="\n        while True: pass"), timeout=1)
    assert (ended["status"], ended["kernel_restarted"]) == ("timeout", False)
    assert run("print(kept)")["stdout"] == "42\n"


def test_a_stream_that_raises_whatever_is_looked_for_is_replaced(run: Run) -> None:
    run("kept = 42")
    code = "class Stream:\n    def __getattr__(self, name): raise SystemExit\nimport sys; sys.stdout = sys.stderr = Stream()"
    assert run(code)["error"]["ename"] == "SystemExit"
    assert run("print(kept)")["stdout"] == "42\n"


def test_a_recursion_limit_holds_for_its_cell(run: Run) -> None:
    code = "import sys\ndef down(n): return n and down(n - 1)\nsys.setrecursionlimit(60)\ndown(100)"
    failed = run(code)["error"]
    assert failed["ename"] == "RecursionError"
    assert "----> 4" in "".join(failed["traceback"])
    assert run("sys.getrecursionlimit() >= 400")["result"] == "True"
    assert run("sys.setrecursionlimit(5000)")["status"] == "ok"
    assert run("sys.getrecursionlimit()")["result"] == "5000"


def test_an_interrupt_before_the_cell_begins_ends_it_and_nothing_else(run: Run) -> None:
    # The kernel calls `os.pipe` when a run begins.
    code = "import os, signal\nreal = os.pipe\ndef pipe():\n    os.pipe = real\n    signal.raise_signal(signal.SIGINT)\n    return real()\nos.pipe = pipe"
    run(code)
    ended = run("print('executed')")
    assert (ended["status"], ended["error"]["ename"]) == ("error", "KeyboardInterrupt")
    assert [output["output_type"] for output in ended["outputs"]] == ["error"]
    again = run("import os\nos.system('echo good')\nprint('whole')")
    assert (again["status"], again["stdout"]) == ("ok", "good\nwhole\n")


@pytest.mark.parametrize("code", ["exit()", "quit()", "import os; os._exit(0)"])
def test_an_end_that_is_asked_for_is_one(run: Run, code: str) -> None:
    assert run(code)["status"] == "kernel_died"
    assert run("1")["kernel_restarted"]


@pytest.mark.parametrize("code", ["exit()", "quit()"])
def test_an_end_that_is_asked_for_is_that_of_any_python(run: Run, code: str) -> None:
    run("import atexit, os; atexit.register(lambda: open('at_exit', 'w').close());")
    assert run(code)["status"] == "kernel_died"
    assert run("import os; os.path.exists('at_exit')")["result"] == "True"
