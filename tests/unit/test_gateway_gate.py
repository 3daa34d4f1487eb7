"""When a kernel may send more to the gateway: how much waits, and what took long is followed by a rest."""

import asyncio
from collections.abc import Iterator

import pytest

from interpreter.gateway_extension.gate import (
    CAREFUL_CHUNK,
    CHUNK,
    COSTLY,
    COSTLY_FRAMES,
    MANY_PARTS,
    MAX_PEACE,
    MESSAGE_BYTES,
    PEACE,
    READ_RATE,
    Debt,
    Gate,
    Peace,
)

MIB = 1024**2


class Opened(asyncio.Event):
    """Set when a gate opens."""


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
async def gate(opened: Opened) -> "Iterator[Gate]":  # type: ignore[misc]
    one = Gate(MIB, opened.set)
    yield one
    one.close()


async def test_a_kernel_waits_until_what_it_sent_was_taken(gate: Gate, opened: Opened) -> None:
    half = MIB // 2 - MESSAGE_BYTES
    gate.came(half)
    gate.came(half - 1)
    assert gate.is_open
    gate.came(half)
    assert not gate.is_open
    gate.took(half - 1)
    assert not gate.is_open
    assert not opened.is_set()
    gate.took(half)
    assert gate.is_open
    assert opened.is_set()


async def test_of_tiny_messages_not_too_many_wait(gate: Gate) -> None:
    for _ in range(MIB // MESSAGE_BYTES):
        assert gate.is_open
        gate.came(0)
    assert not gate.is_open


async def test_a_gate_that_is_held_is_closed(gate: Gate, opened: Opened) -> None:
    gate.hold(True)
    assert not gate.is_open
    assert not opened.is_set()
    gate.hold(False)
    assert gate.is_open
    assert opened.is_set()


async def test_a_costly_message_counts_as_waiting_for_a_while(gate: Gate, opened: Opened) -> None:
    gate.came(2 * MIB)
    gate.took(MIB, seconds=2 * COSTLY)
    gate.took(1, seconds=COSTLY)
    assert not gate.is_open
    async with asyncio.timeout(PEACE * 2 * COSTLY + 10):
        await opened.wait()
    assert gate.is_open


async def test_frames_that_take_long_are_followed_by_a_rest(gate: Gate, opened: Opened) -> None:
    gate.read(COSTLY_FRAMES)
    assert gate.is_open
    assert gate.chunk == CHUNK
    gate.read(0.02)
    assert not gate.is_open
    assert gate.chunk == CAREFUL_CHUNK
    async with asyncio.timeout(10):
        await opened.wait()
    assert gate.is_open
    assert gate.chunk == CAREFUL_CHUNK
    gate.start_anew()
    assert gate.chunk == CHUNK


async def test_a_message_of_many_parts_is_followed_by_a_rest(gate: Gate) -> None:
    gate.took(0, 2 * COSTLY_FRAMES, MANY_PARTS)
    assert gate.is_open
    gate.took(0, 2 * COSTLY_FRAMES, MANY_PARTS + 1)
    assert not gate.is_open


def rest_of(gate: Gate, seconds: float) -> tuple[float, float]:
    """The least and the most by which the gate's rest grows when it reads for so many seconds."""
    loop = asyncio.get_running_loop()
    early, before = loop.time(), gate.rests_until
    gate.read(seconds)
    late, after = loop.time(), gate.rests_until
    rounding = 1e-6
    return after - max(before, late) - rounding, after - max(before, early) + rounding


async def test_gates_that_rest_together_rest_longer(gate: Gate, opened: Opened) -> None:
    """All of them get their part of the time, not each."""
    second, third, fourth = (Gate(MIB, lambda: None) for _ in range(3))
    rests = [rest_of(one, 0.01) for one in (gate, second, third)]
    second.close()
    rests.append(rest_of(third, 0.01))  # what it had said before its rest
    for (least, most), resting in zip(rests, (1, 2, 3, 2), strict=True):
        assert least <= PEACE * 0.01 * resting <= most
    least, most = rest_of(fourth, 60)
    assert least <= MAX_PEACE <= most
    third.close()
    fourth.close()
    async with asyncio.timeout(10):
        await opened.wait()
    least, most = rest_of(gate, 0.01)
    assert least <= PEACE * 0.01 <= most


async def test_a_gate_that_is_closed_for_good_tells_nothing_more(opened: Opened) -> None:
    gate = Gate(MIB, opened.set)
    gate.came(2 * MIB)
    gate.took(MIB, seconds=2 * COSTLY)
    gate.read(0.02)
    gate.close()
    gate.close()
    gate.took(MIB)
    gate.read(0.02)
    gate.hold(False)
    assert not opened.is_set()


@pytest.mark.parametrize(("size", "seconds"), [(MIB, 0.0), (16 * MIB, 0.0), (MIB, 0.2)])
def test_who_sends_many_large_messages_lets_others_go_first(size: int, seconds: float) -> None:
    peace, heavy, light = Peace(), Debt(), Debt()
    took = max(seconds, size / READ_RATE)
    peace.took(heavy, size, seconds, 1.0)
    assert peace.ends_in(light, 1.0) == pytest.approx(took)
    assert peace.ends_in(heavy, 1.0) > 1.05 * took
    peace.took(light, MIB, 0.0, heavy.until)  # long after: nobody owes for ever
    assert peace.ends_in(heavy, heavy.until) < peace.ends_in(light, heavy.until)
