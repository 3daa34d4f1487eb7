"""What the clients of one token leave unread is bounded for all of them together, and ends with the token."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from jupyter_kit import Front, front
from recordkit import eventually

from interpreter.frontends.jupyter import contents_routes
from interpreter.frontends.jupyter.ids import session_id_of

MB = 1024**2
SIZE = 12 * MB  # of an answer; more than the system holds of it for a client that does not read
PATIENCE = 60.0


@pytest.fixture
async def jupyter(tmp_path: Path) -> AsyncIterator[Front]:
    async with (
        front(tmp_path, max_body_bytes=MB, max_held_bytes=4 * SIZE + MB // 16) as made,
        asyncio.timeout(PATIENCE),
    ):
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


async def run_large(jupyter: Front, kernel_id: str) -> str:
    """The id of a run whose answer is larger than what is left of the limit."""
    code = {"code": "print " + "x" * (MB // 4)}
    path = f"/v1/sessions/{session_id_of(kernel_id)}/runs"
    made = await jupyter.ask("POST", path, code, Content_Type="application/json")
    return str(json.loads(made.body)["id"])


async def test_unread_answers_of_one_token_are_bounded(jupyter: Front, kernel_id: str) -> None:
    path = f"/api/contents/{kernel_id}/large.txt?content=1"
    small = f"/v1/runs/{await run_large(jupyter, kernel_id)}"
    holders = [await Asker.ask(jupyter, path) for _ in range(2)]
    assert [await holder.status() for holder in holders] == [200, 200]
    refused = await jupyter.ask("GET", small)
    assert (refused.code, refused.headers["Retry-After"]) == (503, "1")
    assert b"max_held_bytes" in refused.body
    assert (await jupyter.ask("GET", "/api/kernels")).code == 200
    other = await Asker.ask(jupyter, path, "admin")
    assert await other.status() == 200
    for client in (*holders, other):
        client.close()
    while (again := await jupyter.ask("GET", small)).code == 503:
        pass  # until the service has seen that they are gone
    assert again.code == 200


async def test_a_run_whose_answer_has_no_room_is_found_later(jupyter: Front, kernel_id: str) -> None:
    path = f"/api/contents/{kernel_id}/large.txt?content=1"
    holders = [await Asker.ask(jupyter, path) for _ in range(2)]
    assert [await holder.status() for holder in holders] == [200, 200]
    code = {"code": "print " + "x" * (MB // 4)}
    runs = f"/v1/sessions/{session_id_of(kernel_id)}/runs"
    refused = await jupyter.ask("POST", runs, code, Content_Type="application/json")
    assert (refused.code, refused.headers["Retry-After"]) == (503, "1")
    told = json.loads(refused.body)["error"]["message"]
    assert "max_held_bytes" in told
    found = re.search(r"GET (/v1/runs/\S+)", told)
    assert found is not None
    for client in holders:
        client.close()
    while (again := await jupyter.ask("GET", found[1])).code == 503:
        pass  # until the service has seen that they are gone
    assert json.loads(again.body)["status"] == "ok"


async def test_an_answer_ends_with_its_token(jupyter: Front, path: str) -> None:
    [token] = [info for info in await jupyter.tokens.list() if info.name == "run"]
    client = await Asker.ask(jupyter, path)
    assert await client.status() == 200
    await jupyter.tokens.revoke(token.id)
    await eventually(client.is_cut_off)
    client.close()


async def test_what_is_sent_in_parts_waits_for_room(jupyter: Front, kernel_id: str) -> None:
    session = f"/v1/sessions/{session_id_of(kernel_id)}"
    run_id = await run_large(jupyter, kernel_id)
    holders = [await Asker.ask(jupyter, f"/api/contents/{kernel_id}/large.txt?content=1") for _ in range(2)]
    assert [await holder.status() for holder in holders] == [200, 200]
    gone = await Asker.ask(jupyter, f"{session}/files/large.txt")
    asking = [
        asyncio.ensure_future(jupyter.ask("GET", path))
        for path in (f"{session}/files/large.txt", f"/v1/runs/{run_id}/events", f"{session}/runs")
    ]
    assert (await jupyter.ask("GET", "/api/kernels")).code == 200
    gone.close()
    for holder in holders:
        holder.close()
    file, events, runs = [await answer for answer in asking]
    assert (file.code, len(file.body)) == (200, SIZE)
    assert (events.code, b"event: run.completed" in events.body) == (200, True)
    assert [run["id"] for run in json.loads(runs.body)["data"]] == [run_id]


async def test_of_many_large_files_only_few_are_read_at_once(
    jupyter: Front, kernel_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading: list[int] = []
    most, with_content = 0, contents_routes.with_content

    def counted(*arguments: Any) -> Any:
        nonlocal most
        reading.append(1)
        most = max(most, len(reading))
        found = with_content(*arguments)
        reading.pop()
        return found

    monkeypatch.setattr(contents_routes, "with_content", counted)
    path = f"/api/contents/{kernel_id}/large.txt?content=1"
    answers = await asyncio.gather(*(jupyter.ask("GET", path) for _ in range(12)))
    assert [answer.code for answer in answers] == [200] * 12
    assert most <= 2


async def test_one_answer_alone_may_be_of_any_size(tmp_path: Path) -> None:
    async with front(tmp_path, max_body_bytes=1024, max_held_bytes=MB) as jupyter:
        kernel_id = await jupyter.start_kernel()
        folder = next(tmp_path.rglob(session_id_of(kernel_id)))
        (folder / "large.txt").write_text("x" * SIZE)
        for _ in range(2):
            answer = await jupyter.ask("GET", f"/api/contents/{kernel_id}/large.txt?content=1")
            assert (answer.code, len(answer.body) > SIZE) == (200, True)


async def test_a_client_that_takes_nothing_is_sent_away(
    jupyter: Front, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interpreter.api.unread.STALL_TIMEOUT", 0.05)
    client = await Asker.ask(jupyter, path)
    assert await client.status() == 200
    await eventually(client.is_cut_off)
    client.close()
