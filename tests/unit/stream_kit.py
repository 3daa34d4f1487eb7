"""What a stream delivers, and a kernel that writes to its end of the stream itself."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

from interpreter.gateway_extension.stream import CONNECT_INTERVAL, KernelStream, Share

MIB = 1024**2
TIMEOUT = 20.0
SHARE = Share(2 * MIB, MIB)


class Heard(asyncio.Queue[list[bytes]]):
    """What a stream delivered."""

    async def next(self) -> list[bytes]:
        async with asyncio.timeout(TIMEOUT):
            return await self.get()


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
