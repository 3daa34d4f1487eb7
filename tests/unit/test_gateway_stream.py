"""A kernel's socket on the gateway's event loop: what is sent goes at once, what comes is heard."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq
from tornado.ioloop import IOLoop

from interpreter.gateway_extension.gate import MANY_PARTS, Share, connect_through_gate, gate_of
from interpreter.gateway_extension.stream import MAX_AT_ONCE, GatedStream

TIMEOUT = 20.0


@pytest.fixture
def context() -> Iterator["zmq.Context[Any]"]:
    with zmq.Context() as context:
        yield context


def pair(context: "zmq.Context[Any]") -> tuple["zmq.Socket[Any]", "zmq.Socket[Any]"]:
    near, far = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    for socket in (near, far):
        socket.linger = 0
    far.bind("inproc://kernel")
    near.connect("inproc://kernel")
    far.rcvtimeo = int(TIMEOUT * 1000)
    return near, far


async def test_what_is_sent_goes_at_once_and_in_order(context: "zmq.Context[Any]") -> None:
    near, far = pair(context)
    with closing(far), closing(GatedStream(near, IOLoop.current())) as stream:
        for number in range(3):
            stream.send_multipart([b"part", b"%d" % number])
        assert [far.recv_multipart() for _ in range(3)] == [[b"part", b"%d" % number] for number in range(3)]


async def test_what_can_not_be_sent_yet_is_sent_later_and_in_order(context: "zmq.Context[Any]") -> None:
    near, far = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    far.linger = near.linger = 0
    far.rcvtimeo = int(TIMEOUT * 1000)
    near.bind("inproc://kernel")
    with closing(far), closing(GatedStream(near, IOLoop.current())) as stream:
        stream.send_multipart([b"1"])  # to nobody
        far.connect("inproc://kernel")
        stream.send_multipart([b"2"])
        assert [await asyncio.to_thread(far.recv) for _ in range(2)] == [b"1", b"2"]


@pytest.mark.parametrize("count", [1, MAX_AT_ONCE, 3 * MAX_AT_ONCE + 1])
@pytest.mark.parametrize("copy", [True, False])
async def test_every_answer_is_heard_though_more_is_sent(
    context: "zmq.Context[Any]", count: int, copy: bool
) -> None:
    near, far = pair(context)
    heard: list[list[bytes]] = []
    done = asyncio.Event()

    def hear(parts: list[Any]) -> None:
        heard.append([bytes(part) for part in parts])
        if len(heard) == count:
            done.set()

    with closing(far), closing(GatedStream(near, IOLoop.current())) as stream:
        stream.on_recv(hear, copy=copy)
        for number in range(count):
            far.send_multipart([b"%d" % number, b"", b"rest"])
            stream.send_multipart([b"request"])  # which looks at the socket, and ZeroMQ tells but once
        async with asyncio.timeout(TIMEOUT):
            await done.wait()
    assert heard == [[b"%d" % number, b"", b"rest"] for number in range(count)]


async def test_the_time_to_receive_many_parts_is_told(
    context: "zmq.Context[Any]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together with that of what is done with them."""
    near, far = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    near.linger = far.linger = 0
    far.bind(f"ipc://{tmp_path}/k")
    connect_through_gate(near, lambda: f"ipc://{tmp_path}/k", Share(10**6, 10**6))
    gate = gate_of(near)
    assert gate is not None
    told: list[tuple[float, int]] = []
    heard = asyncio.Event()

    def took(size: int, seconds: float = 0.0, parts: int = 1) -> None:
        told.append((seconds, parts))
        if len(told) == 2:
            heard.set()

    monkeypatch.setattr(gate, "took", took)
    clock = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: float(next(clock)))
    with closing(far), closing(GatedStream(near, IOLoop.current())) as stream:
        stream.on_recv(lambda parts: None)
        await asyncio.to_thread(far.send_multipart, [b""] * 5)  # waits for the connection
        await asyncio.to_thread(far.send_multipart, [b""] * 2 * MANY_PARTS)
        async with asyncio.timeout(TIMEOUT):
            await heard.wait()
    assert told == [(0.0, 5), (2.0, 2 * MANY_PARTS)]  # two spans of one tick
