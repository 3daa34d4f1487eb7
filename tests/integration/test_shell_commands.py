"""What the program of a ``!command`` prints: any amount, as it comes, in bounded memory."""

from collections.abc import Callable

import httpx
import pytest

Run = Callable[..., dict]


@pytest.fixture
def session_id(shared_session_id: str) -> str:
    return shared_session_id


@pytest.mark.parametrize(
    "code",
    ["!head -c 100000000 /dev/zero | tr '\\0' z", "for _ in range(1000): print('z' * 100_000, flush=True)"],
    ids=["command", "print"],
)
def test_the_kernel_keeps_nothing_of_what_it_has_shown(run: Run, code: str) -> None:
    """And so the time for it grows as the output does. (The service's part: `test_floods`.)"""
    peak = "import resource\nresource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024"
    run("!yes 2>&- | head -c 1000000")
    before = int(run(peak)["result"])
    ended = run(code, timeout=120)
    assert (ended["status"], ended["truncated"]) == ("ok", True)
    assert ended["dropped_bytes"] + ended["stdout"].count("z") >= 100_000_000
    assert int(run(peak)["result"]) - before < 50  # MiB


def test_a_slow_program_is_shown_meanwhile_and_a_character_in_two_pieces_is_one(
    api: httpx.Client, session_id: str
) -> None:
    wait = "until test -e go; do sleep 0.05; done"
    code = f"!printf 'costs \\342'; {wait}; printf '\\202\\254\\nthen'; exit 3\nprint(_exit_code)"
    made = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code, "background": True}).json()
    with api.stream("GET", f"/v1/runs/{made['id']}/events") as events:
        lines = events.iter_lines()
        assert any(line == "event: output" for line in lines)
        assert "costs" in next(lines)
        assert api.put(f"/v1/sessions/{session_id}/files/go", content=b"").is_success
        assert any(line == "event: run.completed" for line in lines)
    assert api.get(f"/v1/runs/{made['id']}").json()["stdout"] == "costs €\r\nthen3\n"


def test_no_character_of_much_output_is_cut(run: Run) -> None:
    assert run("!yes € 2>&- | head -n 100000")["stdout"] == "€\r\n" * 100_000


@pytest.mark.parametrize(
    ("command", "exit_code", "text"),
    [
        ("true", 0, ""),
        ("echo out; echo err >&2; exit 7", 7, "out\r\nerr\r\n"),
        ("kill -9 $$", -9, ""),
        ("sh -c 'kill -15 $$'; exit $?", -15, None),
        ("printf '\\377 \\342\\202'", 0, "\ufffd \ufffd"),
        ("sleep 4242 & echo the shell has ended", 0, "the shell has ended\r\n"),
        ("stty size; test -t 0 && test -t 1 && test -t 2 && echo a terminal", 0, "24 80\r\na terminal\r\n"),
    ],
)
def test_what_a_command_answers(run: Run, command: str, exit_code: int, text: str | None) -> None:
    ended = run(f"get_ipython().system({command!r})\n_exit_code")
    assert (ended["status"], ended["result"]) == ("ok", str(exit_code))
    assert text is None or ended["stdout"] == text
