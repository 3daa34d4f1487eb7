"""The stdio bridge in front of a service of doubles: every request is answered, whatever happens to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes import Api

from interpreter.cli.bridge import Bridge
from interpreter.cli.client import Address

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}}


class Client:
    """Someone at the other end of the bridge's standard input and output."""

    def __init__(self, url: str, token: str) -> None:
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        bridge = Bridge(Address(url, token), None, lambda line: self.answers.put_nowait(json.loads(line)))
        self.running = asyncio.create_task(bridge.run(self._read()))

    async def _read(self) -> AsyncIterator[bytes]:
        while line := await self._lines.get():
            yield line

    def write(self, line: bytes) -> None:
        self._lines.put_nowait(line)

    def send(self, method: str, params: Any = None, message_id: int | None = None) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if message_id is not None:
            message["id"] = message_id
        self.write(json.dumps(message).encode())

    async def answer(self) -> Any:
        return await asyncio.wait_for(self.answers.get(), 5)

    async def ask(self, method: str, params: Any = None, message_id: int = 1) -> Any:
        self.send(method, params, message_id)
        answer = await self.answer()
        assert answer["id"] == message_id
        return answer

    async def close(self) -> None:
        self.write(b"")
        await asyncio.wait_for(self.running, 5)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    api = await Api.start(tmp_path, keepalive_interval=0.1)
    yield api
    await api.aclose()


@pytest.fixture
async def client(api: Api) -> Client:
    return Client(api.url, api.secrets["run"])


def call(code: str) -> dict[str, Any]:
    return {"name": "execute_python", "arguments": {"code": code}}


async def test_handshake_calls_and_the_end(api: Api, client: Client) -> None:
    welcome = await client.ask("initialize", INITIALIZE)
    assert welcome["result"]["protocolVersion"] == "2025-11-25"
    client.send("notifications/initialized")
    client.send("tools/call", {**call("1"), "_meta": {"progressToken": 5}}, 2)
    notice, result = await client.answer(), await client.answer()
    assert (notice["method"], notice["params"]["progressToken"]) == ("notifications/progress", 5)
    assert (result["id"], result["result"]["isError"]) == (2, False)
    assert len(api.sessions.live) == 1
    await client.close()
    assert api.sessions.live == {}


async def test_stateless_requests_need_no_handshake(api: Api, client: Client) -> None:
    found = await client.ask("server/discover", {"_meta": META})
    assert "2026-07-28" in found["result"]["supportedVersions"]
    result = await client.ask("tools/call", {**call("1"), "_meta": META})
    assert result["result"]["resultType"] == "complete"
    await client.close()


async def test_cancelled_stateless_call_hangs_up(api: Api, client: Client) -> None:
    client.send("tools/call", {**call("wait"), "_meta": META}, 3)
    await asyncio.wait_for(api.runs.submitted.wait(), 5)
    client.send("notifications/cancelled", {"requestId": 3, "_meta": META})
    _, reason = await asyncio.wait_for(api.runs.cancelled.get(), 5)
    assert reason == "The client went away."
    await client.close()
    assert client.answers.empty()


async def test_cancelled_call_of_a_handshake_is_passed_on(api: Api, client: Client) -> None:
    await client.ask("initialize", INITIALIZE)
    client.send("tools/call", call("wait"), 3)
    await asyncio.wait_for(api.runs.submitted.wait(), 5)
    client.send("notifications/cancelled", {"requestId": 3})
    assert (await client.answer())["result"]["structuredContent"]["status"] == "cancelled"
    await client.close()


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b'{"jsonrpc": "1.0"}\n', b"[" * 100_000])
async def test_what_is_no_message_is_told(client: Client, line: bytes) -> None:
    client.write(line)
    answer = await client.answer()
    assert (answer["id"], "error" in answer) == (None, True)
    assert (await client.ask("ping"))["result"] == {}
    await client.close()


async def test_forgotten_connection_is_begun_anew(api: Api, client: Client) -> None:
    await client.ask("initialize", INITIALIZE)
    again = Client(api.url, api.secrets["run"])
    await again.ask("initialize", INITIALIZE)
    for route in api.server.request_callback.wildcard_router.rules:  # type: ignore[attr-defined]
        if connections := (route.target_kwargs or {}).get("connections"):
            connections._open.clear()  # as a restart of the service does
    first, second = await client.ask("tools/call", call("1")), await client.ask("tools/call", call("1"))
    ids = {answer["result"]["structuredContent"]["session_id"] for answer in (first, second)}
    assert len(ids) == 1
    await client.close()
    await again.close()
    assert api.sessions.live == {}


async def test_refused_token_is_told(api: Api) -> None:
    client = Client(api.url, "wrong")
    answer = await client.ask("initialize", INITIALIZE)
    assert "token" in answer["error"]["message"]
    await client.close()


async def test_service_that_is_not_there_is_told(api: Api) -> None:
    client = Client("http://127.0.0.1:9", "token")
    answer = await client.ask("initialize", INITIALIZE)
    assert "can't be reached" in answer["error"]["message"]
    await client.close()


async def test_what_is_no_mcp_service_is_told(api: Api) -> None:
    client = Client(api.url + "/elsewhere", api.secrets["run"])
    answer = await client.ask("initialize", INITIALIZE)
    assert "HTTP 404" in answer["error"]["message"]
    await client.close()


async def test_signal_ends_what_runs(api: Api, client: Client) -> None:
    client.send("tools/call", {**call("wait"), "_meta": META}, 3)
    await asyncio.wait_for(api.runs.submitted.wait(), 5)
    client.running.cancel()
    await asyncio.wait({client.running})
    await asyncio.wait_for(api.runs.cancelled.get(), 5)
