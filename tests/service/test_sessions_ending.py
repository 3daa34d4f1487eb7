"""A session that is deleted while its next kernel starts: neither kernel nor folder stays."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runs_kit import ALICE, BOB, Stack, stack, within

from interpreter.errors import NotFoundError, SessionGoneError
from interpreter.models import Principal, Role, RunStatus, is_id
from interpreter.sessions import Session, manager


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as opened:
        yield opened


async def replacing(parts: Stack, op: str) -> Session:
    """A session whose kernel has died, and whose next one waits at this operation."""
    session = await parts.session()
    parts.gateway.hold(op)
    assert (await parts.run(session, "die")).status is RunStatus.KERNEL_DIED
    await parts.gateway.reached(op)
    return session


def living(parts: Stack) -> list[str]:
    return [kernel_id for kernel_id, kernel in parts.gateway.kernels.items() if kernel.alive]


def folders(parts: Stack) -> list[str]:
    return [path.name for path in parts.workspaces.root.iterdir() if is_id(path.name)]


@pytest.mark.parametrize("op", ["start", "websocket"])
async def test_deleting_waits_for_a_kernel_that_is_being_started(parts: Stack, op: str) -> None:
    session = await replacing(parts, op)
    deleting = asyncio.create_task(parts.sessions.delete(ALICE, session.id))
    await asyncio.sleep(0)
    parts.gateway.release(op)
    await deleting
    assert living(parts) == []
    assert folders(parts) == []


async def test_a_session_whose_end_takes_long_is_gone_for_its_clients_and_ends_behind_them(
    parts: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "END_PATIENCE", 0.01)
    session = await parts.session()
    parts.gateway.hold("delete")
    async with asyncio.timeout(20):
        await parts.sessions.delete(ALICE, session.id)
    assert living(parts) != []
    with pytest.raises(SessionGoneError):
        parts.sessions.get(ALICE, session.id)
    parts.gateway.release("delete")
    await parts.gateway.until(lambda: living(parts) == [])
    monkeypatch.setattr(manager, "END_PATIENCE", 20.0)
    await parts.sessions.end(session, "deleted")
    assert folders(parts) == []


async def test_who_may_review_lists_the_runs_of_others_as_long_as_their_session_lives(parts: Stack) -> None:
    session = await parts.session()
    run = await parts.run(session, "print a")
    reviewer = Principal("tok_reviewer", "reviewer", Role.REVIEW)
    assert await parts.runs.list_ids(reviewer, session.id) == [run.id]
    with pytest.raises(NotFoundError):
        await parts.runs.list_ids(BOB, session.id)
    await parts.sessions.delete(ALICE, session.id)
    with pytest.raises(SessionGoneError):
        await parts.runs.list_ids(reviewer, session.id)


async def test_deleting_does_not_wait_for_ever(parts: Stack) -> None:
    session = await replacing(parts, "start")
    with within(1.0):
        await parts.sessions.delete(ALICE, session.id)
    assert folders(parts) == []
    parts.gateway.release("start")
    await parts.gateway.until(lambda: not living(parts))
