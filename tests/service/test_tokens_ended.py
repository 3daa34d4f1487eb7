"""A request whose token ends while its body is on its way changes nothing."""

import asyncio
from pathlib import Path

import pytest
from fakes import Api

from interpreter.models import Role

PATIENCE = 60.0
BODIES = {
    "files/x.txt": b"content",
    "runs": b'{"code": "1"}',
    "tokens": b'{"name": "another", "role": "admin"}',
}
ROUTES = [
    ("PUT", "/v1/sessions/{session}/files/x.txt", "run"),
    ("POST", "/v1/sessions/{session}/runs", "run"),
    ("POST", "/v1/tokens", "admin"),
    ("POST", "/azure/code/execute?identifier=one", "run"),
    ("POST", "/api/kernels", "run"),
    ("POST", "/librechat/exec", "run"),
    ("POST", "/mcp", "run"),
]


@pytest.mark.parametrize(("method", "path", "role"), ROUTES)
async def test_a_token_that_ends_before_the_body_does(api: Api, method: str, path: str, role: str) -> None:
    session_id = await api.make_session(role)
    path = path.format(session=session_id)
    body = next((body for end, body in BODIES.items() if path.endswith(end)), b"{}")
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {api.secrets[role]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    async with asyncio.timeout(PATIENCE):
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # it was let in
        writer.write(body[:1])
        await api.revoke(role)
        writer.write(body[1:])
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 401 " in head
    writer.close()
    assert list(api.sessions.live) == [session_id]
    assert not api.runs.requests
    assert {info.name for info in await api.tokens.list()} <= {
        "configured",
        *(f"a {role} token" for role in Role),
    }


@pytest.mark.parametrize("announced", ["Content-Length: 50000000", "Transfer-Encoding: chunked"])
async def test_an_upload_is_not_read_on_when_its_token_has_ended(
    api: Api, tmp_path: Path, announced: str
) -> None:
    session_id = await api.make_session("run")
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(
        f"PUT /v1/sessions/{session_id}/files/x.txt HTTP/1.1\r\nHost: 127.0.0.1\r\n{announced}\r\n"
        f"Authorization: Bearer {api.secrets['run']}\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    async with asyncio.timeout(PATIENCE):
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"4\r\nhalf\r\n")
        await api.revoke("run")
        assert b" 401 " in await reader.readuntil(b"\r\n\r\n")  # although nothing more came
        await reader.read()
    writer.close()
    assert [
        path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes()[-4:] == b"half"
    ] == []
