"""Many connections and many uploads leave the service what it needs: open files and memory."""

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes import Api
from recordkit import eventually
from tornado.web import Application, RequestHandler

from interpreter.api import server
from interpreter.api.server import Server, allow_many_files

MB = 1024**2


class _Greets(RequestHandler):
    def get(self) -> None:
        self.finish("hello")


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """Of a server that may have forty more files open than there are now."""
    with open("/dev/null") as file:
        monkeypatch.setattr(server, "MAX_FILES", 2 * (file.fileno() + 20))
    serving = Server(Application([("/", _Greets)]))
    serving.listen(0, "127.0.0.1")
    [listening] = serving._sockets.values()
    yield listening.getsockname()[1]
    serving.stop()
    await serving.close_all_connections()


async def _ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_connections_leave_files_to_the_service(port: int) -> None:
    assert (await _ask(port)).endswith(b"hello")
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
    assert await _ask(port) == b""
    for _, writer in opened:
        writer.transport.abort()
    async with asyncio.timeout(60.0):
        while not (answer := await _ask(port)):
            pass  # until the server has seen that they are gone
    assert answer.endswith(b"hello")


def test_the_service_may_open_more_files_than_is_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
        monkeypatch.setattr(server, "MAX_FILES", hard + 1)
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_parts_that_wait_for_others_are_not_in_memory(
    api: Api, session_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interpreter.workspace.uploads._MAX_WAITING", MB)
    part = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="%d"\r\n\r\n'
        + b"x" * (MB // 2)
        + b"\r\n"
    )
    body = b"".join(part % number for number in range(8))
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(
        f"POST /v1/sessions/{session_id}/files HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body) + 5}\r\n"
        f"Authorization: Bearer {api.secrets['admin']}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n".encode()
        + body
    )

    def on_the_disk() -> int:
        return sum(file.stat().st_size for file in tmp_path.rglob("*") if len(file.name) == 32)

    await eventually(lambda: on_the_disk() > 2 * MB)
    writer.close()
    await eventually(lambda: on_the_disk() == 0)
