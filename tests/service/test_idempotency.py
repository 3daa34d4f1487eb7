"""The same Idempotency-Key never runs code twice: at once, later, and after a restart."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runs_kit import ADMIN, ALICE, BOB, Stack, stack

from interpreter.errors import ConflictError, RecordUnavailableError
from interpreter.models import RunRequest, RunStatus
from interpreter.runs import RecordedRun


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as opened:
        yield opened


async def test_the_same_key_at_once_is_one_run(parts: Stack) -> None:
    session = await parts.session()
    actives = await asyncio.gather(
        *(parts.submit(session, "print once", idempotency_key="k") for _ in range(10))
    )
    runs = [await parts.ended(active) for active in actives]
    assert len({run.id for run in runs}) == 1
    assert parts.gateway.codes == ["print once"]
    assert session.active_runs == 0


@pytest.mark.parametrize("change", [{"code": "print b"}, {"timeout": 5.0}, {"tool_call_id": "c"}])
async def test_the_same_key_for_something_else_is_a_conflict(parts: Stack, change: dict) -> None:
    session = await parts.session()
    await parts.run(session, "print a", idempotency_key="k")
    with pytest.raises(ConflictError) as caught:
        await parts.submit(session, **{"code": "print a", "idempotency_key": "k", **change})
    assert caught.value.code == "idempotency_key_reused"
    assert parts.gateway.codes == ["print a"]


async def test_tokens_do_not_share_keys(parts: Stack) -> None:
    mine, theirs = await parts.session(ALICE), await parts.session(BOB)
    await parts.run(mine, "print a", idempotency_key="k")
    active = await parts.runs.submit(BOB, theirs, RunRequest("print b", idempotency_key="k"))
    assert (await parts.ended(active)).folded.stdout == "b\n"


async def test_a_refused_run_leaves_its_key_free(parts: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await parts.session()

    async def refuse(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise RecordUnavailableError("The record can't be written.")

    monkeypatch.setattr(parts.recorder, "accept_run", refuse)
    with pytest.raises(RecordUnavailableError):
        await parts.submit(session, "print a", idempotency_key="k")
    run = await parts.run(session, "print other", idempotency_key="k")
    assert (run.status, run.number) == (RunStatus.OK, 1)


async def test_a_refused_one_off_leaves_its_key_free(parts: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise RecordUnavailableError("The record can't be written.")

    monkeypatch.setattr(parts.recorder, "accept_run", refuse)
    request = RunRequest("print a", idempotency_key="k")
    with pytest.raises(RecordUnavailableError):
        await parts.runs.submit_one_off(ALICE, request)
    run = await parts.ended(await parts.runs.submit_one_off(ALICE, request))
    assert run.folded.stdout == "a\n"


async def test_a_run_that_left_memory_is_found_in_the_record(
    parts: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interpreter.runs.manager.KEPT_RUNS", 1)
    session = await parts.session()
    first = await parts.run(session, "print a", idempotency_key="k")
    for _ in range(3):
        await parts.run(session, "print b")
    again = await parts.submit(session, "print a", idempotency_key="k")
    assert isinstance(again, RecordedRun)
    assert await parts.ended(again) == first
    events = [event async for event in again.events()]
    assert [event.kind for event in events] == ["run.started", "output", "run.completed"]
    assert events[-1].data == first.as_json()


async def test_a_key_is_known_after_a_restart_of_the_service(tmp_path: Path) -> None:
    async with stack(tmp_path) as parts:
        session = await parts.session()
        first = await parts.run(session, "print a", idempotency_key="k")
    async with stack(tmp_path, recover=True) as parts:
        again = parts.sessions.get(ALICE, session.id)
        assert await parts.run(again, "print a", idempotency_key="k") == first
        with pytest.raises(ConflictError):
            await parts.submit(again, "print b", idempotency_key="k")
        assert parts.gateway.codes == []
        assert again.active_runs == 0
        assert (await parts.run(again, "print b", idempotency_key="l")).number == 2


async def test_the_key_of_a_one_off_is_known_after_a_restart_of_the_service(tmp_path: Path) -> None:
    request = RunRequest("print a", idempotency_key="k")
    async with stack(tmp_path) as parts:
        actives = await asyncio.gather(*(parts.runs.submit_one_off(ALICE, request) for _ in range(5)))
        first, *others = [await parts.ended(active) for active in actives]
        assert {run.id for run in others} == {first.id}
        assert parts.gateway.codes == ["print a"]
    async with stack(tmp_path, recover=True) as parts:
        again = await parts.runs.submit_one_off(ALICE, request)
        assert await parts.ended(again) == first
        with pytest.raises(ConflictError):
            await parts.runs.submit_one_off(ALICE, RunRequest("print b", idempotency_key="k"))
        other = await parts.ended(await parts.runs.submit_one_off(BOB, request))
        assert other.id != first.id
        assert parts.gateway.codes == ["print a"]


async def test_a_key_in_use_is_not_forgotten_for_many_others(
    monkeypatch: pytest.MonkeyPatch, parts: Stack
) -> None:
    monkeypatch.setattr("interpreter.runs.keys.KEPT_KEYS", 2)
    session = await parts.session()
    for number in range(5):
        await parts.run(session, "print a", idempotency_key=f"k{number}")
    assert len(parts.runs._keys._keys) == 2
    await parts.run(session, "print a", idempotency_key="k0")  # the record knows it
    assert len(parts.gateway.codes) == 5


async def test_nobody_can_compute_the_id_of_a_one_off_from_its_key(tmp_path: Path) -> None:
    ids = set()
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        async with stack(tmp_path / folder) as parts:
            active = await parts.runs.submit_one_off(ALICE, RunRequest("print a", idempotency_key="k"))
            ids.add((await parts.ended(active)).session_id)
    assert len(ids) == 2, "a secret of the record goes into it"


async def test_an_admin_with_the_key_of_a_sessions_owner_gets_the_owners_run(parts: Stack) -> None:
    session = await parts.session()
    request = RunRequest("print once", idempotency_key="k")
    mine, other = await asyncio.gather(
        parts.runs.submit(ALICE, session, request), parts.runs.submit(ADMIN, session, request)
    )
    later = await parts.runs.submit(ADMIN, session, request)
    assert mine is other is later
    run = await parts.ended(mine)
    assert await parts.ended(await parts.runs.submit(ADMIN, session, request)) == run
    assert parts.gateway.codes == ["print once"]
    assert await parts.recorder.list_run_ids(session.id) == [run.id]
    assert (session.active_runs, session.run_count) == (0, 1)


async def test_an_admin_with_the_key_of_a_run_under_way_follows_it(parts: Stack) -> None:
    session = await parts.session()
    mine = await parts.submit(session, "sleep 30", idempotency_key="k")
    other = await parts.runs.submit(ADMIN, session, RunRequest("sleep 30", idempotency_key="k"))
    assert other is mine
    assert session.active_runs == 1
    await parts.runs.cancel(ALICE, mine.run.id)
    assert (await parts.ended(other)).status is RunStatus.CANCELLED
    assert len(parts.gateway.codes) <= 1
    assert session.active_runs == 0


async def test_a_key_that_was_pushed_out_while_its_run_is_in_memory_gives_that_run(
    monkeypatch: pytest.MonkeyPatch, parts: Stack
) -> None:
    monkeypatch.setattr("interpreter.runs.keys.KEPT_KEYS", 1)
    session = await parts.session()
    first = await parts.submit(session, "sleep 30", idempotency_key="k")
    second = await parts.submit(session, "print b", idempotency_key="l")
    assert [key for _, key in parts.runs._keys._keys] == ["l"]
    assert await parts.submit(session, "sleep 30", idempotency_key="k") is first
    assert session.active_runs == 2
    await parts.runs.cancel(ALICE, first.run.id)
    await parts.ended(second)
    again = await parts.submit(session, "sleep 30", idempotency_key="k")
    assert (await parts.ended(again)).id == first.run.id
    assert session.active_runs == 0
    assert parts.gateway.codes.count("print b") == 1
    assert parts.gateway.codes.count("sleep 30") <= 1
