"""MCP against the real service: the SDK's client in both eras, vLLM's way, stdio, npm's conformance suite."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from lazily import Lazy
from mcp_kit import LEGACY, MODERN, execute, mcp_client, text_of
from node_tools import conformance, inspector
from service_process import ServiceProcess, running_service

mcp, mcp_sse = Lazy("mcp"), Lazy("mcp.client.sse")
BOTH = pytest.mark.parametrize("mode", [LEGACY, MODERN])
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig('figure.png')\nplt.show()\n"
GENERIC = {
    "2025-11-25": {
        "server-initialize",
        "server-session-lifecycle",
        "ping",
        "tools-list",
        "resources-list",
        "prompts-list",
        "server-sse-multiple-streams",
        "dns-rebinding-protection",
    },
    MODERN: {
        "tools-list",
        "resources-list",
        "prompts-list",
        "caching",
        "sep-2164-resource-not-found",
        "http-header-validation",
        "server-sse-multiple-streams",
        "dns-rebinding-protection",
    },
}


@BOTH
async def test_result_is_text_structure_image_and_file(service: ServiceProcess, mode: str) -> None:
    async with mcp_client(service, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["execute_python"].output_schema is not None
        result = await execute(client, PLOT + "print('seen')\n6 * 7")
        assert not result.is_error
        assert "42" in text_of(result)
        found = result.structured_content
        assert (found["status"], found["stdout"], found["result"], found["error"]) == (
            "ok", "seen\n", "42", None,
        )  # fmt: skip
        kinds = [block.type for block in result.content]
        assert kinds == ["text", "image", "resource_link"]
        assert result.content[1].mime_type == "image/png"
        link = result.content[2]
        assert (link.name, link.mime_type, found["files"][0]["path"]) == (
            "figure.png", "image/png", "figure.png",
        )  # fmt: skip
        read = await client.read_resource(link.uri)
        assert read.contents[0].blob.startswith("iVBOR")


async def test_handshake_connection_keeps_state_and_its_end_ends_the_session(
    service: ServiceProcess, api: httpx.Client
) -> None:
    async with mcp_client(service, LEGACY) as client:
        first = await execute(client, "x = 41")
        second = await execute(client, "x + 1")
        session_id = first.structured_content["session_id"]
        assert second.structured_content["session_id"] == session_id
        assert second.structured_content["result"] == "42"
        assert session_id not in text_of(second)
        await execute(client, "open('a.txt', 'w').write('hello')")
        (resource,) = (await client.list_resources()).resources
        assert (await client.read_resource(resource.uri)).contents[0].text == "hello"
        listed = await client.call_tool("list_files", {})
        assert [file["path"] for file in listed.structured_content["files"]] == ["a.txt"]
        await client.call_tool("restart_session", {"session_id": ""})  # as where all arguments are required
        assert (await execute(client, "x")).structured_content["error"]["ename"] == "NameError"
    assert api.get(f"/v1/sessions/{session_id}").status_code == 404


async def test_stateless_call_makes_a_session_that_later_calls_name(
    service: ServiceProcess, api: httpx.Client
) -> None:
    async with mcp_client(service, MODERN) as client:
        first = await execute(client, "x = 41")
        session_id = first.structured_content["session_id"]
        assert session_id in text_of(first)
    async with mcp_client(service, MODERN) as client:
        second = await execute(client, "x + 1", session_id=session_id)
        assert second.structured_content["result"] == "42"
        other = await execute(client, "x")
        assert other.is_error
        assert other.structured_content["session_id"] != session_id
    api.delete(f"/v1/sessions/{other.structured_content['session_id']}")
    assert api.delete(f"/v1/sessions/{session_id}").status_code == 204


@BOTH
async def test_chat_header_selects_the_session(service: ServiceProcess, api: httpx.Client, mode: str) -> None:
    headers = {"X-OpenWebUI-Chat-Id": f"chat of {mode}"}
    async with mcp_client(service, mode, headers) as client:
        first = await execute(client, "x = 41")
    async with mcp_client(service, mode, headers) as client:
        second = await execute(client, "x + 1")
    assert second.structured_content["result"] == "42"
    api.delete(f"/v1/sessions/{first.structured_content['session_id']}")


@BOTH
async def test_output_is_seen_while_the_code_runs(service: ServiceProcess, mode: str) -> None:
    seen: asyncio.Queue[tuple[float, str]] = asyncio.Queue()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.put_nowait((progress, message or ""))

    code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('end')"
    async with mcp_client(service, mode, {"X-Session-Id": f"progress {mode}"}) as client:
        session_id = (await execute(client, "1")).structured_content["session_id"]
        running = asyncio.create_task(
            client.call_tool("execute_python", {"code": code}, progress_callback=note)
        )
        progress, message = await asyncio.wait_for(seen.get(), 30)
        assert message == "begun\n"
        assert not running.done()
        with service.client() as api:
            api.put(f"/v1/sessions/{session_id}/files/go", content=b"")
            result = await running
            api.delete(f"/v1/sessions/{session_id}")
        assert result.structured_content["stdout"] == "begun\nend\n"
        later = await seen.get()
        assert later[0] > progress


@BOTH
async def test_cancelled_call_ends_its_run(service: ServiceProcess, api: httpx.Client, mode: str) -> None:
    begun = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        begun.set()

    code = "import time\nprint('begun', flush=True)\ntime.sleep(60)"
    async with mcp_client(service, mode, {"X-Session-Id": f"cancel {mode}"}) as client:
        session_id = (await execute(client, "x = 1")).structured_content["session_id"]
        running = asyncio.create_task(
            client.call_tool("execute_python", {"code": code}, progress_callback=note)
        )
        await asyncio.wait_for(begun.wait(), 30)
        running.cancel()
        await asyncio.wait({running})
        after = await execute(client, "x")
        assert after.structured_content["result"] == "1"
    runs = api.get(f"/v1/sessions/{session_id}/runs").json()["data"]
    assert [run["status"] for run in runs] == ["ok", "cancelled", "ok"]
    api.delete(f"/v1/sessions/{session_id}")


@BOTH
async def test_what_goes_wrong_is_told_to_the_model(service: ServiceProcess, mode: str) -> None:
    async with mcp_client(service, mode, {"X-Session-Id": f"errors {mode}"}) as client:
        failed = await execute(client, "1/0")
        assert failed.is_error
        assert failed.structured_content["error"]["ename"] == "ZeroDivisionError"
        assert "ZeroDivisionError" in text_of(failed)
        bad = await client.call_tool("execute_python", {"code": ""})
        assert bad.is_error
        assert "the code is empty" in text_of(bad)
        gone = await execute(client, "1", session_id="A" * 21)
        assert gone.is_error
        slow = await execute(client, "import time\ntime.sleep(30)", timeout=0.5)
        assert (slow.is_error, slow.structured_content["status"]) == (True, "timeout")


async def test_flood_of_output_and_a_large_image_fit_into_one_event(service: ServiceProcess) -> None:
    code = (
        "from IPython.display import Image, display\n"
        "import io, numpy, matplotlib.image\n"
        "for size in (900, 64):\n"
        "    file = io.BytesIO()\n"
        "    matplotlib.image.imsave(file, numpy.random.rand(size, size, 3), format='png')\n"
        "    display(Image(file.getvalue()))\n"
        "print('é' * 3_000_000)"
    )

    async def note(progress: float, total: float | None, message: str | None) -> None:
        pass

    async with mcp_client(service, LEGACY) as client:
        result = await client.call_tool("execute_python", {"code": code}, progress_callback=note)
        assert [block.type for block in result.content] == ["text", "image", "image"]
        assert len(text_of(result).encode()) < 20_000
        assert "too much room" not in text_of(result)


async def test_vllm_tool_server_form(service: ServiceProcess) -> None:
    """What vLLM does per response: dial, initialize, tools/call, cleanup_session, leave."""
    headers = {"Authorization": f"Bearer {service.token}", "x-session-id": "resp_1"}
    async with (
        mcp_sse.sse_client(service.url + "/mcp/python/sse", headers) as streams,
        mcp.ClientSession(*streams) as session,
    ):
        welcome = await session.initialize()
        assert welcome.server_info.name == "python"
        assert "stateful Jupyter" in (welcome.instructions or "")
        assert (await session.list_tools()).tools == []
        await session.call_tool("python", {"code": "x = 41"})
        result = await session.call_tool("python", {"code": "print(x + 1)"})
        assert [block.type for block in result.content] == ["text"]
        assert (result.content[0].text, result.structured_content, result.is_error) == ("42", None, False)
        failed = await session.call_tool("python", {"code": "1/0"})
        assert not failed.is_error
        assert "ZeroDivisionError" in failed.content[0].text
        wrong = await session.call_tool("python", {})
        assert wrong.content[0].text.count("execute_python") == 0
        await session.call_tool("cleanup_session", {})
        with service.client() as api:
            chats = [item["metadata"].get("chat", "") for item in api.get("/v1/sessions").json()["data"]]
        assert not [chat for chat in chats if chat.startswith("mcp:")]


async def test_smg_form(service: ServiceProcess, api: httpx.Client) -> None:
    async with mcp_client(service, LEGACY, path="/mcp/smg") as client:
        result = await execute(client, PLOT)
        shown = json.loads(text_of(result))
        assert set(shown) == {"container_id", "code", "logs"}
        outputs = result.structured_content["outputs"]
        assert outputs[0]["type"] == "image"
        assert outputs[0]["url"].startswith("data:image/png;base64,")
        again = await execute(client, "plt.__name__", container_id=shown["container_id"])
        assert "matplotlib" in json.loads(text_of(again))["logs"]
        api.delete(f"/v1/sessions/{shown['container_id']}")


@asynccontextmanager
async def stdio(service: ServiceProcess, tmp_path: Path, mode: str) -> AsyncIterator[Any]:
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "interpreter", "mcp"],
        env={
            "INTERPRETER_STATE_DIR": str(service.state_dir),
            "JUPYTER_CONFIG_DIR": str(tmp_path),
            "PATH": os.environ["PATH"],
        },
        cwd=str(Path(__file__).parents[2]),
    )
    transport: Any = mcp.stdio_client(parameters)
    async with mcp.Client(transport, mode=mode) as client:
        yield client


@BOTH
async def test_stdio_carries_calls_progress_and_cancellation(
    service: ServiceProcess, api: httpx.Client, tmp_path: Path, mode: str
) -> None:
    begun = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        begun.set()

    async with stdio(service, tmp_path, mode) as client:
        first = await execute(client, "x = 41")
        session_id = first.structured_content["session_id"]
        arguments = {
            "code": "print('begun', flush=True)\nimport time\ntime.sleep(60)",
            "session_id": session_id,
        }
        running = asyncio.create_task(client.call_tool("execute_python", arguments, progress_callback=note))
        await asyncio.wait_for(begun.wait(), 30)
        running.cancel()
        await asyncio.wait({running})
        after = await execute(client, "x + 1", session_id=session_id)
        assert after.structured_content["result"] == "42"
        runs = api.get(f"/v1/sessions/{session_id}/runs").json()["data"]
        assert [run["status"] for run in runs] == ["ok", "cancelled", "ok"]
    gone = api.delete(f"/v1/sessions/{session_id}").status_code
    assert gone == (404 if mode == LEGACY else 204)


def test_connection_goes_on_after_a_restart_of_the_service(tmp_path: Path) -> None:
    def post(method: str, params: dict[str, Any], **headers: str) -> httpx.Response:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        sent = {"Accept": "application/json, text/event-stream", **headers}
        with service.client() as client:
            return client.post("/mcp", json=message, headers=sent)

    call = {"name": "execute_python", "arguments": {"code": "open('kept.txt', 'a').write('x')"}}
    with running_service(tmp_path) as service:
        begun = post("initialize", {"protocolVersion": "2025-11-25"})
        session = {"Mcp-Session-Id": begun.headers["Mcp-Session-Id"]}
        first = post("tools/call", call, **session).json()["result"]
        service.restart()
        second = post("tools/call", call, **session).json()["result"]
    ids = [result["structuredContent"]["session_id"] for result in (first, second)]
    assert ids[0] == ids[1]
    assert second["structuredContent"]["kernel_restarted"] is True
    assert "restarted" in second["content"][0]["text"]
    assert second["structuredContent"]["files"][0]["change"] == "modified"


@pytest.mark.parametrize("version", sorted(GENERIC))
async def test_generic_conformance_scenarios_pass(
    service: ServiceProcess, tmp_path: Path, version: str
) -> None:
    passed = await conformance(service, version, tmp_path)
    assert GENERIC[version] <= passed


async def test_inspector_lists_and_calls(service: ServiceProcess, tmp_path: Path) -> None:
    listed = await inspector(service, tmp_path, "--method", "tools/list")
    assert "execute_python" in [tool["name"] for tool in listed["tools"]]
    called = await inspector(
        service, tmp_path, "--method", "tools/call", "--tool-name", "execute_python", "--tool-arg", "code=6*7"
    )
    assert called["structuredContent"]["result"] == "42"
