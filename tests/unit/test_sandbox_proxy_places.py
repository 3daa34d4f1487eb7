"""How many connections the proxy of a sandbox has, whatever its session or the host at the other end does."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from proxy_kit import running

from interpreter.gateway_extension.sandbox.proxy import SOCKET_BUFFER, Policy, Rule

PATIENCE = 60.0
PROXY = "interpreter.gateway_extension.sandbox.proxy"
REFUSED = b"CONNECT other.example:443 HTTP/1.1\r\n\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def deaf_host() -> AsyncIterator[int]:
    """The port of a server that never reads, and never ends a connection before its end."""
    kept: list[asyncio.StreamWriter] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        kept.append(writer)

    async with asyncio.timeout(PATIENCE), await asyncio.start_server(keep, "127.0.0.1", 0) as server:
        yield int(server.sockets[0].getsockname()[1])
        for writer in kept:
            writer.transport.abort()


def policy(port: int) -> Policy:
    return Policy((Rule.parse(f"127.0.0.1:{port}"),), public=False)


async def ask(address: tuple[str, int], text: bytes) -> Connection:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(text)
    return reader, writer


def buffers_towards(peer: object) -> tuple[int, int]:
    """How large those of this process's connection to that address may get."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
            if one.getpeername() == peer:
                return buffers_of(one)
    raise AssertionError(f"no connection to {peer}")


def buffers_of(one: socket.socket) -> tuple[int, int]:
    options = (socket.SO_RCVBUF, socket.SO_SNDBUF)
    received, sent = (one.getsockopt(socket.SOL_SOCKET, option) for option in options)
    return received, sent


async def hang_up(*connections: Connection) -> None:
    for _, writer in connections:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_nothing_is_spent_on_connections_for_which_there_is_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{PROXY}.MAX_CONNECTIONS", 2)
    monkeypatch.setattr(f"{PROXY}.PLACE_TIME", 0.0)
    async with asyncio.timeout(PATIENCE), running(policy(1)) as address:
        before = len(os.listdir("/proc/self/fd"))
        silent = [await ask(address, b"CONNECT ") for _ in range(2)]
        others = [await ask(address, REFUSED) for _ in range(20)]
        await hang_up(silent[0])
        for reader, writer in others:  # one after the other, by the one place that is free
            assert b" 403 " in await reader.readline()
            assert len(os.listdir("/proc/self/fd")) - before <= len(silent) + len(others) + 2
            writer.close()
        await hang_up(silent[1])


async def test_the_place_of_a_connection_is_free_some_time_after_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes a port of the host for a minute: who goes on and on would take those of the neighbours."""
    monkeypatch.setattr(f"{PROXY}.MAX_CONNECTIONS", 2)
    monkeypatch.setattr(f"{PROXY}.PLACE_TIME", 0.3)
    clock = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE), running(policy(1)) as address:
        began = clock.time()
        for _ in range(5):
            reader, writer = await ask(address, REFUSED)
            assert b" 403 " in await reader.readline()
            await hang_up((reader, writer))
        assert clock.time() - began >= 0.6


async def test_a_host_that_reads_nothing_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PROXY}.IDLE_TIMEOUT", 0.2)
    async with deaf_host() as port, running(policy(port)) as address:
        reader, writer = await ask(address, b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:  # until the proxy gives up
                writer.write(bytes(1_000_000))
                await writer.drain()
        await hang_up((reader, writer))


async def test_a_client_that_reads_nothing_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PROXY}.IDLE_TIMEOUT", 0.2)
    ended = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:  # until the proxy gives up
                writer.write(bytes(1_000_000))
                await writer.drain()
        ended.set()

    monkeypatch.setattr(f"{PROXY}.MAX_CONNECTIONS", 1)
    monkeypatch.setattr(f"{PROXY}.PLACE_TIME", 0.0)
    async with asyncio.timeout(PATIENCE), await asyncio.start_server(flood, "127.0.0.1", 0) as server:
        port = int(server.sockets[0].getsockname()[1])
        async with running(policy(port)) as address:
            reader, writer = await ask(address, b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await ended.wait()
            other = await ask(address, REFUSED)
            assert b" 403 " in await other[0].readline()
            await hang_up((reader, writer), other)


async def test_what_waits_in_a_connection_does_not_grow_with_its_speed() -> None:
    with socket.socket() as like:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            like.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
        expected = buffers_of(like)
    async with deaf_host() as port, running(policy(port)) as address:
        reader, writer = await ask(address, b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        assert buffers_towards(("127.0.0.1", port)) == expected
        assert buffers_towards(writer.get_extra_info("sockname")) == expected
        await hang_up((reader, writer))
