"""Output after the end of a run, and displays that later runs update."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runs_kit import ALICE, Stack, misbehaving, stack, works
from scripted_gateway import Manner


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as opened:
        yield opened


async def test_late_output_belongs_to_the_run_that_printed_it(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.LATE_OUTPUT)
    first = await parts.submit(session, "print first")
    assert "first" in (await first.wait()).folded.stdout
    second = await parts.submit(session, "print second")
    assert "second" in (await second.wait()).folded.stdout
    third = await parts.submit(session, "print third")
    await third.wait()

    async def shown(active) -> str:
        return (await parts.runs.get(ALICE, active.run.id)).folded.stdout

    while "later" not in await shown(second):
        await parts.submit(session, "print again")
    assert await shown(first) == "first\nlate\nlater\n"
    assert await shown(second) == "second\nlate\nlater\n"


async def test_output_that_the_idle_overtook_is_no_late_output(parts: Stack) -> None:
    session = await parts.session(kernel_name=Manner.IDLE_OVERTAKES)
    ended = await parts.run(session, "print first\nlate second")
    (output,) = ended.folded.outputs  # a late one would stand alone
    assert output["text"] == "first\nsecond\n"


async def test_late_output_is_put_on_record_marked_late(tmp_path: Path) -> None:
    async with stack(tmp_path) as parts:
        session = await parts.session()
        run = await parts.run(session, "print first\nlater after")
        await (await parts.submit(session, "print second")).wait()
    async with stack(tmp_path, recover=True) as parts:
        recorded = await parts.recorder.get_run(run.id)
        assert recorded.folded.stdout == "first\nafter\n"
        notebook = (await parts.recorder.notebook(session.id)).decode()
        assert '"late_outputs": [1]' in notebook


async def test_a_display_of_an_earlier_run_is_updated_in_that_run(parts: Stack) -> None:
    session = await parts.session()
    first = await parts.submit(session, "display d old")
    await first.wait()
    second = await parts.run(session, "update d new")
    assert second.folded.outputs == ()
    run = await parts.runs.get(ALICE, first.run.id)
    assert run.folded.outputs[0]["data"] == {"text/plain": "new"}


async def test_a_display_of_a_run_that_left_memory_is_updated_in_the_record(
    parts: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interpreter.runs.manager.KEPT_RUNS", 1)
    session = await parts.session()
    first = await parts.run(session, "display d old\ndisplay e same\nprint text")
    for _ in range(10):
        await parts.run(session, "print more")
    await parts.run(session, "update d new")
    await parts.run(session, "update d newest")
    parts.runs._amendments.flush()  # as at the end of the service
    await parts.runs._background.settle()
    run = await parts.runs.get(ALICE, first.id)
    assert [output.get("data") for output in run.folded.outputs] == [
        {"text/plain": "newest"},
        {"text/plain": "same"},
        None,
    ]
    assert run.folded.stdout == "text\n"
    verification = await parts.recorder.verify(session.id)
    assert verification.valid


async def test_late_output_of_a_run_that_left_memory_stays_marked_when_its_display_is_updated(
    parts: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await parts.session()
    first = await parts.run(session, "display d old\nlater after")
    await (await parts.submit(session, "print second")).wait()
    while (await parts.recorder.get_recorded(first.id)).late == ():
        await asyncio.sleep(0)
    monkeypatch.setattr("interpreter.runs.manager.KEPT_RUNS", 1)
    for _ in range(10):
        await parts.run(session, "print more")
    await parts.run(session, "update d new")
    parts.runs._amendments.flush()  # as at the end of the service
    await parts.runs._background.settle()
    recorded = await parts.recorder.get_recorded(first.id)
    assert recorded.run.folded.outputs[0]["data"] == {"text/plain": "new"}
    assert recorded.late == (1,)


async def test_output_of_a_kernel_that_will_not_stop_does_not_reach_its_ended_run(parts: Stack) -> None:
    session = await misbehaving(parts, Manner.IGNORES_INTERRUPT)
    kernel = parts.kernel_of(session)
    parts.gateway.hold("restart")
    run = await parts.run(session, "wait gate\nprint too late", timeout=0.1)
    await parts.gateway.reached("restart")
    parts.gateway.release("gate")
    while kernel.execution_state != "idle":
        await asyncio.sleep(0)
    parts.gateway.release("restart")
    kernel.manner = Manner.GOOD
    await works(parts, session, fresh=True)
    assert (await parts.runs.get(ALICE, run.id)).folded.stdout == ""
