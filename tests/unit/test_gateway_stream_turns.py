"""What many kernels send, and do not take: it waits in bounded memory, and none holds up the others."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from stream_kit import MIB, TIMEOUT, Heard, speaking_kernel

from interpreter.gateway_extension import link
from interpreter.gateway_extension import stream as streams
from interpreter.gateway_extension.framing import GREETING, framed, left_out, ready
from interpreter.gateway_extension.gate import LARGE_BYTES, READ_RATE
from interpreter.gateway_extension.link import MAX_UNSENT_BYTES
from interpreter.gateway_extension.sharing import Unread, kept


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
