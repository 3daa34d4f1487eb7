"""The gateway's end of a kernel's socket: kernels that speak, hang up and send what they like on the other one."""

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from stream_kit import TIMEOUT, Heard, speaking_kernel

from interpreter.gateway_extension import descriptors
from interpreter.gateway_extension.framing import GREETING, MAX_PARTS, framed, ready
from interpreter.gateway_extension.stream import CONNECT_INTERVAL

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
