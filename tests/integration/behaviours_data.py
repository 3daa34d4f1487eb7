"""Snippets with known right results. Sources: the messaging specification, IPython's and ipykernel's own behaviour."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Run = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Code, and what must hold of the run: fields with their values, and further claims."""

    name: str
    code: str
    fields: dict[str, Any]
    claim: Callable[[Run], bool] = lambda run: True


def ok(name: str, code: str, claim: Callable[[Run], bool] = lambda run: True, **fields: Any) -> Case:
    return Case(name, code, {"status": "ok", "error": None, "kernel_restarted": False, **fields}, claim)


def fails(name: str, code: str, ename: str, claim: Callable[[Run], bool] = lambda run: True) -> Case:
    fields = {"status": "error", "kernel_restarted": False}
    return Case(name, code, fields, lambda run: run["error"]["ename"] == ename and claim(run))


def kinds(run: Run) -> list[str]:
    """Types of the outputs; streams by their name, displays by their richest MIME type."""
    found = []
    for output in run["outputs"]:
        mimes = [mime for mime in output.get("data", {}) if mime != "text/plain"]
        found.append(output.get("name") or (mimes and mimes[0]) or output["output_type"])
    return found


def value(run: Run, mime: str, index: int = -1) -> Any:
    return run["outputs"][index]["data"].get(mime)


PLOT = "import matplotlib.pyplot as plt\n"

CASES: list[Case] = [
    # Outputs
    ok(
        "streams are coalesced", "for i in range(100): print(i, flush=True)", lambda r: len(r["outputs"]) == 1
    ),
    ok("carriage return", "print('aaa\\rb')", stdout="b\n"),
    ok(
        "carriage return over runs of prints",
        "for i in range(9): print(f'\\r{i}', end='', flush=True)",
        stdout="8",
    ),
    ok("backspace", "print('abc\\b\\bx')", stdout="ax\n"),
    ok(
        "stdout and stderr apart",
        "import sys\nprint('o'); print('e', file=sys.stderr)",
        stdout="o\n",
        stderr="e\n",
    ),
    ok("no newline", "import sys\nn = sys.stdout.write('x')", stdout="x", result=None),
    ok("result", "[1, 2]", result="[1, 2]", stdout=""),
    ok("semicolon hides", "1;", result=None, outputs=[]),
    ok("only the last expression", "1\n2", result="2"),
    ok("none is no result", "None", result=None, outputs=[]),
    ok(
        "display order",
        "print(1)\ndisplay(2)\nprint(3)",
        lambda r: kinds(r) == ["stdout", "display_data", "stdout"],
    ),
    ok("clear", "from IPython.display import clear_output\nprint(1)\nclear_output()\nprint(2)", stdout="2\n"),
    ok("clear waits", "print(1)\nclear_output(wait=True)", stdout="1\n"),
    ok("clear waits for output", "print(1)\nclear_output(wait=True)\nprint(2)", stdout="2\n"),
    ok(
        "update of own display",
        "h = display('a', display_id=True)\nh.update('b')",
        lambda r: value(r, "text/plain") == "'b'",
    ),
    ok(
        "html",
        "from IPython.display import HTML\nHTML('<b>x</b>')",
        lambda r: value(r, "text/html") == "<b>x</b>",
    ),
    ok(
        "svg",
        "from IPython.display import SVG\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')",
        lambda r: value(r, "image/svg+xml").startswith("<svg"),
    ),
    ok("latex", "from IPython.display import Latex\nLatex('$x$')", lambda r: value(r, "text/latex") == "$x$"),
    ok(
        "json stays json",
        "from IPython.display import JSON\nJSON({'a': [1, None]})",
        lambda r: value(r, "application/json") == {"a": [1, None]},
    ),
    ok(
        "NaN in json",
        "import warnings\nwarnings.simplefilter('error')\n"
        "display({'application/json': {'a': float('nan'), 'b': [1.5, float('-inf')], '\\ud800': 1}}, raw=True)\n"
        "warnings.resetwarnings()",
        lambda r: value(r, "application/json") == {"a": "nan", "b": [1.5, "-inf"], "\ufffd": 1},
        stderr="",
    ),
    ok(
        "plotly",
        "import plotly.graph_objects as go\ngo.Figure(go.Bar(y=[1]))",
        lambda r: "data" in value(r, "application/vnd.plotly.v1+json"),
    ),
    ok(
        "vega",
        "display({'application/vnd.vegalite.v5+json': {'mark': 'bar'}}, raw=True)",
        lambda r: value(r, "application/vnd.vegalite.v5+json") == {"mark": "bar"},
    ),
    ok(
        "bytes are base64",
        "display({'image/png': b'\\x89PNG'}, raw=True)",
        lambda r: value(r, "image/png") == "iVBORw==",
    ),
    ok(
        "two figures",
        PLOT + "plt.plot([1]); plt.show(); print('mid'); plt.plot([2]); plt.show()",
        lambda r: kinds(r) == ["image/png", "stdout", "image/png"],
    ),
    ok(
        "figure at the end",
        PLOT + "print('a')\nplt.plot([1]);",
        lambda r: kinds(r) == ["stdout", "image/png"],
    ),
    ok(
        "figure after use('Agg')",
        "import matplotlib\nmatplotlib.use('Agg')\n" + PLOT + "plt.plot([1])\nplt.show()",
        lambda r: kinds(r) == ["image/png"],
    ),
    ok(
        "image base64 has no newlines",
        PLOT + "plt.plot(range(1000));",
        lambda r: "\n" not in value(r, "image/png"),
    ),
    fails(
        "figure before an error",
        PLOT + "plt.plot([1])\n1/0",
        "ZeroDivisionError",
        lambda r: "image/png" in kinds(r),
    ),
    ok("pager", "len?", lambda r: "Return the number" in str(r["outputs"])),
    ok("pager after output", "print('x')\nabs?", lambda r: kinds(r) == ["stdout", "display_data"]),
    ok("await", "import asyncio\nawait asyncio.sleep(0, 'done')", result="'done'"),
    ok("shell", "!echo hi", lambda r: r["stdout"].replace("\r", "") == "hi\n"),
    ok("exit code of the shell", "!sh -c 'exit 7'\n_exit_code", result="7"),
    fails(
        "exit code of a cell magic",
        "%%bash\nexit 3",
        "CalledProcessError",
        lambda r: "3" in r["error"]["evalue"],
    ),
    ok("unknown command", "!nosuchcommand_x", lambda r: "not found" in r["stdout"] + r["stderr"]),
    ok("capture", "%%capture\nprint('x')", outputs=[]),
    ok("cell magic bash", "%%bash\necho a\necho b >&2", stdout="a\n", stderr="b\n"),
    ok("time", "%time 1 + 1", lambda r: "Wall time" in r["stdout"], result="2"),
    ok("subprocess", "import subprocess\nsubprocess.run(['echo', 'x']);", stdout="x\n"),
    ok(
        "descriptors",
        "import os\nn = os.write(1, b'one\\n'); n = os.write(2, b'two\\n')",
        stdout="one\n",
        stderr="two\n",
    ),
    ok("os.system", "import os\nos.system('echo sys');", stdout="sys\n"),
    ok(
        "multiprocessing",
        "import multiprocessing as m\np = m.get_context('fork').Process(target=lambda: print('child', flush=True)); p.start(); p.join()",
        stdout="child\n",
    ),
    ok(
        "thread",
        "import threading\nt = threading.Thread(target=print, args=('t',)); t.start(); t.join()",
        stdout="t\n",
    ),
    ok("comms are no outputs", "from comm import create_comm\nc = create_comm(target_name='x')", outputs=[]),
    ok("empty", "", outputs=[], result=None),
    ok("comment", "# nothing", outputs=[], result=None),
    ok("indented", "  print(1)\n  print(2)", stdout="1\n2\n"),
    ok("CRLF", "print(1)\r\nprint(2)\r\n", stdout="1\n2\n"),
    ok("help", "help(len)", lambda r: "Return the number" in r["stdout"]),
    ok("display of many", "display(1, 2, 3)", lambda r: len(r["outputs"]) == 3),
    ok("set_next_input is no output", "get_ipython().set_next_input('x')", outputs=[]),
    ok(
        "own repr",
        "class A:\n    def _repr_markdown_(self): return '*a*'\nA()",
        lambda r: value(r, "text/markdown") == "*a*",
    ),
    # Errors
    fails("exception", "x = 1\n1/0", "ZeroDivisionError", lambda r: r["error"]["line"] == 2),
    fails(
        "in a function",
        "def f():\n    raise KeyError('k')\n\nf()",
        "KeyError",
        lambda r: r["error"]["line"] == 2,
    ),
    fails(
        "chained",
        "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise ValueError('v') from e",
        "ValueError",
        lambda r: r["error"]["line"] == 4,
    ),
    fails("syntax", "x = 1\ndef (", "SyntaxError", lambda r: r["error"]["line"] in (2, None)),
    fails(
        "group",
        "raise ExceptionGroup('g', [ValueError('a')])",
        "ExceptionGroup",
        lambda r: "ValueError: a" in r["stderr"] + str(r["error"]),
    ),
    fails(
        "no frame of the kernel's extensions is shown",
        "import os\nos.write(1, 'text')",
        "TypeError",
        lambda r: (
            [line.split(",")[0] for line in r["error"]["traceback"] if "line " in line]
            == [f"Cell In[{r['execution_count']}]"]
        ),
    ),
    fails("failing repr", "class B:\n    def __repr__(self): raise ValueError('r')\nB()", "ValueError"),
    fails("surrogate in the text", "raise ValueError('\\ud800')", "ValueError"),
    fails("SystemExit", "import sys\nsys.exit(3)", "SystemExit", lambda r: r["error"]["evalue"] == "3"),
    fails("KeyboardInterrupt by hand", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    fails("unknown magic", "%nosuchmagic", "UsageError"),
    fails("recursion", "def f(): return f()\nf()", "RecursionError"),
    ok(
        "recursion is told as fast as any error",
        # What IPython asks for once per frame. The processor's time says little on a busy machine.
        "import inspect, sys\ncalls = 0\n"
        "def count(frame, event, argument):\n"
        "    global calls\n"
        "    calls += event == 'call' and frame.f_code is inspect.getmodule.__wrapped__.__code__\n"
        "def deep(): return deep()\n"
        "try:\n    deep()\nexcept RecursionError:\n"
        "    sys.setprofile(count)\n    text = get_ipython().InteractiveTB.structured_traceback(*sys.exc_info())\n"
        "    sys.setprofile(None)\n"
        "calls < 200, any('skipping similar frames' in line for line in text)",
        result="(True, True)",
    ),
    fails("no input", "input('? ')", "StdinNotImplementedError"),
    fails("no getpass", "import getpass\ngetpass.getpass()", "StdinNotImplementedError"),
    fails("asyncio.run inside", "import asyncio\nasyncio.run(asyncio.sleep(0))", "RuntimeError"),
    fails(
        "output before it is kept",
        "print('a')\ndisplay('b')\n1/0",
        "ZeroDivisionError",
        lambda r: r["stdout"] == "a\n" and len(r["outputs"]) == 3,
    ),
    fails(
        "huge traceback",
        "raise ValueError('x' * 5_000_000)",
        "ValueError",
        lambda r: len(str(r)) < 9_000_000 and r["truncated"],
    ),
    fails(
        "name with ansi",
        "raise type('\\x1b[31mRed', (Exception,), {})('\\x1b[1mbold')",
        "Red",
        lambda r: r["error"]["evalue"] == "bold",
    ),
    fails(
        "memory limit of the user",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, -1))\ntry:\n    x = bytearray(64 * 2**30)\nfinally:\n    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "MemoryError",
    ),
    # Any text
    ok(
        "lone surrogate",
        "print('a\\ud800b')",
        stdout="a\ufffdb\n",
        stderr="",
    ),
    ok(
        "surrogate of an undecodable byte",
        "import sys\nn = sys.stdout.write('a\\udcff é')",
        stdout="a\ufffd é",
        stderr="",
    ),
    ok("surrogate in a result", "'\\udfff'"),
    ok(
        "surrogate in html",
        "display({'text/html': 'a\\ud800'}, raw=True)",
        lambda r: value(r, "text/html")[0] == "a",
    ),
    ok(
        "invalid utf-8",
        "import os\nn = os.write(1, b'a\\xff\\xfeb\\n')",
        lambda r: re.fullmatch("a.+b\n", r["stdout"]) is not None,
    ),
    ok("NUL", "print('a\\x00b')", stdout="a\x00b\n"),
    ok("emoji", "print('👩‍👩‍👧')", stdout="👩‍👩‍👧\n"),
    ok("bidi", "'\\u202eabc'"),
    ok(
        "ansi is removed from stdout",
        "print('\\x1b[31mred\\x1b[0m')",
        lambda r: "\x1b[31m" in r["outputs"][0]["text"],
        stdout="red\n",
    ),
    ok(
        "ansi in names",
        "class A: pass\nA.__qualname__ = A.__name__ = '\\x1b[1mA'\nA()",
        lambda r: "\x1b" not in r["result"],
    ),
    ok("bom in the output", "print('\\ufeffx')", stdout="\ufeffx\n"),
    ok(
        "odd mime",
        "display({'text/plain': 'x', 'not a mime': 'y', 'a/b': {'c': 1}, 'application/json': 5}, raw=True)",
    ),
    ok("huge number", "10**4299", lambda r: len(r["result"]) == 4300),
    ok("deep json", "x = []\nfor _ in range(400): x = [x]\ndisplay({'application/json': x}, raw=True)"),
]
