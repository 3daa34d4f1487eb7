"""Large answers sent piece by piece, each when the client has taken the one before."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import BinaryIO

from interpreter.api.connections import connection_of
from interpreter.api.unread import CountedAnswers

PIECE_BYTES = 256 * 1024


async def write_bytes(handler: CountedAnswers, data: bytes) -> None:
    """Write a part of an answer; one of more than `PIECE_BYTES` is sent before this returns."""
    if len(data) <= PIECE_BYTES:
        handler.write(data)
        return
    with handler.holding(len(data)):
        for piece in _pieces(data):
            handler.write(piece)
            await handler.flush()


async def send_file(handler: CountedAnswers, file: BinaryIO, size: int) -> None:
    """Answer with the ``size`` bytes of a file from its present position."""
    handler.set_header("Content-Length", str(size))
    if handler.request.method == "HEAD":
        return
    async with unbroken(handler):
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            handler.write(piece)
            await handler.flush()


@asynccontextmanager
async def unbroken(handler: CountedAnswers) -> AsyncIterator[None]:
    """Whoever gets only a part of an answer must see that it is one: then the connection is closed."""
    whole = False
    try:
        yield
        whole = True
    finally:
        if not whole and handler._headers_written:
            connection_of(handler.request).stream.close()


def _pieces(data: bytes) -> Iterable[bytes]:
    view = memoryview(data)
    return (bytes(view[start : start + PIECE_BYTES]) for start in range(0, len(data), PIECE_BYTES))
