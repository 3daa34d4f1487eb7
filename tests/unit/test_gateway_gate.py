"""Between a kernel and the gateway's ZeroMQ: what passes, how much of it waits, and what an end closes."""

import asyncio
import os
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from interpreter.gateway_extension import descriptors
from interpreter.gateway_extension.framing import MAX_PARTS, cost, left_out
from interpreter.gateway_extension.gate import (
    CAREFUL_CHUNK,
    CHUNK,
    COSTLY_FRAMES,
    MANY_PARTS,
    MAX_PEACE,
    PEACE,
    Gate,
    Share,
    connect_again,
    connect_through_gate,
    gate_of,
)

MIB = 1024**2


class Pair:
    """A kernel's socket and the gateway's, with a gate between them."""

    def __init__(self, folder: Path, share: Share) -> None:
        self.context = zmq.asyncio.Context()
        self.url = f"ipc://{folder}/k"
        self.kernel = self.context.socket(zmq.DEALER)
        self.kernel.setsockopt(zmq.SNDHWM, 1)
        self.kernel.bind(self.url)
        self.gateway = self.context.socket(zmq.DEALER)
        self.gateway.setsockopt(zmq.RCVHWM, 0)
        connect_through_gate(self.gateway, lambda: self.url, share)

    @property
    def gate(self) -> Gate:
        gate = gate_of(self.gateway)
        assert gate is not None
        return gate


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair(tmp_path, Share(2 * MIB, MIB))
    yield made
    made.gate.close()
    made.context.destroy(linger=0)


async def test_messages_pass_both_ways(pair: Pair) -> None:
    await pair.gateway.send_multipart([b"a", b"", b"b" * 100_000])
    assert await pair.kernel.recv_multipart() == [b"a", b"", b"b" * 100_000]
    await pair.kernel.send_multipart([b"", b"c" * MIB])
    assert await pair.gateway.recv_multipart() == [b"", b"c" * MIB]


async def test_kernels_with_tcp_ports_have_gates_too() -> None:
    context = zmq.asyncio.Context()
    kernel, gateway = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    kernel.bind("tcp://127.0.0.1:*")
    url = kernel.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
    connect_through_gate(gateway, lambda: url, Share(MIB, MIB))
    await gateway.send(b"x" * 500_000)
    assert await kernel.recv() == b"x" * 500_000
    await kernel.send(b"there")
    assert await gateway.recv() == b"there"
    gate = gate_of(gateway)
    assert gate is not None
    gate.close()
    context.destroy(linger=0)


async def test_a_connection_that_was_given_up_does_not_come_again(tmp_path: Path) -> None:
    """ZeroMQ would try for `linger` to bring a gone kernel its subscription, and drive the new connection away."""
    context = zmq.asyncio.Context()
    context.setsockopt(zmq.RECONNECT_IVL, 1)
    gateway = context.socket(zmq.SUB)
    gateway.setsockopt(zmq.SUBSCRIBE, b"")
    gateway.linger = 60_000
    connect_through_gate(gateway, lambda: f"ipc://{tmp_path}/k", Share(MIB, MIB))
    connect_again(gateway)
    receiving = asyncio.ensure_future(gateway.recv())  # ZeroMQ does some of its work only when it is asked
    kernel = socket.socket(socket.AF_UNIX)
    kernel.setblocking(False)
    kernel.bind(str(tmp_path / "k"))
    kernel.listen()
    loop = asyncio.get_running_loop()
    accepted = [(await loop.sock_accept(kernel))[0]]
    with suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            while len(accepted) < 10:
                accepted.append((await loop.sock_accept(kernel))[0])
    assert len(accepted) <= 2  # the first may have been on its way
    assert gateway.linger == 60_000
    receiving.cancel()
    gate = gate_of(gateway)
    assert gate is not None
    gate.close()
    context.destroy(linger=0)
    for one in (kernel, *accepted):
        one.close()


LINGER = 60.0  # seconds


@contextmanager
def lingering() -> Iterator[socket.socket]:
    """A socket whose last reference takes `LINGER` to close: the other end does not take what was sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, int(LINGER)))
    one.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            one.send(bytes(65536))
    try:
        yield one
    finally:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()  # a reset, which ends what lingers
        one.close()
        for thread in threading.enumerate():
            if thread.name == "closing":
                thread.join()


@asynccontextmanager
async def speaking_kernel(folder: Path) -> AsyncIterator[tuple[socket.socket, Gate]]:
    """A kernel that writes to its socket itself, and the gate that is connected to it."""
    kernel = socket.socket(socket.AF_UNIX)
    kernel.setblocking(False)
    kernel.bind(str(folder / "k"))
    kernel.listen()
    context = zmq.asyncio.Context()
    gateway = context.socket(zmq.DEALER)
    connect_through_gate(gateway, lambda: f"ipc://{folder}/k", Share(MIB, MIB))
    gate = gate_of(gateway)
    assert gate is not None
    try:
        speaking, _ = await asyncio.get_running_loop().sock_accept(kernel)
        with speaking:
            yield speaking, gate
    finally:
        gate.close()
        context.destroy(linger=0)
        kernel.close()


async def test_a_kernel_can_send_no_descriptors(tmp_path: Path) -> None:
    """The last reference to one would be closed where all kernels are served, and may take long."""
    with socket.socket(socket.AF_UNIX) as one:
        if not descriptors.refuse_descriptors(one):
            pytest.skip("Linux before 6.16")
    async with speaking_kernel(tmp_path) as (kernel, _):
        with pytest.raises(PermissionError):
            socket.send_fds(kernel, [b"x"], [0])


@pytest.mark.parametrize("held", [False, True], ids=["received", "closed"])
async def test_on_older_systems_nobody_waits_for_the_descriptors_that_a_kernel_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    monkeypatch.setattr(descriptors, "SO_PASSRIGHTS", 9999)
    loop = asyncio.get_running_loop()
    with lingering() as one:
        async with speaking_kernel(tmp_path) as (kernel, gate):
            gate.hold(held)
            begin = loop.time()
            socket.send_fds(kernel, [b"\xff"], [one.fileno()])
            os.close(one.detach())
            if held:
                gate.close()
            with suppress(ConnectionResetError):
                while await loop.sock_recv(kernel, 64):
                    pass
            assert loop.time() - begin < LINGER / 2


async def test_a_message_of_many_large_parts_arrives_small(pair: Pair) -> None:
    """The same pages again and again, which cost the sender nothing."""
    large = b"x" * 8 * MIB
    await pair.kernel.send_multipart([b"head", *[large] * 20], copy=False)
    await pair.kernel.send_multipart([b"next"])
    parts = await pair.gateway.recv_multipart()
    assert parts[0] == b"head"
    assert left_out(parts[1]) == len(large)
    assert sum(map(len, parts)) < 2 * MIB
    assert await pair.gateway.recv_multipart() == [b"next"]


async def test_a_kernel_waits_until_what_it_sent_was_taken(pair: Pair) -> None:
    sending = asyncio.create_task(_send(pair, 50))
    received = []
    while pair.gate.is_open:
        received.append(await pair.gateway.recv_multipart())
    assert len(received) <= 2
    assert not sending.done()
    for parts in received:
        pair.gate.took(cost(map(len, parts)))
    for _ in range(50 - len(received)):
        pair.gate.took(cost(map(len, await pair.gateway.recv_multipart())))
    await sending
    assert pair.gate.is_open


async def _send(pair: Pair, count: int) -> None:
    for _ in range(count):
        await pair.kernel.send(b"y" * MIB, copy=False)


async def test_while_a_gate_is_held_nothing_passes(pair: Pair) -> None:
    await pair.kernel.send(b"first")
    assert await pair.gateway.recv() == b"first"
    pair.gate.hold(True)
    assert not pair.gate.is_open
    await pair.kernel.send(b"second")
    assert not await pair.gateway.poll(50)
    pair.gate.hold(False)
    assert await pair.gateway.recv() == b"second"


async def test_a_costly_message_counts_as_waiting_for_a_while(pair: Pair) -> None:
    await pair.kernel.send(b"z" * MIB)
    parts = await pair.gateway.recv_multipart()
    pair.gate.took(cost(map(len, parts)), seconds=60)
    assert not pair.gate.is_open


async def test_frames_that_take_long_are_followed_by_a_rest(pair: Pair) -> None:
    await pair.kernel.send(b"first")
    assert await pair.gateway.recv() == b"first"
    pair.gate.read(COSTLY_FRAMES)
    assert pair.gate.is_open
    assert pair.gate.chunk == CHUNK
    pair.gate.read(0.02)
    assert not pair.gate.is_open
    assert pair.gate.chunk == CAREFUL_CHUNK
    await pair.kernel.send(b"second")
    assert not await pair.gateway.poll(50)
    assert await pair.gateway.recv() == b"second"
    assert pair.gate.is_open


async def test_the_time_that_frames_take_is_measured(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{Gate.__module__}.COSTLY_FRAMES", 0.0)
    await pair.kernel.send(b"x" * 100_000)
    assert await pair.gateway.recv() == b"x" * 100_000
    assert pair.gate.chunk == CAREFUL_CHUNK


async def test_a_message_of_many_parts_is_followed_by_a_rest(pair: Pair) -> None:
    pair.gate.took(0, 2 * COSTLY_FRAMES, MANY_PARTS)
    assert pair.gate.is_open
    pair.gate.took(0, 2 * COSTLY_FRAMES, MANY_PARTS + 1)
    assert not pair.gate.is_open


async def test_gates_that_rest_together_rest_longer() -> None:
    """All of them get their part of the time, not each."""
    gates = [Gate(lambda: None, Share(MIB, MIB)) for _ in range(4)]
    loop = asyncio.get_running_loop()
    first, second, third, fourth = gates
    begin = loop.time()
    first.read(0.01)
    second.read(0.01)
    third.read(0.01)
    third.read(0.01)  # what it had said before its rest
    second.close()
    fourth.read(60)
    ends = [gate.rests_until - begin for gate in (first, third, fourth)]
    assert ends == pytest.approx([PEACE * 0.01, PEACE * 0.01 * 6, MAX_PEACE], abs=0.02)
    third.close()
    fourth.close()
    while not first.is_open:
        await asyncio.sleep(0.01)
    last = Gate(lambda: None, Share(MIB, MIB))
    begin = loop.time()
    last.read(0.01)
    assert last.rests_until - begin == pytest.approx(PEACE * 0.01, abs=0.02)
    first.close()
    last.close()


async def test_a_kernel_that_breaks_the_protocol_is_not_heard_before_it_is_restarted(pair: Pair) -> None:
    await pair.kernel.send(b"first")
    assert await pair.gateway.recv() == b"first"
    await pair.kernel.send_multipart([b""] * (MAX_PARTS + 1))
    await asyncio.sleep(0.1)  # the connection's end
    sending = asyncio.ensure_future(pair.kernel.send(b"second"))
    assert not await pair.gateway.poll(500)
    sending.cancel()
    pair.kernel.close(linger=0)
    pair.kernel = pair.context.socket(zmq.DEALER)
    pair.kernel.bind(pair.url)
    connect_again(pair.gateway)
    async with asyncio.timeout(10):
        await pair.kernel.send(b"here again")
        assert await pair.gateway.recv() == b"here again"


async def test_who_is_not_this_process_gets_nothing(pair: Pair) -> None:
    code = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(chr(0) + sys.argv[1])
print(s.recv(100))
"""
    name = pair.gate.url.removeprefix("ipc://@")
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, name, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await other.communicate()
    assert told.strip() == b"b''"


async def test_a_kernel_that_starts_anew_is_connected_again(pair: Pair) -> None:
    pair.kernel.close(linger=0)
    pair.kernel = pair.context.socket(zmq.DEALER)
    pair.kernel.bind(pair.url)
    await pair.kernel.send(b"here again")
    assert await pair.gateway.recv() == b"here again"


async def test_the_end_of_a_socket_is_the_end_of_its_gate(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Share(MIB, MIB))
    gate = pair.gate
    gate.close()
    gate.close()
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
        late.connect("\0" + gate.url.removeprefix("ipc://@"))
    pair.context.destroy(linger=0)
