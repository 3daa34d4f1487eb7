"""MCP's rules over HTTP: who may come, eras and versions, sessions, streams, and clients that leave."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fakes import Api
from tornado.httpclient import HTTPResponse

from interpreter.api import validity

BOTH_FORMS = "application/json, text/event-stream"
MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    api = await Api.start(tmp_path, keepalive_interval=0.1)
    yield api
    await api.aclose()


async def send(
    api: Api, message: Any, *, token: str | None = "run", path: str = "/mcp", **headers: str
) -> HTTPResponse:
    sent = {"Accept": BOTH_FORMS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await api.ask("POST", path, message, token=token, headers=sent)


async def ask(api: Api, method: str, params: Any = None, **headers: str) -> HTTPResponse:
    """A request of the handshake era."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    return await send(api, message, **headers)


async def ask_modern(api: Api, method: str, params: Any = None, **headers: str) -> HTTPResponse:
    """A request of the stateless era."""
    params = {"_meta": META, **(params or {})}
    known = {"MCP_Protocol_Version": MODERN, "Mcp_Method": method}
    if "name" in params:
        known["Mcp_Name"] = params["name"]
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await send(api, message, **{**known, **headers})


def body_of(response: HTTPResponse) -> Any:
    return json.loads(response.body)


def events_of(response: HTTPResponse) -> list[Any]:
    lines = response.body.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def begin(api: Api, version: str = "2025-11-25") -> str:
    welcome = await ask(api, "initialize", {"protocolVersion": version, "capabilities": {}})
    assert body_of(welcome)["result"]["protocolVersion"] == version
    return welcome.headers["Mcp-Session-Id"]


def call(code: str, **arguments: Any) -> dict[str, Any]:
    return {"name": "execute_python", "arguments": {"code": code, **arguments}}


# Who may come


async def test_no_token_is_told_how_to_bring_one(api: Api) -> None:
    response = await send(api, {"jsonrpc": "2.0", "id": 1, "method": "ping"}, token=None)
    assert response.code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    assert body_of(response)["error"]["message"].startswith("Send a token")
    assert (await ask(api, "ping", token="review")).code == 403


async def test_token_may_come_in_the_url(api: Api) -> None:
    assert (await ask(api, "ping", token=None, path=f"/mcp?token={api.secrets['run']}")).code == 200
    assert (await ask(api, "ping", token=None, path="/mcp?token=wrong")).code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example.com"},
        {"Origin": "http://evil.example.com"},
        {"Origin": "null"},
        {"Host": "evil.example.com:80", "Origin": "http://evil.example.com:80"},
        {"Origin": "http://localhost.evil.example.com"},
    ],
)
async def test_pages_of_other_hosts_are_refused(api: Api, headers: dict[str, str]) -> None:
    response = await ask(api, "ping", **headers)
    assert response.code == 403
    assert "allowed_hosts" in body_of(response)["error"]["message"]


@pytest.mark.parametrize("origin", ["http://localhost:6274", "http://127.0.0.1", "http://[::1]:1"])
async def test_pages_of_this_machine_are_welcome(api: Api, origin: str) -> None:
    assert (await ask(api, "ping", Origin=origin)).code == 200


async def test_allowed_host_is_welcome(tmp_path: Path) -> None:
    api = await Api.start(tmp_path, allowed_hosts="code.example.org, other.example.org")
    assert (await ask(api, "ping", Host="code.example.org", Origin="https://code.example.org")).code == 200
    assert (await ask(api, "ping", Host="evil.example.org")).code == 403
    await api.aclose()


# Messages


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'"text"', -32600),
        (b'{"id": 1, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 2}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}', -32602),
    ],
)
async def test_what_is_no_message_is_refused(api: Api, body: bytes, code: int) -> None:
    response = await api.ask("POST", "/mcp", raw=body, headers={"Accept": BOTH_FORMS})
    assert (response.code, body_of(response)["error"]["code"]) == (400, code)


async def test_notices_and_responses_are_accepted(api: Api) -> None:
    for message in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ):
        response = await send(api, message)
        assert (response.code, response.body) == (202, b"")


async def test_accept_is_checked(api: Api) -> None:
    assert (await ask(api, "ping", Accept="text/html")).code == 406
    assert (await ask_modern(api, "tools/list", Accept="application/json")).code == 406
    assert (await ask_modern(api, "tools/list", Accept="*/*")).code == 200
    assert (await ask(api, "ping", Accept="application/json")).headers["Content-Type"] == "application/json"
    streamed = await ask(api, "ping", Accept="text/event-stream")
    assert events_of(streamed) == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


async def test_body_must_be_json(api: Api) -> None:
    response = await ask(api, "ping", Content_Type="text/plain")
    assert (response.code, body_of(response)["id"]) == (415, None)


async def test_get_is_not_offered(api: Api) -> None:
    response = await api.ask("GET", "/mcp", headers={"Accept": "text/event-stream"})
    assert (response.code, response.headers["Allow"]) == (405, "POST, DELETE")


# The handshake era


async def test_handshake_agrees_on_a_version(api: Api) -> None:
    await begin(api, "2024-11-05")
    newer = await ask(api, "initialize", {"protocolVersion": "2099-01-01"})
    assert body_of(newer)["result"]["protocolVersion"] == "2025-11-25"
    assert set(body_of(newer)["result"]) == {"protocolVersion", "capabilities", "serverInfo", "instructions"}
    listed = body_of(await ask(api, "tools/list"))["result"]
    assert set(listed) == {"tools"}
    assert (await ask(api, "ping", MCP_Protocol_Version="2099-01-01")).code == 400


async def test_session_of_another_token_or_none_is_not_found(api: Api) -> None:
    mine = await begin(api)
    assert (await ask(api, "ping", Mcp_Session_Id=mine)).code == 200
    for token, session_id in (("admin", mine), ("run", "unknown")):
        response = await ask(api, "ping", token=token, Mcp_Session_Id=session_id)
        assert (response.code, body_of(response)["error"]["code"]) == (404, -32001)


async def test_delete_ends_the_session_of_the_connection(api: Api) -> None:
    mine = await begin(api)
    result = body_of(await ask(api, "tools/call", call("1"), Mcp_Session_Id=mine))["result"]
    assert result["structuredContent"]["session_id"] in api.sessions.live
    headers = {"Mcp-Session-Id": mine}
    assert (await api.ask("DELETE", "/mcp", token="run", headers=headers)).code == 204
    assert api.sessions.live == {}
    assert (await api.ask("DELETE", "/mcp", token="run", headers=headers)).code == 404
    assert (await ask(api, "ping", Mcp_Session_Id=mine)).code == 404
    assert (await api.ask("DELETE", "/mcp", token="run")).code == 400


async def test_calls_of_a_connection_share_one_session_also_at_once(api: Api) -> None:
    mine = await begin(api)
    responses = await asyncio.gather(
        *(ask(api, "tools/call", call("1"), Mcp_Session_Id=mine) for _ in range(3))
    )
    ids = {body_of(r)["result"]["structuredContent"]["session_id"] for r in responses}
    assert ids == set(api.sessions.live)


async def test_session_that_ended_is_replaced_and_the_model_told(api: Api) -> None:
    mine = await begin(api)
    first = body_of(await ask(api, "tools/call", call("1"), Mcp_Session_Id=mine))["result"]
    api.sessions.gone.add(first["structuredContent"]["session_id"])
    api.sessions.live.clear()
    second = body_of(await ask(api, "tools/call", call("1"), Mcp_Session_Id=mine))["result"]
    assert second["content"][0]["text"].startswith("The earlier session has ended")
    third = body_of(await ask(api, "tools/call", call("1"), Mcp_Session_Id=mine))["result"]
    assert "ended" not in third["content"][0]["text"]


async def test_dropped_connection_is_no_cancellation(api: Api) -> None:
    mine = await begin(api)
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call("wait")}
    await drop_when_submitted(api, message, {"Mcp-Session-Id": mine})
    assert api.runs.cancelled.empty()
    (active,) = api.runs.active.values()
    assert not active.done.is_set()
    notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    assert (await send(api, notice, Mcp_Session_Id=mine)).code == 202
    assert (await api.runs.cancelled.get())[0] == active.run.id


# The stateless era


async def test_discover_and_lists_say_how_long_they_hold(api: Api) -> None:
    found = body_of(await ask_modern(api, "server/discover"))["result"]
    assert found["supportedVersions"][0] == MODERN
    for method in ("server/discover", "tools/list", "resources/list", "prompts/list"):
        result = body_of(await ask_modern(api, method))["result"]
        assert result["resultType"] == "complete"
        assert {"ttlMs", "cacheScope"} <= set(result)
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "jupyter-code-interpreter"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Mcp_Method": "tools/call"}, -32020),
        ({"MCP_Protocol_Version": "2025-11-25"}, -32020),
        ({"MCP_Protocol_Version": "2099-01-01"}, -32020),
    ],
)
async def test_headers_must_repeat_the_body(api: Api, headers: dict[str, str], code: int) -> None:
    response = await ask_modern(api, "tools/list", **headers)
    assert (response.code, body_of(response)["error"]["code"]) == (400, code)


async def test_name_header_is_compared_and_may_be_encoded(api: Api) -> None:
    wrong = await ask_modern(api, "tools/call", call("1"), Mcp_Name="other")
    assert body_of(wrong)["error"]["code"] == -32020
    right = await ask_modern(api, "tools/call", call("1"), Mcp_Name="=?base64?ZXhlY3V0ZV9weXRob24=?=")
    assert right.code == 200


async def test_other_versions_are_told_which_are_supported(api: Api) -> None:
    params = {"_meta": {**META, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
    response = await send(api, message, MCP_Protocol_Version="2099-01-01", Mcp_Method="tools/list")
    error = body_of(response)["error"]
    assert (response.code, error["code"], error["data"]["requested"]) == (400, -32022, "2099-01-01")
    assert MODERN in error["data"]["supported"]


async def test_unknown_method_is_404_and_lacking_meta_400(api: Api) -> None:
    response = await ask_modern(api, "ping")
    assert (response.code, body_of(response)["error"]["code"]) == (404, -32601)
    assert (await ask_modern(api, "tools/list", {"_meta": {}})).code == 400
    assert (await api.ask("DELETE", "/mcp", headers={"MCP-Protocol-Version": MODERN})).code == 405


async def test_each_call_without_a_session_makes_one_and_names_it(api: Api) -> None:
    results = [body_of(await ask_modern(api, "tools/call", call("1")))["result"] for _ in range(2)]
    ids = [result["structuredContent"]["session_id"] for result in results]
    assert len(set(ids)) == 2
    assert ids[0] in results[0]["content"][0]["text"]
    again = body_of(await ask_modern(api, "tools/call", call("1", session_id=ids[0])))["result"]
    assert again["structuredContent"]["session_id"] == ids[0]
    assert ids[0] not in again["content"][0]["text"]


async def test_client_that_leaves_ends_its_run_and_the_session_it_never_heard_of(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: asyncio.Queue[str] = asyncio.Queue()

    async def delete(principal: Any, session_id: str) -> None:
        deleted.put_nowait(session_id)

    monkeypatch.setattr(api.sessions, "delete", delete)
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "execute_python"}
    params = {"_meta": META, **call("wait")}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    await drop_when_submitted(api, message, headers)
    _, reason = await asyncio.wait_for(api.runs.cancelled.get(), 5)
    assert reason == "The client went away."
    assert await asyncio.wait_for(deleted.get(), 5) in api.sessions.live


# Tools


@pytest.mark.parametrize("name", ["no_such_tool", "python", "cleanup_session"])
async def test_unknown_tool_is_a_fault_of_the_protocol(api: Api, name: str) -> None:
    response = await ask_modern(api, "tools/call", {"name": name, "arguments": {}})
    assert (response.code, body_of(response)["error"]["code"]) == (400, -32602)


@pytest.mark.parametrize(
    "arguments", [{}, {"code": 1}, {"code": "1", "timeout": -1}, {"code": "1", "session_id": 5}]
)
async def test_wrong_arguments_are_told_to_the_model(api: Api, arguments: dict[str, Any]) -> None:
    response = await ask_modern(api, "tools/call", {"name": "execute_python", "arguments": arguments})
    result = body_of(response)["result"]
    assert (response.code, result["isError"]) == (200, True)
    assert api.sessions.live == {}


async def test_failed_code_is_an_error_with_its_structure(api: Api) -> None:
    result = body_of(await ask_modern(api, "tools/call", call("raise")))["result"]
    assert (result["isError"], result["structuredContent"]["status"]) == (True, "error")


async def test_waiting_call_becomes_a_stream_with_signs_of_life(api: Api) -> None:
    mine = await begin(api)
    message = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": call("wait")}
    reader, writer = await post_raw(api, message, {"Mcp-Session-Id": mine, "Connection": "close"})
    head = await asyncio.wait_for(reader.readuntil(b": keep-alive\n\n"), 5)
    assert b"Content-Type: text/event-stream" in head
    notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "a"}}
    assert (await send(api, notice, Mcp_Session_Id=mine)).code == 202
    rest = await asyncio.wait_for(reader.read(), 5)
    assert b'"status":"cancelled"' in rest
    writer.close()
    await writer.wait_closed()


async def test_a_stream_ends_with_its_token(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validity, "_INTERVAL", 0.02)
    message = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": call("wait")}
    reader, writer = await post_raw(api, message, {"Mcp-Session-Id": await begin(api), "Connection": "close"})
    await reader.readuntil(b": keep-alive\n\n")
    await api.revoke("run")
    assert b"result" not in await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_a_call_whose_token_ends_before_its_answer_is_told_so(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "_INTERVAL", 0.02)
    waiting = asyncio.ensure_future(ask(api, "tools/call", call("wait"), Accept="application/json"))
    await api.runs.submitted.wait()
    await api.revoke("run")
    answer = await waiting
    assert answer.code == 401
    assert "revoked" in body_of(answer)["error"]["message"]
    await api.runs.cancelled.get()


async def test_progress_carries_output_and_rises(api: Api) -> None:
    params = {**call("1"), "_meta": {**META, "progressToken": "t"}}
    *notices, answer = events_of(await ask_modern(api, "tools/call", params))
    assert [notice["method"] for notice in notices] == ["notifications/progress"]
    assert notices[0]["params"] == {"progressToken": "t", "progress": 1, "message": "\u2028é"}
    assert "result" in answer


async def test_files_of_a_chat_are_resources(api: Api) -> None:
    headers = {"X_Session_Id": "chat 1"}
    result = body_of(await ask_modern(api, "tools/call", call("1"), **headers))["result"]
    session_id = result["structuredContent"]["session_id"]
    for name, content in (("a b/ü.txt", b"text"), ("raw.bin", b"\xff\x00")):
        put = await api.ask("PUT", f"/v1/sessions/{session_id}/files/{quote(name)}", raw=content)
        assert put.code == 201
    resources = body_of(await ask_modern(api, "resources/list", **headers))["result"]["resources"]
    assert [resource["name"] for resource in resources] == ["a b/ü.txt", "raw.bin"]
    contents = []
    for resource in resources:
        uri = resource["uri"]
        read = await ask_modern(api, "resources/read", {"uri": uri}, Mcp_Name=uri)
        contents += body_of(read)["result"]["contents"]
    assert (contents[0]["text"], contents[1]["blob"]) == ("text", "/wA=")
    uri = f"interpreter://files/{session_id}//mnt/data/raw.bin"  # the path that code sees
    read = await ask_modern(api, "resources/read", {"uri": uri}, Mcp_Name=uri)
    assert body_of(read)["result"]["contents"][0]["blob"] == "/wA="
    assert body_of(await ask_modern(api, "resources/list"))["result"]["resources"] == []


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "interpreter://files/x", "interpreter://files/x/../y"])
async def test_unknown_resource_is_not_found_in_each_era(api: Api, uri: str) -> None:
    modern = await ask_modern(api, "resources/read", {"uri": uri}, Mcp_Name=uri)
    assert (body_of(modern)["error"]["code"], body_of(modern)["error"]["data"]) == (-32602, {"uri": uri})
    assert body_of(await ask(api, "resources/read", {"uri": uri}))["error"]["code"] == -32002


# vLLM's tool server


async def test_tool_server_wants_a_token_unless_the_admin_says_otherwise(tmp_path: Path) -> None:
    api = await Api.start(tmp_path)
    assert (await api.ask("GET", "/mcp/python/sse", token=None)).code == 401
    await api.aclose()


async def test_a_tool_servers_stream_ends_with_its_token(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validity, "_INTERVAL", 0.02)
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    head = f"GET /mcp/python/sse HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.secrets['run']}"
    writer.write(f"{head}\r\n\r\n".encode())
    await reader.readuntil(b"event: endpoint")
    await api.revoke("run")
    await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    await writer.wait_closed()


async def test_tool_server_is_open_to_this_machine_only(tmp_path: Path) -> None:
    api = await Api.start(tmp_path, vllm_tool_server=True, allowed_hosts="code.example.org")
    for headers, code in (
        ({"Host": "code.example.org"}, 401),
        ({"X-Forwarded-For": "10.0.0.1"}, 401),
        ({"Host": "evil.example.com"}, 403),
        ({"Origin": "http://evil.example.com"}, 403),
    ):
        assert (await api.ask("GET", "/mcp/python/sse", token=None, headers=headers)).code == code
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(b"GET /mcp/python/sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = await asyncio.wait_for(reader.readuntil(b"\n\n"), 5)
    assert b" 200 " in answer
    assert b"event: endpoint\ndata: /mcp/python/messages?session_id=" in answer
    writer.close()
    await writer.wait_closed()
    missing = await api.ask("POST", "/mcp/python/messages?session_id=x", {"jsonrpc": "2.0"}, token=None)
    assert missing.code == 404
    await api.aclose()


async def post_raw(
    api: Api, message: Any, headers: dict[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a call on a connection of its own."""
    body = json.dumps(message).encode()
    lines = [
        "POST /mcp HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {api.secrets['run']}",
        f"Accept: {BOTH_FORMS}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return reader, writer


async def drop_when_submitted(api: Api, message: Any, headers: dict[str, str]) -> None:
    """Send a call, and hang up once its run is there."""
    _, writer = await post_raw(api, message, headers)
    await asyncio.wait_for(api.runs.submitted.wait(), 5)
    writer.close()
    await writer.wait_closed()
