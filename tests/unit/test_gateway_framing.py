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
