"""ZeroMQ's frames on their way to the gateway: what passes, what is left out, what ends a connection."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from interpreter.gateway_extension.framing import (
    LEFT_OUT,
    MAX_COMMAND_BYTES,
    MAX_COMMANDS,
    MAX_PARTS,
    PART_BYTES,
    Framing,
    ProtocolError,
    cost,
    left_out,
)

GREETING = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" * 32
READY = b"\x04\x05\x05READY"[:1] + b"\x06" + b"\x05READY"


def frame(data: bytes, *, more: bool = False) -> bytes:
    if len(data) < 256:
        return bytes((more, len(data))) + data
    return bytes((2 | more,)) + len(data).to_bytes(8, "big") + data


def wire(*messages: list[bytes]) -> bytes:
    return b"".join(
        frame(part, more=i < len(parts) - 1) for parts in messages for i, part in enumerate(parts)
    )


def read(data: bytes) -> list[list[bytes]]:
    """The messages in what was passed on, greeting and command apart."""
    assert data.startswith(GREETING + READY)
    data = data[len(GREETING + READY) :]
    messages: list[list[bytes]] = [[]]
    while data:
        long = data[0] & 2
        size = int.from_bytes(data[1 : 9 if long else 2], "big")
        start = 9 if long else 2
        messages[-1].append(data[start : start + size])
        assert len(messages[-1][-1]) == size
        if not data[0] & 1:
            messages.append([])
        data = data[start + size :]
    assert messages.pop() == []
    return messages


@settings(deadline=None)
@example([[b"12345", b"", b""]], 2)  # what is left of a head is as long as what came
@given(st.lists(st.lists(st.binary(max_size=600), min_size=1, max_size=5), max_size=5), st.integers(1, 700))
def test_what_is_small_passes_as_it_is_however_it_is_cut(messages: list[list[bytes]], step: int) -> None:
    costs: list[int] = []
    framing = Framing(100_000, costs.append)
    data = GREETING + READY + wire(*messages)
    assert b"".join(framing.passed(data[i : i + step]) for i in range(0, len(data), step)) == data
    assert costs == [cost(map(len, parts)) for parts in messages]


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
    costs: list[int] = []
    framing = Framing(5000, costs.append)
    sent = [[b"x" * size for size in sizes] for sizes in messages]
    data = GREETING + READY + wire(*sent, [b"end"])
    passed = read(b"".join(framing.passed(data[i : i + step]) for i in range(0, len(data), step)))
    assert costs == [cost(map(len, parts)) for parts in passed]
    assert max(costs) <= 5000 + 2 * PART_BYTES
    assert passed[-1] == [b"end"]
    for parts, original in zip(passed, [*sent, [b"end"]], strict=True):
        assert parts == original or any(part.startswith(LEFT_OUT) for part in parts)


def test_what_stands_for_a_part_says_its_size() -> None:
    framing = Framing(10_000, lambda size: None)
    passed = framing.passed(GREETING + READY + wire([b"head", b"x" * 20_000, b"tail"]))
    [[head, note, tail]] = read(passed)
    assert (head, left_out(note), tail) == (b"head", 20_000, b"tail")


@pytest.mark.parametrize("part", [b"", b"{}", LEFT_OUT, LEFT_OUT + b"}", LEFT_OUT + b"-1}", b"x" * 100])
def test_other_parts_stand_for_nothing(part: bytes) -> None:
    assert left_out(part) == 0


def test_messages_may_have_many_parts_each() -> None:
    many = [b""] * MAX_PARTS
    framing = Framing(10**9, lambda size: None)
    assert read(framing.passed(GREETING + READY + wire(many, [b"x"], many))) == [many, [b"x"], many]


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x00",  # ZMTP 1
        GREETING[:10] + b"\x01" + GREETING[11:],  # ZMTP 2
        GREETING.replace(b"NULL", b"PLAI"),
        GREETING + b"\x05\x01x",  # a command with more to come
        GREETING + b"\x06" + (MAX_COMMAND_BYTES + 1).to_bytes(8, "big"),
        GREETING + READY * (MAX_COMMANDS + 1),
        GREETING + READY + b"\1\0" * (MAX_PARTS + 1),
    ],
    ids=["zmtp1", "zmtp2", "mechanism", "command-more", "command-size", "commands", "parts"],
)
def test_what_no_kernel_sends_ends_the_connection(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Framing(1000, lambda size: None).passed(data)
