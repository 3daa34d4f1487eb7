"""What a run has needed is given back when it is forgotten: by reference counting, without a search for cycles."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from runs_kit import Stack, stack
from scripted_gateway import Manner

from interpreter.kernels import kernel
from interpreter.runs import ActiveRun, manager


@pytest.fixture
async def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    monkeypatch.setattr(manager, "KEPT_RUNS", 0)
    monkeypatch.setattr(kernel, "KEPT_LISTENERS", 1)
    async with stack(tmp_path) as opened:
        yield opened


@pytest.fixture
def without_search() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_search")
@pytest.mark.parametrize(
    ("code", "manner"),
    [
        ("print text\nresult 1", Manner.GOOD),
        ("raise ValueError no", Manner.GOOD),
        ("display d x\nupdate d y", Manner.GOOD),
        ("print a\nwait gate", Manner.GOOD),
        ("print a\nwait gate", Manner.IGNORES_INTERRUPT),
        ("print a", Manner.DIES_MID_RUN),
    ],
    ids=["text", "error", "display", "timeout", "stuck", "death"],
)
async def test_a_forgotten_run_leaves_nothing_for_the_search_for_cycles(
    parts: Stack, code: str, manner: Manner
) -> None:
    session = await parts.session()
    await parts.run(session, "print first")
    parts.kernel_of(session).manner = manner
    active = await parts.submit(session, code, timeout=0.3)
    assert isinstance(active, ActiveRun)
    parts_of_it = [weakref.ref(part) for part in (active, active.log, active.folder)]
    await active.wait()
    async for _ in active.events():
        pass
    del active
    for _ in range(3):
        await parts.run(session, "print next")
    parts.seen.clear()
    await asyncio.sleep(0)
    assert [part() for part in parts_of_it] == [None] * len(parts_of_it)
