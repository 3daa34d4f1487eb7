"""The gateway's end of a kernel's socket, with real ZeroMQ on the other one."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from stream_kit import MIB, SHARE, TIMEOUT, Heard

from interpreter.gateway_extension.framing import left_out
from interpreter.gateway_extension.gate import CAREFUL_CHUNK, CHUNK, COSTLY_FRAMES, MANY_PARTS, Gate
from interpreter.gateway_extension.stream import MAX_AT_ONCE, KernelStream


class Kernel:
    """A socket of a kernel's, as libzmq has it."""

    def __init__(self, folder: Path, kind: int = zmq.DEALER) -> None:
        self.context = zmq.asyncio.Context()
        self.url = f"ipc://{folder}/k"
        self.kind = kind
        self.bind()

    def bind(self) -> None:
        self.socket = self.context.socket(self.kind)
        self.socket.setsockopt(zmq.SNDHWM, 1)
        self.socket.bind(self.url)

    async def send(self, *parts: bytes) -> None:
        async with asyncio.timeout(TIMEOUT):
            await self.socket.send_multipart(parts, copy=False)

    async def receive(self) -> list[bytes]:
        async with asyncio.timeout(TIMEOUT):
            received: list[bytes] = await self.socket.recv_multipart()
            return received

    def restart(self) -> None:
        self.socket.close(linger=0)
        self.bind()


@pytest.fixture
async def kernel(tmp_path: Path) -> AsyncIterator[Kernel]:
    made = Kernel(tmp_path)
    yield made
    made.context.destroy(linger=0)


@pytest.fixture
async def stream(kernel: Kernel) -> AsyncIterator[KernelStream]:
    with closing(KernelStream(lambda: kernel.url, SHARE, b"")) as made:
        yield made


@pytest.fixture
def heard(stream: KernelStream) -> Heard:
    heard = Heard()
    stream.on_recv(heard.put_nowait)
    return heard


async def test_messages_pass_both_ways(kernel: Kernel, stream: KernelStream, heard: Heard) -> None:
    stream.send_multipart([b"a", b"", memoryview(b"b" * 100_000)], copy=False)
    stream.send_multipart([b"next"])
    assert await kernel.receive() == [b"a", b"", b"b" * 100_000]
    assert await kernel.receive() == [b"next"]
    await kernel.send(b"", b"c" * MIB)
    assert await heard.next() == [b"", b"c" * MIB]


async def test_a_kernel_knows_a_stream_by_its_identity(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, zmq.ROUTER)
    with (
        closing(KernelStream(lambda: kernel.url, SHARE, b"one")) as one,
        closing(KernelStream(lambda: kernel.url, SHARE, b"other")) as other,
    ):
        heard = Heard()
        one.on_recv(heard.put_nowait)
        one.send_multipart([b"from one"])
        assert await kernel.receive() == [b"one", b"from one"]
        other.send_multipart([b"from other"])
        assert await kernel.receive() == [b"other", b"from other"]
        await kernel.send(b"one", b"to one")
        assert await heard.next() == [b"to one"]
    kernel.context.destroy(linger=0)


async def test_a_stream_without_identity_hears_all_that_is_published(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, zmq.XPUB)
    with closing(KernelStream(lambda: kernel.url, SHARE, None)) as stream:
        heard = Heard()
        stream.on_recv(heard.put_nowait)
        assert await kernel.receive() == [b"\x01"]  # the subscription
        await kernel.send(b"topic", b"output")
        assert await heard.next() == [b"topic", b"output"]
    kernel.context.destroy(linger=0)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_kernels_may_have_tcp_ports(host: str) -> None:
    context = zmq.asyncio.Context()
    kernel = context.socket(zmq.DEALER)
    kernel.ipv6 = True
    kernel.bind(f"tcp://{host}:*")
    url = kernel.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
    with closing(KernelStream(lambda: url, SHARE, b"")) as stream:
        heard = Heard()
        stream.on_recv(heard.put_nowait)
        stream.send_multipart([b"x" * 500_000])
        async with asyncio.timeout(TIMEOUT):
            assert await kernel.recv() == b"x" * 500_000
            await kernel.send(b"there")
        assert await heard.next() == [b"there"]
    context.destroy(linger=0)


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:1", "ipc:///" + "x" * 300, "tcp://no.such.host.invalid:1"])
async def test_what_is_sent_to_a_kernel_that_is_not_there_yet_waits_for_it(tmp_path: Path, url: str) -> None:
    asked = asyncio.Event()
    urls: list[str | None] = [f"ipc://{tmp_path}/k", None, url]

    def find_url() -> str | None:
        if len(urls) == 1:
            asked.set()
        return urls[-1] if len(urls) == 1 else urls.pop()

    with closing(KernelStream(find_url, SHARE, b"")) as stream:
        stream.send_multipart([b"1"])
        async with asyncio.timeout(TIMEOUT):
            await asked.wait()
        kernel = Kernel(tmp_path)
        stream.send_multipart([b"2"])
        assert [await kernel.receive(), await kernel.receive()] == [[b"1"], [b"2"]]
    kernel.context.destroy(linger=0)


@pytest.mark.parametrize("count", [1, MAX_AT_ONCE, 3 * MAX_AT_ONCE + 1])
async def test_every_message_is_heard_in_order_and_others_have_their_turn(
    kernel: Kernel, stream: KernelStream, heard: Heard, count: int
) -> None:
    for number in range(count):
        await kernel.send(b"%d" % number, b"", b"rest")
        stream.send_multipart([b"request"])
    assert [await heard.next() for _ in range(count)] == [[b"%d" % i, b"", b"rest"] for i in range(count)]


async def test_messages_wait_for_whoever_takes_them(kernel: Kernel, stream: KernelStream) -> None:
    first, second = Heard(), Heard()
    stream.on_recv(first.put_nowait)
    await kernel.send(b"1")
    assert await first.next() == [b"1"]
    stream.stop_on_recv()
    await kernel.send(b"2")
    await kernel.send(b"3")
    stream.on_recv_stream(lambda one, parts: second.put_nowait([one.channel.encode(), *parts]))
    stream.channel = "shell"
    assert [await second.next(), await second.next()] == [[b"shell", b"2"], [b"shell", b"3"]]
    assert first.empty()


async def test_a_fault_in_dealing_with_a_message_loses_no_other(kernel: Kernel, stream: KernelStream) -> None:
    loop = asyncio.get_running_loop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    heard = Heard()

    def deal(parts: list[bytes]) -> None:
        if parts == [b"bad"]:
            raise ValueError
        heard.put_nowait(parts)

    stream.on_recv(deal)
    await kernel.send(b"bad")
    await kernel.send(b"good")
    assert await heard.next() == [b"good"]
    loop.set_exception_handler(None)
    assert [type(fault["exception"]) for fault in faults] == [ValueError]


async def test_what_has_come_is_delivered_at_once_on_request(kernel: Kernel, stream: KernelStream) -> None:
    heard = Heard()
    stream.on_recv(heard.put_nowait)
    await kernel.send(b"first")
    await heard.next()
    stream.stop_on_recv()
    await kernel.send(b"x" * 500_000)
    await kernel.send(b"last word")
    stream.on_recv(heard.put_nowait)
    while heard.qsize() < 2:  # until libzmq's thread has sent them
        stream.flush()
    assert [await heard.next(), await heard.next()] == [[b"x" * 500_000], [b"last word"]]


async def test_a_message_of_many_large_parts_arrives_small(kernel: Kernel, heard: Heard) -> None:
    """The same pages again and again, which cost the sender nothing."""
    large = b"x" * 8 * MIB
    await kernel.send(b"head", *[large] * 20)
    await kernel.send(b"next")
    parts = await heard.next()
    assert parts[0] == b"head"
    assert left_out(parts[1]) == len(large)
    assert sum(map(len, parts)) < 2 * MIB
    assert await heard.next() == [b"next"]


async def test_a_kernel_waits_until_what_it_sent_was_taken(kernel: Kernel, stream: KernelStream) -> None:
    async def send(count: int) -> None:
        for _ in range(count):
            await kernel.socket.send(b"y" * MIB, copy=False)

    sending = asyncio.create_task(send(50))
    async with asyncio.timeout(TIMEOUT):
        while stream.gate.is_open:
            await asyncio.sleep(0)
    assert not sending.done()
    heard = Heard()
    stream.on_recv(heard.put_nowait)
    for _ in range(50):
        await heard.next()
    await sending
    assert stream.gate.is_open


async def test_while_a_stream_is_held_nothing_is_read(
    kernel: Kernel, stream: KernelStream, heard: Heard
) -> None:
    await kernel.send(b"first")
    await heard.next()
    stream.hold(True)
    await kernel.send(b"x" * 8 * MIB)  # more than the system keeps for a socket
    late = asyncio.ensure_future(kernel.send(b"late"))
    stream.flush()
    assert heard.empty()
    stream.hold(False)
    assert left_out((await heard.next())[0]) == 8 * MIB
    assert await heard.next() == [b"late"]
    await late


async def test_the_time_that_frames_take_is_measured(
    kernel: Kernel, stream: KernelStream, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stream.gate.chunk == CHUNK
    monkeypatch.setattr(f"{Gate.__module__}.COSTLY_FRAMES", 0.0)
    await kernel.send(b"x" * 100_000)
    assert await heard.next() == [b"x" * 100_000]
    assert stream.gate.chunk == CAREFUL_CHUNK


async def test_the_time_that_a_message_takes_is_told(
    kernel: Kernel, stream: KernelStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[bool, int]] = []
    heard = Heard()
    monkeypatch.setattr(
        stream.gate, "took", lambda size, seconds, parts: told.append((seconds > COSTLY_FRAMES, parts))
    )

    def deal(parts: list[bytes]) -> None:
        end = time.thread_time() + 2 * COSTLY_FRAMES
        while time.thread_time() < end:
            pass
        heard.put_nowait(parts)

    stream.on_recv(deal)
    await kernel.send(*[b""] * 5)  # so little is never costly
    await kernel.send(*[b""] * 2 * MANY_PARTS)
    await heard.next()
    await heard.next()
    assert told == [(False, 5), (True, 2 * MANY_PARTS)]


async def test_a_kernel_that_was_restarted_is_connected_again(
    kernel: Kernel, stream: KernelStream, heard: Heard
) -> None:
    kernel.restart()
    await kernel.send(b"here again")
    assert await heard.next() == [b"here again"]
    kernel.restart()
    stream.connect_again()
    stream.send_multipart([b"you, too"])
    assert await kernel.receive() == [b"you, too"]
