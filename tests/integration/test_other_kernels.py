"""Kernels beside Python, and the fonts of figures; all in the sandbox."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

Run = Callable[..., dict]


@pytest.fixture
def language() -> str:
    return "python3"


@pytest.fixture
def session_id(api: httpx.Client, language: str) -> Iterator[str]:
    """A session of the language."""
    made = api.post("/v1/sessions", json={"kernel_name": language})
    assert made.status_code == 201, made.text
    yield made.json()["id"]
    api.delete(f"/v1/sessions/{made.json()['id']}")


class TestBash:
    """`bash_kernel`."""

    @pytest.fixture
    def language(self) -> str:
        return "bash"

    def test_state_is_kept_and_errors_are_told(self, run: Run) -> None:
        assert run("x=42; cd /tmp")["status"] == "ok"
        assert run("echo $x; pwd")["stdout"] == "42\n/tmp\n"
        assert run("false")["status"] == "error"
        assert run("nosuchcommand")["status"] == "error"

    def test_it_runs_in_the_sandbox(self, run: Run) -> None:
        assert run("pwd; id -u; ls /root /proc/1/root 2>&1 | wc -l")["stdout"].startswith("/mnt/data\n1000\n")
        made = run("echo hello > made.txt")["files"]
        assert [(file["path"], file["change"]) for file in made] == [("made.txt", "created")]

    def test_a_timeout_interrupts_and_keeps_the_state(self, run: Run) -> None:
        run("x=42")
        ended = run("echo begun; sleep 60", timeout=1)
        assert (ended["status"], ended["kernel_restarted"]) == ("timeout", False)
        assert ended["stdout"].startswith("begun")
        assert run("echo $x")["stdout"] == "42\n"


class TestDeno:
    """`deno jupyter`, which knows TCP only: a relay of the sandbox carries it over unix sockets."""

    @pytest.fixture
    def language(self) -> str:
        return "deno"

    def test_state_is_kept_and_errors_are_told(self, run: Run) -> None:
        assert run('let x: number = 42; console.log("hi")')["stdout"] == "hi\n"
        assert run("x + 1")["result"] == "43"
        ended = run('throw new Error("boo")')
        assert (ended["status"], ended["error"]["evalue"]) == ("error", "boo")

    def test_it_runs_in_the_sandbox(self, run: Run) -> None:
        assert run("Deno.cwd()")["result"] == '"/mnt/data"'
        made = run('await Deno.writeTextFile("made.txt", "hello")')["files"]
        assert [(file["path"], file["change"]) for file in made] == [("made.txt", "created")]
        assert run('await Deno.readTextFile("/etc/shadow")')["status"] == "error"
        assert run('await fetch("http://127.0.0.1:8889/healthz")')["status"] == "error"

    def test_a_timeout_ends_a_loop_and_keeps_the_state(self, run: Run) -> None:
        run("let x = 42")
        ended = run("while (true) {}", timeout=1)
        assert (ended["status"], ended["kernel_restarted"]) == ("timeout", False)
        assert run("x")["result"] == "42"

    def test_what_only_waits_ends_with_the_kernel(self, run: Run) -> None:
        code = 'console.log("begun"); await new Promise((done) => setTimeout(done, 60000))'
        ended = run(code, timeout=1)
        assert (ended["status"], ended["stdout"], ended["kernel_restarted"]) == ("timeout", "begun\n", True)
        after = run("1 + 1")
        assert after["result"] == "2", json.dumps(after)


TITLE = "日本語 中文简体繁體 한국어 😀🎉🚀❤️👍🏽🇯🇵✅⚠️"


@pytest.mark.parametrize(
    "style",
    [
        "",
        "plt.rcParams['font.family'] = 'serif'",
        "plt.style.use('ggplot')",
        "import seaborn; seaborn.set_theme()",
        "import matplotlib; matplotlib.use('agg')",
    ],
)
def test_figures_have_every_character(run: Run, style: str) -> None:
    """matplotlib warns of each character that is in none of its fonts."""
    code = (
        f"import warnings; warnings.simplefilter('error')\nimport matplotlib.pyplot as plt\n{style}\n"
        f"plt.plot([1, 2]); plt.title({TITLE!r}); plt.xlabel('größe', fontweight='bold')\n"
        "plt.savefig('f.svg'); plt.savefig('f.pdf'); plt.show()"
    )
    ended = run(code)
    assert (ended["status"], ended["stderr"]) == ("ok", ""), ended["error"]
    assert any("image/png" in output.get("data", {}) for output in ended["outputs"])
