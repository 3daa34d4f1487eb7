"""Whose large message is read next."""

import asyncio

import pytest

from interpreter.kernels.turns import COSTLY, MAX_DEBT, MAX_SHARED_PEACE, SHARE, Debts, Turns

HEAVY = [f"heavy {number}" for number in range(10)]


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def waiting(turns: Turns, order: list[str], kernel_id: str) -> "asyncio.Task[None]":
    """A kernel that waits, and is in ``order`` once it has its turn."""

    async def wait() -> None:
        await turns.begin(kernel_id)
        order.append(kernel_id)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)  # it has begun to wait
    return task


async def settled() -> None:
    for _ in range(3):  # a turn's future, its task, and what that does
        await asyncio.sleep(0)


async def spend(turns: Turns, kernel_id: str, seconds: float) -> None:
    await turns.begin(kernel_id)
    turns.end(kernel_id, seconds)


def test_a_debt_is_what_goes_beyond_a_share_and_is_forgotten() -> None:
    debts = Debts()
    debts.add("a", COSTLY, 0.0)
    assert debts.of("a", 0.0) == 0
    debts.add("a", COSTLY, 0.0)
    assert debts.of("a", 0.0) == pytest.approx(2 * COSTLY)
    assert debts.of("a", COSTLY / SHARE + 0.01) == 0
    debts.add("a", 100.0, 1000.0)
    assert debts.of("a", 1000.0) == MAX_DEBT
    assert debts.of("a", 1000.0 + MAX_DEBT / SHARE) == debts.of("b", 1000.0) == 0


async def test_who_owes_nothing_waits_for_one_message_only() -> None:
    clock, order = Clock(), list[str]()
    turns = Turns(clock)
    for kernel_id in HEAVY:
        await spend(turns, kernel_id, 1.0)
    clock.now += MAX_SHARED_PEACE
    tasks = [await waiting(turns, order, kernel_id) for kernel_id in HEAVY]
    tasks.append(await waiting(turns, order, "normal"))
    assert order == HEAVY[:1]
    turns.end(HEAVY[0], 1.0)  # peace begins, for those who owe
    await settled()
    assert order == [HEAVY[0], "normal"]
    turns.end("normal", COSTLY / 2)
    await settled()
    assert order == [HEAVY[0], "normal"]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_while_others_wait_each_turn_is_followed_by_as_much_rest_for_all() -> None:
    """Many that begin together owe nothing yet, and have half of the time together."""
    clock, order = Clock(), list[str]()
    turns = Turns(clock)
    tasks = [await waiting(turns, order, kernel_id) for kernel_id in HEAVY[:3]]
    for number, kernel_id in enumerate(HEAVY[:2]):
        turns.end(kernel_id, COSTLY / 2)
        await settled()
        assert order == HEAVY[: number + 1]
        clock.now += COSTLY / 2
        async with asyncio.timeout(60):
            await tasks[number + 1]
        assert order == HEAVY[: number + 2]
    turns.end(HEAVY[2], COSTLY / 2)
    tasks.append(await waiting(turns, order, "alone"))
    assert order == [*HEAVY[:3], "alone"]
    await asyncio.wait(tasks)


async def test_those_who_owe_have_their_turns_in_a_circle() -> None:
    clock, order = Clock(), list[str]()
    turns = Turns(clock)
    for kernel_id in HEAVY[:3]:
        await spend(turns, kernel_id, MAX_DEBT)
    clock.now += MAX_SHARED_PEACE
    tasks = [await waiting(turns, order, kernel_id) for kernel_id in HEAVY[:3]]
    for _ in range(6):
        await settled()
        had = order[-1]
        clock.now += 1.0
        tasks.append(await waiting(turns, order, had))  # its next message
        turns.end(had, 0.0)
    await settled()
    assert order == HEAVY[:3] + HEAVY[:3] + HEAVY[:1]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_who_owes_less_comes_first() -> None:
    clock, order = Clock(), list[str]()
    turns = Turns(clock)
    await spend(turns, "much", 1.0)
    await spend(turns, "little", 0.1)
    await turns.begin("normal")
    clock.now += MAX_SHARED_PEACE
    tasks = [await waiting(turns, order, kernel_id) for kernel_id in ("much", "little")]
    turns.end("normal", 0.0)
    await settled()
    assert order == ["little"]
    turns.end("little", 0.0)
    await asyncio.wait(tasks)
    assert order == ["little", "much"]


def test_what_was_taken_without_a_turn_is_owed_and_forgotten() -> None:
    clock = Clock()
    turns = Turns(clock)
    turns.charge("a", COSTLY)
    assert not turns.owes("a")
    turns.charge("a", COSTLY)
    assert turns.owes("a")
    assert not turns.owes("b")
    clock.now += COSTLY / SHARE + 0.01
    assert not turns.owes("a")


async def test_peace_ends_by_itself() -> None:
    turns = Turns()
    await spend(turns, "heavy", 2 * COSTLY)
    async with asyncio.timeout(60):
        await spend(turns, "heavy", 0.0)


async def test_many_messages_that_cost_little_each_make_a_debt() -> None:
    clock, order = Clock(), list[str]()
    turns = Turns(clock)
    for _ in range(3):
        await spend(turns, "steady", COSTLY)
        clock.now += COSTLY
    await turns.begin("normal")
    tasks = [await waiting(turns, order, kernel_id) for kernel_id in ("steady", "other")]
    turns.end("normal", 0.0)
    await settled()
    assert order == ["other"]
    turns.end("other", 0.0)
    await asyncio.wait(tasks)


@pytest.mark.parametrize("granted", [True, False])
async def test_who_leaves_keeps_no_turn(granted: bool) -> None:
    order = list[str]()
    turns = Turns(Clock())
    await turns.begin("first")
    leaving = await waiting(turns, order, "leaving")
    staying = await waiting(turns, order, "staying")
    if granted:
        turns.end("first", 0.0)
        leaving.cancel()
    else:
        leaving.cancel()
        turns.end("first", 0.0)  # before the one who leaves notices
    async with asyncio.timeout(60):
        await asyncio.wait({leaving, staying})
    assert leaving.cancelled()
    assert order == ["staying"]
