"""ZeroMQ's frames as the gateway reads them: what comes, what is left out, what ends a connection."""

import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from interpreter.gateway_extension.framing import (
    GREETING,
    LEFT_OUT,
    MAX_COMMAND_BYTES,
    MAX_COMMANDS,
    MAX_PARTS,
    PART_BYTES,
    Framing,
    ProtocolError,
    cost,
    framed,
    left_out,
    ready,
)
from interpreter.gateway_extension.sharing import Unread

READY = ready(b"ROUTER", b"")
BEGIN = GREETING + READY


def wire(*messages: list[bytes]) -> bytes:
    return b"".join(map(framed, messages))


def read(framing: Framing, data: bytes, step: int = 10**9) -> list[list[bytes]]:
    """The messages that come, the data cut into pieces; what they are said to cost is right."""
    messages: list[list[bytes]] = []
    for i in range(0, len(data), step):
        for parts, told in framing.take(data[i : i + step]):
            assert told == cost(map(len, parts))
            messages.append(parts)
    return messages


@settings(deadline=None)
@example([[b"12345", b"", b""]], 2)
@given(st.lists(st.lists(st.binary(max_size=600), min_size=1, max_size=5), max_size=5), st.integers(1, 700))
def test_what_is_small_comes_as_it_is_however_it_is_cut(messages: list[list[bytes]], step: int) -> None:
    framing = Framing(100_000)
    assert read(framing, BEGIN + wire(*messages), step) == messages
    assert framing.is_greeted
    assert framing.is_ready


@settings(deadline=None)
@example(
    [[0, 0, 0, 0, 976, 3000, 0, 3000, 0, 0]], 1
)  # a part for whose note is no room, and small ones after it
@given(
    st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=40), min_size=1, max_size=4),
    st.integers(1, 9000),
)
def test_no_message_is_larger_than_allowed_and_those_after_it_are_whole(
    messages: list[list[int]], step: int
) -> None:
    sent = [[b"x" * size for size in sizes] for sizes in messages]
    passed = read(Framing(5000), BEGIN + wire(*sent, [b"end"]), step)
    assert max(cost(map(len, parts)) for parts in passed) <= 5000 + 2 * PART_BYTES
    assert passed[-1] == [b"end"]
    for parts, original in zip(passed, [*sent, [b"end"]], strict=True):
        assert parts == original or any(part.startswith(LEFT_OUT) for part in parts)


def test_what_stands_for_a_part_says_its_size() -> None:
    [[head, note, tail]] = read(Framing(10_000), BEGIN + wire([b"head", b"x" * 20_000, b"tail"]))
    assert (head, left_out(note), tail) == (b"head", 20_000, b"tail")


@pytest.mark.parametrize("part", [b"", b"{}", LEFT_OUT, LEFT_OUT + b"}", LEFT_OUT + b"-1}", b"x" * 100])
def test_other_parts_stand_for_nothing(part: bytes) -> None:
    assert left_out(part) == 0


def test_messages_may_have_many_parts_each() -> None:
    many = [b""] * MAX_PARTS
    assert read(Framing(10**9), BEGIN + wire(many, [b"x"], many)) == [many, [b"x"], many]


def test_a_frame_in_tiny_pieces_takes_no_more_memory_than_it_has_bytes() -> None:
    framing = Framing(10**9)
    framing.take(BEGIN + framed([b"x" * 200_000])[:9])
    tracemalloc.start()
    try:
        for _ in range(199_999):
            framing.take(b"x")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1_000_000
    assert framing.take(b"x") == [([b"x" * 200_000], 200_000 + PART_BYTES)]


HALVES = {
    "part": [b"head", b"x" * 80_000],
    "parts": [b"head", *[b"x" * 4000] * 20],
    "part-then-parts": [b"head", b"x" * 40_000, *[b"x" * 4000] * 10],
}


@pytest.mark.parametrize("kind", HALVES)
def test_of_unfinished_messages_the_largest_make_room(kind: str) -> None:
    """All of one connection or of many; what is whole counts no more, and small parts stay."""
    unfinished, sent = Unread(100_000), wire(HALVES[kind])
    little, first, *others = (Framing(10**6) for _ in range(11))
    assert read(little, BEGIN + wire([b"head", b"x" * 9000])[:-10]) == []
    unfinished.note(little, little.held)
    assert read(first, BEGIN + sent[:-10]) == []
    unfinished.note(first, first.held)
    for other in others:
        assert read(other, BEGIN + sent[:-10]) == []
        unfinished.note(other, other.held)
        assert sum(one.held for one in (little, first, *others)) < 170_000
    [[head, *rest]] = read(first, sent[-10:])
    assert head == b"head"
    assert any(map(left_out, rest))
    assert sum(left_out(part) or len(part) for part in rest) == sum(map(len, HALVES[kind][1:]))
    for whole in ([HALVES[kind]] * 3, [[b"y" * 90_000]]):  # and so are the messages after it
        assert read(first, wire(*whole)) == whole
        unfinished.note(first, first.held)
    assert read(others[-1], sent[-10:]) == [HALVES[kind]]
    assert read(little, b"x" * 10) == [[b"head", b"x" * 9000]]


def test_what_a_connection_that_is_over_held_counts_no_more() -> None:
    unfinished = Unread(100_000)
    for _ in range(3):
        framing = Framing(10**6)
        read(framing, BEGIN + wire([b"x" * 80_000])[:-1])
        unfinished.note(framing, framing.held)
        unfinished.forget(framing)
        unfinished.forget(framing)
        assert framing.held > 70_000


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x00",  # ZMTP 1
        GREETING[:10] + b"\x01" + GREETING[11:],  # ZMTP 2
        GREETING.replace(b"NULL", b"PLAI"),
        GREETING + b"\x05\x01x",  # a command with more to come
        GREETING + b"\x06" + (MAX_COMMAND_BYTES + 1).to_bytes(8, "big"),
        GREETING + READY * (MAX_COMMANDS + 1),
        BEGIN + b"\1\0" * (MAX_PARTS + 1),
        GREETING + b"\0\0",
        BEGIN + b"\1\0" + READY,
    ],
    ids=[
        "zmtp1",
        "zmtp2",
        "mechanism",
        "command-more",
        "command-size",
        "commands",
        "parts",
        "not-ready",
        "command-within",
    ],
)
def test_what_no_kernel_sends_ends_the_connection(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Framing(1000).take(data)
