"""What the clients of one token leave unread is bounded for all of them together, and ends with the token."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from jupyter_kit import Front, front
from recordkit import eventually

from interpreter.frontends.jupyter.ids import session_id_of

MB = 1024**2
SIZE = 12 * MB  # of an answer; more than the system holds of it for a client that does not read
PATIENCE = 60.0


@pytest.fixture
async def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Front]:
    monkeypatch.setattr("interpreter.api.routes.MAX_HELD_BYTES", 2 * SIZE + 4 * MB)
    async with front(tmp_path, max_body_bytes=MB) as made, asyncio.timeout(PATIENCE):
        yield made


class Asker:
    """A client that asks, and reads when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def ask(cls, jupyter: Front, path: str, token: str = "run") -> "Asker":
        """Its request is on its way."""
        address = urlsplit(jupyter.url)
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect((address.hostname, address.port))
        made = cls(*await asyncio.open_connection(sock=link, limit=4096))
        made._writer.write(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {jupyter.secrets[token]}\r\n\r\n".encode()
        )
        return made

    async def status(self) -> int:
        """Of the answer, the rest of which is not read."""
        return int((await self.reader.readline()).split()[1])

    def is_cut_off(self) -> bool:
        """Whether the service takes nothing from it any more."""
        self._writer.write(b"\r\n")
        return self._writer.transport.is_closing()

    def close(self) -> None:
        """It goes away."""
        self._writer.transport.abort()


@pytest.fixture
async def kernel_id(jupyter: Front, tmp_path: Path) -> str:
    """One with a large file."""
    made = await jupyter.start_kernel()
    folder = next(tmp_path.rglob(session_id_of(made)))
    (folder / "large.txt").write_text("x" * SIZE)
    return made


@pytest.fixture(params=["whole", "in pieces"])
def path(request: pytest.FixtureRequest, kernel_id: str) -> str:
    """Of an answer that is sent at once, of one that is sent as its client reads."""
    if request.param == "whole":
        return f"/api/contents/{kernel_id}/large.txt?format=text&content=1"
    return f"/v1/sessions/{session_id_of(kernel_id)}/files/large.txt"


async def test_unread_answers_of_one_token_are_bounded(jupyter: Front, kernel_id: str) -> None:
    path = f"/api/contents/{kernel_id}/large.txt?content=1"
    holders = [await Asker.ask(jupyter, path) for _ in range(2)]
    assert [await holder.status() for holder in holders] == [200, 200]
    refused = await jupyter.ask("GET", path)
    assert (refused.code, refused.headers["Retry-After"]) == (503, "1")
    assert (await jupyter.ask("GET", "/api/kernels")).code == 200
    other = await Asker.ask(jupyter, path, "admin")
    assert await other.status() == 200
    for client in (*holders, other):
        client.close()
    while (again := await jupyter.ask("GET", path)).code == 503:
        pass  # until the service has seen that they are gone
    assert (again.code, len(again.body) > SIZE) == (200, True)


async def test_an_answer_ends_with_its_token(jupyter: Front, path: str) -> None:
    [token] = [info for info in await jupyter.tokens.list() if info.name == "run"]
    client = await Asker.ask(jupyter, path)
    assert await client.status() == 200
    await jupyter.tokens.revoke(token.id)
    await eventually(client.is_cut_off)
    client.close()
