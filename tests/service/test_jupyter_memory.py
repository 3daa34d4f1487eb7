"""What the Jupyter clients of one token send and leave is bounded for all of them together."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from jupyter_kit import Front, contents, front, text

from interpreter.api.shares import Shares
from interpreter.frontends.jupyter import wire
from interpreter.frontends.jupyter.kept import Kept
from interpreter.frontends.jupyter.pacing import LARGE, Turns
from interpreter.messages import BadMessageError

MB = 1024**2
PATIENCE = 60.0
TRY_LATER = 1013
KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455's


@pytest.fixture
async def jupyter(tmp_path: Path) -> AsyncIterator[Front]:
    async with (
        front(tmp_path, max_body_bytes=MB // 2, max_held_bytes=2 * MB) as made,
        asyncio.timeout(PATIENCE),
    ):
        yield made


class Frames:
    """A websocket that sends parts of messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, jupyter: Front, kernel_id: str) -> "Frames":
        address = urlsplit(jupyter.url)
        made = cls(*await asyncio.open_connection(address.hostname, address.port))
        made.writer.write(
            f"GET /api/kernels/{kernel_id}/channels?token={jupyter.secrets['run']} HTTP/1.1\r\nHost: x\r\n"
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {KEY}\r\n\r\n".encode()
        )
        head = await made._reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head
        return made

    def send(self, first: int, payload: bytes, announced: int) -> None:
        """A frame's begin; its mask changes nothing."""
        self.writer.write(bytes([first, 0xFF]) + struct.pack("!Q", announced) + bytes(4) + payload)

    async def close_code(self) -> int:
        """Why the service ended it."""
        while True:
            first, size = await self._reader.readexactly(2)
            payload = await self._reader.readexactly(size)
            if first == 0x88:
                return int.from_bytes(payload[:2], "big")

    async def pong(self) -> bytes:
        """Sent after all that it has sent was read."""
        self.writer.write(b"\x89\x82" + bytes(4) + b"hi")
        assert await self._reader.readexactly(2) == b"\x8a\x02"
        return await self._reader.readexactly(2)


async def _half(frames: Frames) -> None:
    """The first fragment of a message: held until there is more of it."""
    frames.send(0x01, b" " * (3 * MB // 2), 3 * MB // 2)
    assert await frames.pong() == b"hi"


async def test_the_halves_of_all_messages_of_a_token_are_bounded(jupyter: Front) -> None:
    kernel_id = await jupyter.start_kernel()
    holder = await Frames.connect(jupyter, kernel_id)
    await _half(holder)
    for first in (0x01, 0x81):  # a fragment, a frame of which not a byte has come
        refused = await Frames.connect(jupyter, kernel_id)
        refused.send(first, b"", MB)
        assert await refused.close_code() == TRY_LATER
        refused.writer.close()
    async with jupyter.kernel("other") as socket:
        assert text(await socket.run("print " + "x" * (MB // 2))).startswith("x")
    holder.writer.write(b"\x80\x80" + bytes(4))  # it is whole, though no message of Jupyter's
    assert await holder.pong() == b"hi"
    async with jupyter.kernel() as socket:
        assert text(await socket.run("print " + "x" * (MB // 2))).startswith("x")
    await _half(holder)
    holder.writer.close()
    await holder.writer.wait_closed()
    again = await Frames.connect(jupyter, kernel_id)
    await _half(again)
    again.writer.close()


async def test_the_code_that_waits_for_a_token_is_bounded(jupyter: Front) -> None:
    code = "print " + "x" * (MB // 2)
    async with jupyter.kernel() as first, jupyter.kernel() as second:
        first.execute("wait go")
        waiting = [first.execute(code) for _ in range(2)]
        await first.answers(first.send("kernel_info_request", {}))
        refused = await second.run(code)
        assert contents(refused, "execute_reply")[0]["ename"] == "RateLimitedError"
        jupyter.stack.gateway.release("go")
        for msg_id in waiting:
            assert contents(await first.answers(msg_id), "execute_reply")[0]["status"] == "ok"
        assert contents(await second.run(code), "execute_reply")[0]["status"] == "ok"


@pytest.mark.parametrize("value", ["[" + "[]," * 200 + "0]", '{"a":' * 200 + "0" + "}" * 200])
def test_a_header_holds_few_values(value: str) -> None:
    header = f'{{"msg_type": "kernel_info_request", "odd": {value}}}'
    with pytest.raises(BadMessageError):
        wire.decode(f'{{"header": {header}, "content": {{}}}}', v1=False)


def test_of_a_content_only_what_is_read_is_kept() -> None:
    content = {"code": "1", "silent": True, "user_expressions": {"a": "1"}, "payload": [[]] * 5_000}
    frame = json.dumps({"header": {"msg_type": "execute_request"}, "content": content})
    assert wire.decode(frame, v1=False).content == {"code": "1", "silent": True}


def test_what_is_kept_for_all_clients_of_a_token_is_bounded() -> None:
    message = wire.Outgoing("iopub", "stream", {"name": "stdout", "text": "x" * MB}, {})
    shares = Shares(3 * MB)
    clients = [Kept(shares, "run") for _ in range(3)]
    for client in clients:
        client.add(message)
    assert [bool(client) for client in clients] == [True, True, False]
    other = Kept(shares, "other")
    other.add(message)
    assert other.first is message
    clients[0].clear()
    clients[1].drop_first()
    for _ in range(2):
        clients[2].add(message)
    assert clients[2].first is message
    assert not shares.take("run", 2 * MB)


async def test_what_is_large_goes_out_to_a_tokens_clients_one_at_a_time() -> None:
    turns = Turns()
    large = wire.Outgoing("iopub", "display_data", {"data": {"image/png": "x" * (LARGE + 1)}}, {})
    small = wire.Outgoing("iopub", "stream", {"name": "stdout", "text": "x"}, {})

    async def send(token_id: str, message: wire.Outgoing) -> None:
        async with turns.turn(token_id, message):
            pass

    async with asyncio.timeout(PATIENCE):
        async with turns.turn("run", large):
            waiting = asyncio.create_task(send("run", large))
            await send("run", small)
            await send("other", large)
            assert not waiting.done()
        await waiting
