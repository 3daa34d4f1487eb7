"""Kernels that call a stopped run over while its work goes on: they take no more code, so they are restarted."""

from collections.abc import Callable, Iterator

import httpx
import pytest

Run = Callable[..., dict]

IN_THE_EVENT_LOOP = """\
import asyncio, signal, time
def go_on():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(1000)
print("begun", flush=True)
try:
    time.sleep(1000)
finally:
    asyncio.get_running_loop().call_soon(go_on)
"""
AT_THE_END = """\
import time
kernel = get_ipython().kernel
finish = kernel.finish_metadata  # which the kernel calls before it sends the reply
def finish_late(*args):
    kernel.finish_metadata = finish
    time.sleep(1000)
kernel.finish_metadata = finish_late
"""
STUCK = {  # name: kernelspec, code
    "a shell that ignores the interrupt": ("bash", 'trap "" INT; echo begun; sleep 1000'),
    "a shell that prompts and goes on": (
        "bash",
        "trap 'printf %s \"${PS1@P}\"' INT; echo begun; while :; do :; done",
    ),
    "a shell that has gone": ("bash", "echo begun; exec cat"),
    "a shell of the cell": ("python3", "import os\nos.system('trap \"\" INT; echo begun; sleep 1000')"),
    "the kernel's event loop": ("python3", IN_THE_EVENT_LOOP),
}
CANCELLED = {name: STUCK[name] for name in ("a shell that prompts and goes on", "the kernel's event loop")}
GOOD = {  # name: kernelspec, code that leaves a kernel which an interrupt sets free, code, its output
    "a shell": ("bash", "kept=42; sleep 1000", "echo $kept", "42\n"),
    "the cell's own shell": (
        "python3",
        '%%bash\ntrap "" INT TERM; echo begun; while :; do sleep 1000; done',
        "print(kept)",
        "42\n",
    ),
    "a process of the cell": (
        "python3",
        "import subprocess\nsubprocess.run(['bash', '-c', 'trap \"\" INT TERM; sleep 1000'])",
        "print(kept)",
        "42\n",
    ),
    "an end that the interrupt meets": ("python3", AT_THE_END, "print(kept)", "42\n"),
    "a loop of Deno's": ("deno", "while (true) {}", "console.log(kept)", "42\n"),
}
SETTING = {"bash": "kept=42", "python3": "kept = 42", "deno": "let kept = 42"}
NEXT = {"bash": "echo good", "python3": "print('good')"}


@pytest.fixture
def kernel_name(request: pytest.FixtureRequest) -> str:
    """That of the parameter ``case``."""
    case: tuple[str, ...] = request.getfixturevalue("case")
    return case[0]


@pytest.fixture
def session_id(api: httpx.Client, kernel_name: str) -> Iterator[str]:
    """A session of the case's language."""
    made = api.post("/v1/sessions", json={"kernel_name": kernel_name})
    assert made.status_code == 201, made.text
    yield made.json()["id"]
    api.delete(f"/v1/sessions/{made.json()['id']}")


def _is_good_again(run: Run, kernel_name: str) -> None:
    after = run(NEXT[kernel_name], timeout=30)
    assert (after["status"], after["stdout"], after["kernel_restarted"]) == ("ok", "good\n", True)
    assert any("did not stop when it was interrupted" in notice for notice in after["notices"])


@pytest.mark.parametrize("case", STUCK.values(), ids=STUCK)
def test_after_a_timeout(run: Run, case: tuple[str, str]) -> None:
    kernel_name, code = case
    ended = run(code, timeout=1)
    assert (ended["status"], ended["kernel_restarted"]) == ("timeout", True)
    assert "begun" in ended["stdout"]
    _is_good_again(run, kernel_name)


@pytest.mark.parametrize("case", CANCELLED.values(), ids=CANCELLED)
def test_after_a_cancellation(api: httpx.Client, session_id: str, run: Run, case: tuple[str, str]) -> None:
    kernel_name, code = case
    made = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code, "background": True}).json()
    with api.stream("GET", f"/v1/runs/{made['id']}/events") as events:
        lines = events.iter_lines()
        assert any(line == "event: output" for line in lines)
        assert "begun" in next(lines)
    ended = api.post(f"/v1/runs/{made['id']}/cancel").json()
    assert (ended["status"], ended["kernel_restarted"]) == ("cancelled", True)
    _is_good_again(run, kernel_name)


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD)
def test_what_an_interrupt_ends_costs_no_state(run: Run, case: tuple[str, str, str, str]) -> None:
    kernel_name, code, reading, output = case
    run(SETTING[kernel_name])
    ended = run(code, timeout=1)
    assert (ended["status"], ended["kernel_restarted"]) == ("timeout", False)
    after = run(reading)
    assert (after["status"], after["stdout"], after["kernel_restarted"]) == ("ok", output, False)
