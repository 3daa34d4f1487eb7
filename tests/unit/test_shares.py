"""What a token's clients hold together: taken, waited for in turn, given back whatever happens."""

import asyncio

import pytest

from interpreter.api.shares import Held, Shares
from interpreter.errors import UnavailableError


async def settle() -> None:
    """Let what can go on go on."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_room_is_given_in_turn_and_to_nobody_who_went_away() -> None:
    shares = Shares(10)
    assert shares.take("a", 8)
    first, second, third, fourth = (asyncio.ensure_future(shares.wait("a", size)) for size in (9, 1, 5, 1))
    await settle()
    assert not any(task.done() for task in (first, second, third, fourth))
    assert not shares.has_room("a", 1)
    assert shares.has_room("b", 100)
    await shares.wait("b", 1)
    first.cancel()
    await settle()
    assert [task.done() for task in (second, third, fourth)] == [True, False, False]
    shares.give_back("a", 8)
    third.cancel()  # it was given its room already, but not told yet
    await settle()
    assert fourth.done()
    shares.give_back("a", 2)
    assert shares.take("a", 100)


async def test_one_thing_alone_may_be_larger_than_the_limit() -> None:
    shares = Shares(10)
    held = Held(shares)
    assert held.take("a", 50)
    assert not shares.take("a", 1)
    with pytest.raises(UnavailableError, match="max_held_bytes"), shares.holding("a", 1):
        pass
    held.release()
    held.release()
    with shares.holding("a", 50):
        assert not shares.take("a", 1)
    assert shares.take("a", 1)
