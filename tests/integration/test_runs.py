"""Code that a session executes on a real kernel, through the REST API."""

from collections.abc import Callable

import httpx
import pytest

Run = Callable[..., dict]


@pytest.fixture
def session_id(shared_session_id: str) -> str:
    return shared_session_id


def test_prints_and_value(run: Run) -> None:
    before = run("0")["execution_count"]
    ended = run("print('hello')\n1 + 1")
    assert (ended["status"], ended["stdout"], ended["result"]) == ("ok", "hello\n", "2")
    assert ended["execution_count"] == before + 1
    assert ended["recorded"] is True
    assert ended["error"] is None


def test_state_lasts_from_run_to_run(run: Run) -> None:
    run("x = 20")
    assert run("x + 1")["result"] == "21"


def test_sessions_do_not_see_each_other(api: httpx.Client, run: Run) -> None:
    run("x = 20")
    other = api.post("/v1/sessions", json={}).json()["id"]
    ended = api.post(f"/v1/sessions/{other}/runs", json={"code": "x"}).json()
    assert (ended["status"], ended["error"]["ename"]) == ("error", "NameError")
    assert api.delete(f"/v1/sessions/{other}").status_code == 204


def test_one_off_runs_share_nothing(api: httpx.Client) -> None:
    first = api.post("/v1/runs", json={"code": "x = 1\nx"}).json()
    second = api.post("/v1/runs", json={"code": "x"}).json()
    assert first["result"] == "1"
    assert second["error"]["ename"] == "NameError"
    assert first["session_id"] != second["session_id"]


def test_exception_has_its_line_and_no_ansi(run: Run) -> None:
    ended = run("a = 1\n\n1 / 0")
    assert ended["status"] == "error"
    assert ended["error"]["ename"] == "ZeroDivisionError"
    assert ended["error"]["line"] == 3
    assert "\x1b" not in "".join(ended["error"]["traceback"])


@pytest.mark.parametrize(
    "code",
    [
        "%nosuchmagic",
        "raise ExceptionGroup('both', [ValueError('a'), KeyError('b')])",
        "raise ValueError('\\ud800')",
        "def (",
    ],
    ids=["unknown magic", "exception group", "surrogate in the text", "syntax error"],
)
def test_every_failed_cell_is_an_error(run: Run, code: str) -> None:
    ended = run(code)
    assert ended["status"] == "error"
    assert ended["error"]["ename"]


def test_top_level_await_and_shell(run: Run) -> None:
    assert run("import asyncio\nawait asyncio.sleep(0)\n5")["result"] == "5"
    assert run("!echo from the shell")["stdout"].strip() == "from the shell"


def test_pager_text_is_shown(run: Run) -> None:
    shown = run("len?")["outputs"]
    assert any("Return the number of items" in str(output.get("data")) for output in shown)


def test_input_fails_at_once(run: Run) -> None:
    assert run("input('name?')")["error"]["ename"] == "StdinNotImplementedError"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('x' * 10_000_000)", "x" * 10_000_000 + "\n"),
        ("print('H' + 'x' * 3_000_000 + 'T')", "H" + "x" * 3_000_000 + "T\n"),
        ("for n in range(3000): print(n, 'y' * 1000)", "".join(f"{n} {'y' * 1000}\n" for n in range(3000))),
    ],
    ids=["one print", "head and tail", "many prints"],
)
def test_a_huge_print_keeps_head_and_tail_and_counts_the_rest(run: Run, code: str, text: str) -> None:
    ended = run(code)
    dropped = ended["dropped_bytes"]
    head, tail = ended["stdout"].split(f"\n[… {dropped:,} bytes not shown …]\n")
    assert len(head) == 1024**2 * 3 // 4
    assert text.startswith(head)
    assert text.endswith(tail)
    assert dropped == len(text) - len(head) - len(tail)


def test_figure_is_a_png_and_in_order(run: Run) -> None:
    ended = run(
        "import matplotlib.pyplot as plt\nprint('before')\nplt.plot([1, 2])\nplt.show()\nprint('after')"
    )
    kinds = [output["output_type"] for output in ended["outputs"]]
    assert kinds == ["stream", "display_data", "stream"]
    assert ended["outputs"][1]["data"]["image/png"].startswith("iVBORw0KGgo")


def test_figure_comes_even_with_the_agg_backend(run: Run) -> None:
    ended = run("import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])")
    assert any("image/png" in output.get("data", {}) for output in ended["outputs"])


def test_figure_made_before_an_exception_is_kept(run: Run) -> None:
    ended = run("import matplotlib.pyplot as plt\nplt.plot([1])\n1/0")
    assert ended["status"] == "error"
    assert any("image/png" in output.get("data", {}) for output in ended["outputs"])


def test_files_of_a_run_are_listed(run: Run) -> None:
    made = run("open('a.txt', 'w').write('abc')")["files"]
    assert [(f["path"], f["size"], f["mime_type"], f["change"]) for f in made] == [
        ("a.txt", 3, "text/plain", "created")
    ]
    assert [f["change"] for f in run("open('a.txt', 'a').write('d')")["files"]] == ["modified"]
    assert [f["change"] for f in run("import os; os.remove('a.txt')")["files"]] == ["deleted"]


def test_update_of_a_display_of_an_earlier_run(api: httpx.Client, run: Run) -> None:
    first = run("h = display('old', display_id=True)")
    run("h.update('new')")
    shown = api.get(f"/v1/runs/{first['id']}").json()["outputs"][0]["data"]["text/plain"]
    assert shown == "'new'"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os\nos._exit(7)", "7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
        ("exit()", "exit()"),
    ],
    ids=["os._exit", "SIGKILL", "segfault", "exit()"],
)
def test_kernel_death_has_a_status_and_a_cause(run: Run, code: str, cause: str) -> None:
    ended = run(code)
    assert ended["status"] == "kernel_died"
    assert cause in ended["error"]["evalue"]
    assert ended["kernel_restarted"] is True
    after = run("1 + 1")
    assert (after["status"], after["result"], after["kernel_restarted"]) == ("ok", "2", True)


def test_system_exit_keeps_the_kernel(run: Run) -> None:
    run("kept = 1")
    assert run("import sys\nsys.exit(3)")["error"]["ename"] == "SystemExit"
    assert run("kept")["result"] == "1"


def test_late_output_belongs_to_the_run_that_printed_it(api: httpx.Client, run: Run) -> None:
    code = (
        "import asyncio\nevent = asyncio.Event()\n"
        "async def later():\n    await event.wait()\n    print('late')\n"
        "task = asyncio.ensure_future(later())"
    )
    first = run(code)
    second = run("event.set()\nawait asyncio.sleep(0.05)\nprint('mine')")
    assert second["stdout"] == "mine\n"
    assert "late" in api.get(f"/v1/runs/{first['id']}").json()["stdout"]


@pytest.mark.parametrize(
    "text", ["\\ud800", "\\x00", "a\\r\\nb", "\\U0001F600", "\\u202eabc", "\\x1b[31mred\\x1b[0m", "\\ufeff"]
)
def test_any_text_is_answered_as_strict_json(run: Run, text: str) -> None:
    ended = run(f"print('{text}')\n'{text}'")
    assert ended["status"] == "ok"
    assert "\x1b" not in ended["stdout"]


def test_code_is_kept_byte_for_byte(api: httpx.Client) -> None:
    code = "# tab\there, CRLF\r\nx = 'é😀'  \n\n"
    ended = api.post("/v1/runs", json={"code": code}).json()
    assert ended["code"] == code
    assert api.get(f"/v1/runs/{ended['id']}").json()["code"] == code
    notebook = api.get(ended["notebook_url"]).json()
    assert "".join(notebook["cells"][-1]["source"]) == code
