"""The wait for the end of a request: nearly all runs end in it, and what it waits for may come in any order."""

import asyncio
from collections.abc import Callable

import pytest

from interpreter.kernels.execution import Execution
from interpreter.messages import Message

LONG = 600.0  # seconds that no test takes


class Kernel:
    """One that is well."""

    counts_all = True
    speaks_after_idle = False

    def is_origin(self, message: Message) -> bool:
        return True

    def raise_if_dead(self) -> None: ...

    async def resync(self) -> None: ...

    async def check_alive(self) -> None: ...


REPLY = Message("shell", "execute_reply", "1", "run", {"status": "ok"})
IDLE = Message("iopub", "status", "2", "run", {"execution_state": "idle"})


@pytest.fixture
async def execution() -> Execution:
    return Execution(Kernel(), "run", lambda _: None)


@pytest.fixture
async def unless() -> "asyncio.Future[str]":
    return asyncio.get_running_loop().create_future()


def end(execution: Execution) -> None:
    execution.receive(REPLY)
    execution.receive(IDLE)


AFTER: dict[str, tuple[Callable[[Execution, "asyncio.Future[str]"], object], bool]] = {
    "reply and idle": (lambda execution, _: end(execution), True),
    "idle and reply": (lambda execution, _: (execution.receive(IDLE), execution.receive(REPLY)), True),
    "lost messages": (lambda execution, _: execution.finish_incomplete(), False),
    "a dead kernel": (lambda execution, _: execution.wake(), False),
    "a stop": (lambda _, unless: unless.set_result("stop"), False),
    "an end and a stop": (lambda execution, unless: (end(execution), unless.set_result("stop")), True),
    "a stop and an end": (lambda execution, unless: (unless.set_result("stop"), end(execution)), True),
}


@pytest.mark.parametrize("begun", [True, False], ids=["meanwhile", "before"])
@pytest.mark.parametrize(("happens", "is_over"), AFTER.values(), ids=AFTER)
async def test_it_ends_with_whatever_comes_first(
    execution: Execution,
    unless: "asyncio.Future[str]",
    happens: Callable[[Execution, "asyncio.Future[str]"], object],
    is_over: bool,
    begun: bool,
) -> None:
    waiting = asyncio.ensure_future(execution.is_over_within(LONG, unless=unless))
    if begun:
        await asyncio.sleep(0)
        assert not waiting.done()
    happens(execution, unless)
    async with asyncio.timeout(30):
        assert await waiting is is_over


@pytest.mark.parametrize("half", [REPLY, IDLE, None], ids=["reply", "idle", "nothing"])
async def test_half_of_an_end_is_none(
    execution: Execution, unless: "asyncio.Future[str]", half: Message | None
) -> None:
    if half is not None:
        execution.receive(half)
    async with asyncio.timeout(30):
        assert not await execution.is_over_within(0.01, unless=unless)
    end(execution)
    assert await execution.is_over_within(LONG, unless=unless)


async def test_of_a_kernel_that_speaks_after_its_idle_more_may_come(
    execution: Execution, unless: "asyncio.Future[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kernel, "speaks_after_idle", True)
    end(execution)
    assert not await execution.is_over_within(LONG, unless=unless)


async def test_it_leaves_nothing_behind(execution: Execution, unless: "asyncio.Future[str]") -> None:
    """The stop lives on as long as the run does, and so would all that hangs on it."""
    timers = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", lambda *args: timers.append(call_later(*args)) or timers[-1])
        for _ in range(2):
            waiting = asyncio.ensure_future(execution.is_over_within(LONG, unless=unless))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    assert len(timers) == 2
    assert all(timer.cancelled() for timer in timers)
    assert not unless._callbacks
    end(execution)  # and nobody is woken who is not there
