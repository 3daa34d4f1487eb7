"""The fork server is kept alive by the gateway, and the service tells people how it is."""

import logging
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from interpreter.gateway_extension import fork_server
from interpreter.gateway_extension.fork_server import ForkServerKeeper, ForkServerState
from interpreter.gateway_extension.sandbox.fork_command import IMPORTS, ForkCommand, Origin
from interpreter.gateway_extension.sandbox.processes import cpu_seconds
from interpreter.gateway_extension.sandbox.zygote import ZygoteError, is_working
from interpreter.kernels.fork_server import NoForkServer, make_fork_server, sentence
from interpreter.settings import Settings

ORIGIN = Origin("/usr/bin/python3", (), ())
PYTHON = ["/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"]


class FakeZygote:
    """Ends when it is told to."""

    missing = ("pandas",)

    def __init__(self) -> None:
        self.end: Callable[[int], None] = lambda _: None

    def call_at_end(self, mourner: Callable[[int], None]) -> None:
        self.end = mourner


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> ForkServerKeeper:
    monkeypatch.setattr(fork_server, "_find", lambda _: (ORIGIN, Path("/z")))
    monkeypatch.setattr(fork_server, "RETRY_AFTER", 0.0)
    return ForkServerKeeper(logging.getLogger(__name__))


async def test_it_is_started_again_when_it_does_not_start_and_when_it_ends(
    keeper: ForkServerKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    zygotes = [FakeZygote(), FakeZygote()]
    answers = [ZygoteError("no numpy"), *zygotes]

    def find(origin: Origin, folder: Path) -> FakeZygote:
        answer = answers.pop(0)
        if isinstance(answer, ZygoteError):
            raise answer
        return answer

    monkeypatch.setattr(fork_server, "find_zygote", find)
    keeper.start(None)
    seen = [await keeper.state_after(0, 5)]
    while seen[-1].state != "on":
        seen.append(await keeper.state_after(seen[-1].number, 5))
    zygotes[0].end(-9)
    while len(seen) < 4:
        seen.append(await keeper.state_after(seen[-1].number, 5))
    await keeper.aclose()
    assert seen == [
        ForkServerState(1, "failed", "no numpy"),
        ForkServerState(2, "on", missing=("pandas",)),
        ForkServerState(3, "starting", "it was killed by signal 9"),
        ForkServerState(4, "on", missing=("pandas",)),
    ]


@pytest.mark.parametrize("error", [ZygoteError("not of that form"), ValueError("a bad uid_range"), None])
async def test_where_it_can_not_be_it_says_why_at_once(
    keeper: ForkServerKeeper, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    def find(_: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(fork_server, "_find", find)
    keeper.start(None)
    state = await keeper.state_after(0, 5)
    await keeper.aclose()
    assert (state.state, state.reason) == (("failed", str(error)) if error else ("off", ""))


async def test_who_asks_for_the_next_state_gets_the_same_one_in_the_end(keeper: ForkServerKeeper) -> None:
    assert await keeper.state_after(0, 0.01) == ForkServerState()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (ForkServerState(1, "on"), "kernels are forked from a process that has imported numpy, pandas."),
        (ForkServerState(1, "on", missing=("pandas",)), "imported numpy. Not installed for kernels: pandas."),
        (ForkServerState(1, "failed", "it has no numpy"), "started the slow way: it has no numpy."),
        (ForkServerState(1, "starting", "it ended with code 1"), "started again: it ended with code 1."),
        (ForkServerState(1, "off"), "is off"),
    ],
    ids=["on", "missing", "failed", "starting", "off"],
)
def test_people_are_told(state: ForkServerState, said: str) -> None:
    told = {name: getattr(state, name) for name in ForkServerState.__dataclass_fields__}
    assert said in sentence(told, ("numpy", "pandas"))


async def test_where_there_can_be_none_readiness_says_so_if_one_was_asked_for() -> None:
    asked = make_fork_server(Settings(fork_server=True), None, sandboxed=False)
    assert isinstance(asked, NoForkServer)
    assert (await asked.readiness["fork_server"]())[0] is True
    assert make_fork_server(Settings(), None, sandboxed=False).readiness == {}


def test_the_imports_of_a_kernelspec_come_with_what_they_need_when_they_are_used() -> None:
    found = ForkCommand.find(PYTHON, {}, IMPORTS)
    assert found is not None
    assert "matplotlib.backends.backend_agg" in found.origin.imports
    none = ForkCommand.find(PYTHON, {}, [])
    assert none is not None
    assert not [name for name in none.origin.imports if name.startswith(("numpy", "pandas", "matplotlib"))]
    assert "ipykernel.kernelapp" in none.origin.imports


def test_a_process_that_only_waits_does_not_work() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as waiting:
        assert is_working(os.getpid(), cpu_seconds([os.getpid()]))
        end = time.monotonic() + 10
        while is_working(waiting.pid, cpu_seconds([waiting.pid])):  # until it is there
            assert time.monotonic() < end
        assert is_working(waiting.pid, before=-1.0)  # it has, since
