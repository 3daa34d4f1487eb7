"""What of a client's bytes the proxy of a sandbox sends on when it is asked for a page: one request, and no more."""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from proxy_kit import running

from interpreter.gateway_extension.sandbox.proxy import Policy, Rule, is_public

PATIENCE = 60.0
ANSWER = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: other.example\r\n\r\n"


class Host:
    """A server that keeps what it is sent; it answers when it has had the end of that."""

    def __init__(self) -> None:
        self.got = b""
        self.port = 0
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.got = await reader.read(-1)
        self.ended.set()
        with contextlib.suppress(ConnectionError):
            writer.write(ANSWER)
            writer.close()
            await writer.wait_closed()


class Prompt(Host):
    """Answers a head at once, and ends the connection."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.got = await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def proxied(host: Host) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a proxy that allows this host."""
    async with asyncio.timeout(PATIENCE), await asyncio.start_server(host.serve, "127.0.0.1", 0) as server:
        host.port = server.sockets[0].getsockname()[1]
        policy = Policy((Rule.parse(f"127.0.0.1:{host.port}"),), public=False)
        async with running(policy) as address:
            reader, writer = await asyncio.open_connection(*address)
            try:
                yield reader, writer
            finally:
                writer.close()
                await writer.wait_closed()


async def sent_on(head: bytes, body: bytes) -> tuple[bytes, bytes]:
    """(head, body) that the host gets of this and another request behind it, over one connection."""
    host = Host()
    async with proxied(host) as (reader, writer):
        first, _, rest = head.partition(b" ")
        writer.write(first + b" http://127.0.0.1:%d" % host.port + rest + body + HIDDEN)
        writer.write_eof()
        assert await reader.read() == ANSWER
    got_head, _, got_body = host.got.partition(b"\r\n\r\n")
    return got_head, got_body


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"GET /a HTTP/1.1\r\n\r\n", b""),
        (b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", b""),
        (b"POST /a HTTP/1.1\r\n\r\n", b""),
        (b"POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b""),
        (b"POST /a HTTP/1.1\r\ncontent-length:\t5 \r\n\r\n", b"12345"),
        (b"PUT /a HTTP/1.1\r\nX: y\r\nContent-Length: 200000\r\n\r\n", b"x" * 200_000),
        (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n"),
        (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\n12\r\n5\r\n0\r\n\r\n"),
        (
            b"POST /a HTTP/1.1\r\nTRANSFER-ENCODING: Chunked\r\n\r\n",
            b"%x\r\n" % 200_000 + b"x" * 200_000 + b"\r\n1\r\ny\r\n0\r\n\r\n",
        ),
    ],
)
async def test_a_second_request_on_the_connection_does_not_get_to_the_host(head: bytes, body: bytes) -> None:
    got_head, got_body = await sent_on(head, body)
    assert got_head.startswith(head.split(b" ")[0] + b" /a HTTP/1.1\r\nHost: 127.0.0.1:")
    assert got_head.count(b"Connection: close") == 1
    assert got_body == body


async def test_chunks_are_sent_on_without_what_stands_beside_them() -> None:
    body = b"0003 ; a=b\r\nabc\r\n000\r\nX: y\r\nTransfer-Encoding: identity\r\n\r\n"
    head = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\nTE: trailers\r\n\r\n"
    got_head, got_body = await sent_on(head, body)
    assert got_body == b"3\r\nabc\r\n0\r\n\r\n"
    assert b"trailer" not in got_head.lower()


@pytest.mark.parametrize(
    "body", [b"5\r\n123456\r\n0\r\n\r\n", b"+5\r\n12345\r\n0\r\n\r\n", b"0x5\r\n12345\r\n0\r\n\r\n", b"\r\n", b"5\n12345\n0\n\n", b"5\r\n12"]
)  # fmt: skip
async def test_a_body_of_no_chunks_is_never_completed(body: bytes) -> None:
    host = Host()
    async with proxied(host) as (reader, writer):
        head = b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % host.port
        writer.write(head + body)
        writer.write_eof()
        assert await reader.read() == b""
        await host.ended.wait()
    assert not host.got.endswith(b"0\r\n\r\n")


async def test_a_connection_ends_with_the_answer_though_the_client_would_go_on() -> None:
    host = Prompt()
    async with proxied(host) as (reader, writer):
        writer.write(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % host.port)
        assert await reader.read() == ANSWER


async def test_nothing_of_an_upgrade_is_sent_on() -> None:
    """What came after it would be no HTTP."""
    got_head, got_body = await sent_on(b"GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", b"")
    assert b"upgrade" not in got_head.lower()
    assert got_body == b""


async def test_a_tunnel_is_not_read() -> None:
    host = Host()
    async with proxied(host) as (reader, writer):
        writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % host.port)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(HIDDEN + HIDDEN)
        writer.write_eof()
        assert await reader.read() == ANSWER
    assert host.got == HIDDEN + HIDDEN


def test_addresses_that_wrap_others_are_not_public() -> None:
    assert not is_public(ipaddress.ip_address("64:ff9b:1::7f00:1"))


@pytest.mark.parametrize("length", [b"9" * 19, b"0" * 5000, b"9" * 5000, b"\xb2"])
async def test_a_length_that_not_all_can_read_is_refused_before_the_host_hears_of_it(length: bytes) -> None:
    host = Host()
    async with proxied(host) as (reader, writer):
        writer.write(
            b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nContent-Length: %s\r\n\r\n" % (host.port, length)
        )
        assert b" 400 " in await reader.readline()
    assert host.got == b""


class Talker(Host):
    """Says something again and again, and ends when it is told to."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while not self.ended.is_set():
                writer.write(b"x")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ended.wait(), 0.01)
        writer.close()


@pytest.mark.parametrize("first", [b"CONNECT 127.0.0.1:%d", b"GET http://127.0.0.1:%d/"])
async def test_a_client_may_listen_for_as_long_as_the_host_talks(
    monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr("interpreter.gateway_extension.sandbox.proxy.IDLE_TIMEOUT", 1.0)
    host, clock = Talker(), asyncio.get_running_loop()
    async with proxied(host) as (reader, writer):
        writer.write(first % host.port + b" HTTP/1.1\r\n\r\n")
        until = clock.time() + 2.5
        while clock.time() < until:
            assert await reader.read(1000), "it was cut off"
        host.ended.set()
        while await reader.read(1000):
            pass


async def test_a_tunnel_ends_when_nobody_says_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interpreter.gateway_extension.sandbox.proxy.IDLE_TIMEOUT", 0.1)
    host = Host()
    async with proxied(host) as (reader, writer):
        writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % host.port)
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
        await host.ended.wait()
