"""The gateway's end of a kernel's sockets: real ZeroMQ, and kernels that speak as they like, on the other one."""

import asyncio
import os
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from interpreter.gateway_extension import descriptors, link
from interpreter.gateway_extension import stream as streams
from interpreter.gateway_extension.framing import (
    GREETING,
    MAX_PARTS,
    framed,
    left_out,
    ready,
)
from interpreter.gateway_extension.gate import (
    CAREFUL_CHUNK,
    CHUNK,
    COSTLY_FRAMES,
    LARGE_BYTES,
    MANY_PARTS,
    READ_RATE,
    Gate,
)
from interpreter.gateway_extension.link import MAX_UNSENT_BYTES
from interpreter.gateway_extension.sharing import Unread, kept
from interpreter.gateway_extension.stream import CONNECT_INTERVAL, MAX_AT_ONCE, KernelStream, Share

MIB = 1024**2
TIMEOUT = 20.0
SHARE = Share(2 * MIB, MIB)


class Heard(asyncio.Queue[list[bytes]]):
    """What a stream delivered."""

    async def next(self) -> list[bytes]:
        async with asyncio.timeout(TIMEOUT):
            return await self.get()


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


async def test_while_a_stream_is_held_nothing_is_delivered(tmp_path: Path) -> None:
    """Not what came before, either: who holds it has too much."""
    async with speaking_kernel(tmp_path) as (_, connection, stream):
        heard = Heard()

        def hold(parts: list[bytes]) -> None:
            stream.hold(True)
            heard.put_nowait(parts)

        stream.on_recv(hold)
        connection.send(GREETING + ready(b"ROUTER") + b"".join(framed([b"%d" % i]) for i in range(3)))
        assert await heard.next() == [b"0"]
        stream.on_recv(heard.put_nowait)
        assert heard.empty()
        stream.hold(False)
        assert [await heard.next(), await heard.next()] == [[b"1"], [b"2"]]


async def test_whole_messages_that_wait_make_room_for_those_of_other_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = Unread(MIB)
    monkeypatch.setattr(link, "unread", unread)
    monkeypatch.setattr(streams, "unread", unread)
    loop, heard = asyncio.get_running_loop(), Heard()
    sizes = {"little": MIB // 8, "most": MIB * 3 // 4, "much": MIB // 2}
    begun = Heard()
    connected = []
    async with AsyncExitStack() as stack:
        for name, size in sizes.items():
            folder = tmp_path / name
            folder.mkdir()
            _, connection, stream = await stack.enter_async_context(speaking_kernel(folder))
            connected.append(stream)
            stream.on_recv(begun.put_nowait)
            connection.send(GREETING + ready(b"ROUTER") + framed([b"begin"]))
            await begun.next()
            stream.stop_on_recv()
            await loop.sock_sendall(connection, framed([name.encode(), b"x" * size]))
            stream.flush()
        for stream, (name, size) in zip(connected, sizes.items(), strict=True):
            stream.on_recv(heard.put_nowait)
            head, large = await heard.next()
            assert head == name.encode()
            assert left_out(large) == (size if name == "most" else 0)


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


async def test_what_a_large_message_took_is_followed_by_time_for_small_ones(tmp_path: Path) -> None:
    """Also if other kernels send the next large one: many of them would keep everybody waiting."""
    loop, heard = asyncio.get_running_loop(), Heard()
    spent = 0.1

    def deal(parts: list[bytes]) -> None:
        begin = loop.time()
        if len(parts[0]) > LARGE_BYTES:
            end = time.thread_time() + spent
            while time.thread_time() < end:
                pass
        heard.put_nowait([parts[0][:1], b"%f" % begin, b"%f" % loop.time()])

    names = (b"a", b"b", b"c")
    kernels = []
    async with AsyncExitStack() as stack:
        for name in names:
            folder = tmp_path / name.decode()
            folder.mkdir()
            kernel, connection, stream = await stack.enter_async_context(speaking_kernel(folder))
            connection.send(GREETING + ready(b"ROUTER"))
            stream.on_recv(deal)
            kernels.append((kernel, connection))
        for name, (_, connection) in zip(names, kernels, strict=True):
            large = name * (1 if name == b"c" else LARGE_BYTES + 1)
            await loop.sock_sendall(connection, framed([large]))
        told = {name: (float(begin), float(end)) for name, begin, end in [await heard.next() for _ in names]}
    first, second = sorted((told[b"a"], told[b"b"]))
    assert second[0] - first[1] > 0.9 * spent
    assert told[b"c"][0] < second[0]


async def test_what_a_large_message_takes_where_it_goes_is_time_for_others(tmp_path: Path) -> None:
    """One service may read for all kernels, and takes longer to read large ones than it takes to send them."""
    loop, times, size = asyncio.get_running_loop(), Heard(), 3 * MIB // 2
    async with AsyncExitStack() as stack:
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            _, connection, stream = await stack.enter_async_context(speaking_kernel(folder))
            connection.send(GREETING + ready(b"ROUTER"))
            stream.on_recv(lambda _: times.put_nowait([b"%f" % loop.time()]))
            await loop.sock_sendall(connection, framed([b"x" * size]))
        [first], [second] = await times.next(), await times.next()
    assert float(second) - float(first) > 0.9 * size / READ_RATE


async def test_the_halves_of_messages_that_kernels_send_are_not_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "unread", Unread(MIB))
    loop, heard, sent = asyncio.get_running_loop(), Heard(), framed([b"head", b"x" * (MIB * 3 // 4)])
    connections = []
    async with AsyncExitStack() as stack:
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            _, connection, stream = await stack.enter_async_context(speaking_kernel(folder))
            stream.on_recv(heard.put_nowait)
            await loop.sock_sendall(connection, GREETING + ready(b"ROUTER") + sent[:-1])
            connections.append(connection)
        for connection in reversed(connections):  # all of the second half is read when its end is
            connection.send(sent[-1:])
            message = await heard.next()
            assert message[0] == b"head"
            assert left_out(message[1]) == (0 if connection is connections[1] else MIB * 3 // 4)


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


class Speaking:
    """A kernel that writes to its socket itself."""

    def __init__(self, folder: Path) -> None:
        self.url = f"ipc://{folder}/k"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.setblocking(False)
        self.listener.bind(str(folder / "k"))
        self.listener.listen()
        self.accepted: list[socket.socket] = []

    async def accept(self) -> socket.socket:
        async with asyncio.timeout(TIMEOUT):
            accepted, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        self.accepted.append(accepted)
        return accepted

    async def read_all(self, connection: socket.socket) -> bytes:
        """Until the gateway hangs up."""
        data = b""
        async with asyncio.timeout(TIMEOUT):
            with suppress(ConnectionResetError):
                while more := await asyncio.get_running_loop().sock_recv(connection, 4096):
                    data += more
        return data

    async def waits_for_nobody(self) -> bool:
        """Whether nobody connects for many times the interval at which a stream tries."""
        with suppress(TimeoutError):
            async with asyncio.timeout(20 * CONNECT_INTERVAL):
                connection, _ = await asyncio.get_running_loop().sock_accept(self.listener)
                self.accepted.append(connection)
                return False
        return True

    def close(self) -> None:
        for one in (self.listener, *self.accepted):
            one.close()


@asynccontextmanager
async def speaking_kernel(folder: Path) -> AsyncIterator[tuple[Speaking, socket.socket, KernelStream]]:
    kernel = Speaking(folder)
    with closing(kernel), closing(KernelStream(lambda: kernel.url, SHARE, b"me")) as stream:
        yield kernel, await kernel.accept(), stream


async def test_a_kernel_can_send_no_descriptors(tmp_path: Path) -> None:
    """The last reference to one would be closed where all kernels are served, and may take long."""
    with socket.socket(socket.AF_UNIX) as one:
        if not descriptors.refuse_descriptors(one):
            pytest.skip("Linux before 6.16")
    async with speaking_kernel(tmp_path) as (_, connection, _):
        with pytest.raises(PermissionError):
            socket.send_fds(connection, [b"x"], [0])


@pytest.mark.parametrize("held", [False, True], ids=["received", "closed"])
async def test_on_older_systems_nobody_waits_for_the_descriptors_that_a_kernel_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    monkeypatch.setattr(descriptors, "SO_PASSRIGHTS", 9999)
    loop = asyncio.get_running_loop()
    with lingering() as one:
        async with speaking_kernel(tmp_path) as (kernel, connection, stream):
            stream.hold(held)
            begin = loop.time()
            socket.send_fds(connection, [b"\xff"], [one.fileno()])
            os.close(one.detach())
            if held:
                stream.close()
            await kernel.read_all(connection)
            assert loop.time() - begin < LINGER / 2
            assert await kernel.waits_for_nobody()


async def test_the_stream_speaks_when_it_is_its_turn(tmp_path: Path) -> None:
    """Some kernels' libraries read no further than what they wait for."""
    loop = asyncio.get_running_loop()
    async with speaking_kernel(tmp_path) as (_, connection, stream):
        stream.send_multipart([b"message"])
        assert await loop.sock_recv(connection, 4096) == GREETING
        connection.send(GREETING)
        hello = await loop.sock_recv(connection, 4096)
        assert hello == ready(b"DEALER", b"me")
        connection.send(ready(b"ROUTER"))
        assert await loop.sock_recv(connection, 4096) == framed([b"message"])


async def test_a_kernel_that_does_not_read_is_sent_only_so_much(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with speaking_kernel(tmp_path) as (_, connection, stream):
        connection.send(GREETING + ready(b"ROUTER"))
        large = b"x" * MAX_UNSENT_BYTES
        stream.send_multipart([large])  # one is always taken
        stream.send_multipart([large])
        stream.send_multipart([b"last"])
        assert (
            caplog.messages
            == ["A message to a kernel was dropped: it does not take what was sent before."] * 2
        )
        expected = GREETING + ready(b"DEALER", b"me") + framed([large])
        received, loop = 0, asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT):
            while received < len(expected):
                received += len(await loop.sock_recv(connection, MIB))
        stream.send_multipart([b"now"])
        async with asyncio.timeout(TIMEOUT):
            assert await loop.sock_recv(connection, MIB) == framed([b"now"])


async def test_what_waits_for_all_kernels_that_do_not_read_is_bounded(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        waiting = []
        for name in range(10):
            folder = tmp_path / str(name)
            folder.mkdir()
            waiting.append((await stack.enter_async_context(speaking_kernel(folder)))[2])
        free = kept.limit(MAX_UNSENT_BYTES)
        for _ in range(MAX_UNSENT_BYTES // (4 * MIB)):
            for stream in waiting:
                stream.send_multipart([b"x" * 4 * MIB])
        assert MIB <= kept.limit(MAX_UNSENT_BYTES) < free // 2
    assert kept.limit(MAX_UNSENT_BYTES) == free


@pytest.mark.parametrize(
    "told",
    [b"\x01\x00", GREETING + b"\0\0", GREETING + ready(b"ROUTER") + b"\1\0" * (MAX_PARTS + 1)],
    ids=["greeting", "not-ready", "parts"],
)
async def test_a_kernel_that_breaks_the_protocol_is_not_heard_before_it_is_restarted(
    tmp_path: Path, told: bytes
) -> None:
    loop = asyncio.get_running_loop()
    async with speaking_kernel(tmp_path) as (kernel, connection, stream):
        connection.send(told)
        await kernel.read_all(connection)
        assert await kernel.waits_for_nobody()
        stream.send_multipart([b"for the old one"])
        stream.connect_again()
        again = await kernel.accept()
        again.send(GREETING + ready(b"ROUTER"))
        stream.send_multipart([b"for the new one"])
        expected = GREETING + ready(b"DEALER", b"me") + framed([b"for the new one"])
        received = b""
        while len(received) < len(expected):
            received += await asyncio.wait_for(loop.sock_recv(again, 4096), TIMEOUT)
        assert received == expected


async def test_a_kernel_that_hangs_up_again_and_again_is_asked_less_and_less(tmp_path: Path) -> None:
    async with speaking_kernel(tmp_path) as (kernel, connection, _):
        connection.close()
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        for _ in range(4):
            (await kernel.accept()).close()
            times.append(loop.time())
        assert times[-1] - times[0] > CONNECT_INTERVAL * (2 + 4 + 8 + 16) * 0.9


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


async def test_a_connection_that_was_given_up_does_not_come_again(tmp_path: Path) -> None:
    """Two would drive each other away from a kernel, which knows them by the same identity."""
    async with speaking_kernel(tmp_path) as (kernel, first, stream):
        stream.connect_again()
        second = await kernel.accept()
        await kernel.read_all(first)
        assert await kernel.waits_for_nobody()
        assert await asyncio.get_running_loop().sock_recv(second, 4096) == GREETING


async def test_a_closed_stream_does_nothing_more(tmp_path: Path) -> None:
    async with speaking_kernel(tmp_path) as (kernel, connection, stream):
        heard = Heard()
        stream.on_recv(heard.put_nowait)
        assert not stream.closed()
        assert not stream.socket.closed
        connection.send(GREETING + ready(b"ROUTER") + framed([b"too late"]))
        stream.close()
        stream.close()
        assert stream.closed()
        assert stream.socket.closed
        stream.send_multipart([b"x"])
        stream.flush()
        stream.hold(False)
        stream.connect_again()
        await kernel.read_all(connection)
        assert await kernel.waits_for_nobody()
        assert heard.empty()


@pytest.mark.parametrize("is_known", [False, True], ids=["at the first words", "later"])
async def test_what_a_kernel_said_last_is_heard_though_it_takes_nothing_more(
    tmp_path: Path, is_known: bool
) -> None:
    """It is gone before it is answered, or sent the next request."""
    words = [GREETING + ready(b"ROUTER"), framed([b"last"])]
    async with speaking_kernel(tmp_path) as (kernel, connection, stream):
        heard = Heard()
        stream.on_recv(heard.put_nowait)
        if is_known:
            connection.send(words.pop(0) + framed([b"first"]))
            assert await heard.next() == [b"first"]
        connection.send(b"".join(words))
        connection.close()
        stream.send_multipart([b"request"])
        assert await heard.next() == [b"last"]
        await kernel.accept()
