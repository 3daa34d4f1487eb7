"""Large answers sent piece by piece, each when the client has taken the one before."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import BinaryIO

from interpreter.api.connections import connection_of
from interpreter.api.unread import CountedAnswers

PIECE_BYTES = 256 * 1024


async def send_part(
    handler: CountedAnswers, make: Callable[[], Awaitable[bytes]], *, gather: int = 0
) -> None:
    """Send a part of an answer; when there is no room for it, it is made again once there is.

    Parts of together at most ``gather`` bytes are not sent yet.
    """
    data = await make()
    size = handler.unsent + len(data)
    if size <= gather or handler.has_room(size):
        handler.write(data)
        if size > gather:
            await handler.flush()
        return
    del data
    async with handler.room(size):
        handler.write(await make())
        await handler.flush()


async def send_file(handler: CountedAnswers, file: BinaryIO, size: int) -> None:
    """Answer with the ``size`` bytes of a file from its present position."""
    handler.set_header("Content-Length", str(size))
    if handler.request.method == "HEAD":
        return
    async with unbroken(handler):
        for start in range(0, size, PIECE_BYTES):
            async with handler.room(min(PIECE_BYTES, size - start)):
                handler.write(await asyncio.to_thread(file.read, PIECE_BYTES))
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
