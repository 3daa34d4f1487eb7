"""Numbers that are far too large are the client's fault wherever they are."""

import asyncio

import pytest
from fakes import Api

DIGITS = [400, 5000]
"""What is no float any more, and what Python reads as no number any more."""

BODIES = [
    ("/v1/runs", '{"code": "1", "timeout": %s}'),
    ("/onyx/v1/execute", '{"code": "1", "timeout_ms": %s}'),
    ("/dify/v1/sandbox/run", '{"language": "python3", "code": "1", "enable_network": %s}'),
    ("/azure/code/execute?identifier=a", '{"properties": {"code": "1", "timeoutInSeconds": %s}}'),
    ("/librechat/exec", '{"lang": "py", "code": "1", "timeout": %s}'),
    ("/open-terminal/execute?wait=1", '{"command": "ls", "timeout": %s}'),
    ("/mcp", '{"jsonrpc": "2.0", "id": %s, "method": "ping"}'),
]


@pytest.mark.parametrize("digits", DIGITS)
@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_in_a_body(api: Api, path: str, body: str, digits: int) -> None:
    answer = await api.ask("POST", path, token="run", raw=(body % ("9" * digits)).encode())
    assert answer.code in (200, 400)  # some front ends answer with an error of their own kind
    assert b"out of range" in answer.body
    assert not api.runs.requests


@pytest.mark.parametrize("digits", DIGITS)
async def test_as_the_length_of_a_body(api: Api, digits: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.secrets['run']}\r\n"
        f"Content-Length: {'9' * digits}\r\n\r\n".encode()
    )
    assert b" 413 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize("value", ["9" * 5000, "0" * 9 + "9" * 5000, "000000500000"])
async def test_in_a_query(api: Api, value: str) -> None:
    for path in (
        "/open-terminal/files/grep?query=x&max_results=",
        "/open-terminal/files/read?path=x&start_line=",
        "/open-terminal/execute/run_x_1/status?wait=",
        "/v1/notebooks?limit=",
    ):
        answer = await api.ask("GET", path + value, token="run")
        assert answer.code in (400, 404), path
