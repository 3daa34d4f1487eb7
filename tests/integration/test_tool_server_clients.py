"""The tool server, used by Open WebUI's own client: tools of its document, state per chat, plots, files."""

import json
from typing import Any

import pytest
from openwebui_tools import load_tool_client
from service_process import ServiceProcess

from interpreter.models import new_id

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n'drawn'"


class Chat:
    """A chat of Open WebUI whose model has the tools."""

    def __init__(self, service: ServiceProcess, **headers: str) -> None:
        self.client = load_tool_client()
        self.url = f"{service.url}/openapi-tools"
        self.headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {service.token}",
            "X-OpenWebUI-Chat-Id": new_id(),
            **headers,
        }
        self.document: Any = None

    async def tools(self) -> dict[str, Any]:
        address = self.client.get_tool_server_url(self.url, "openapi.json")
        self.document = await self.client.get_tool_server_data(address, self.headers)
        specs = self.client.convert_openapi_to_tool_payload(self.document)
        return {spec["name"]: self.client.clean_openai_tool_schema(spec) for spec in specs}

    async def call(self, name: str, **arguments: Any) -> Any:
        if self.document is None:
            await self.tools()
        server = {"openapi": self.document}
        answer, _ = await self.client.execute_tool_server(self.url, self.headers, {}, name, arguments, server)
        return answer


async def test_tools_are_those_of_the_document(service: ServiceProcess) -> None:
    tools = await Chat(service).tools()
    assert set(tools["execute_python"]["parameters"]["properties"]) == {"code", "timeout", "session_id"}
    assert tools["execute_python"]["parameters"]["required"] == ["code"]
    assert "State is kept" in tools["execute_python"]["description"]
    assert len(tools) == 6


async def test_state_and_files_are_kept_in_a_chat_and_not_between_chats(service: ServiceProcess) -> None:
    chat, other = Chat(service), Chat(service)
    await chat.call("write_file", path="data.csv", content="a\n1\n")
    first = await chat.call("execute_python", code="x = open('data.csv').read()")
    assert first["status"] == "ok"
    assert "'a\\n1\\n'" in (await chat.call("execute_python", code="x"))["output"]
    assert "NameError" in (await other.call("execute_python", code="x"))["output"]
    assert [file["path"] for file in (await chat.call("list_files"))["files"]] == ["data.csv"]
    await chat.call("restart_session")
    assert "NameError" in (await chat.call("execute_python", code="x"))["output"]


async def test_plot_is_saved_and_shown_on_request(service: ServiceProcess) -> None:
    chat = Chat(service)
    answer = await chat.call("execute_python", code=PLOT)
    assert "base64" not in json.dumps(answer)
    assert "figure_1_1.png" in answer["output"]
    assert "drawn" in answer["output"]
    shown = await chat.call("read_file", path="figure_1_1.png")
    assert shown.startswith("data:image/png;base64,")


async def test_plot_is_shown_at_once_where_the_client_takes_it(service: ServiceProcess) -> None:
    chat = Chat(service, **{"X-Inline-Images": "true"})
    files: list[Any] = []
    answer = await chat.call("execute_python", code=PLOT)
    left = chat.client.extract_base64_images(answer, files)
    assert [file["type"] for file in files] == ["image"]
    assert left["images"] == ["[image]"]


@pytest.mark.parametrize("arguments", [{"code": ""}, {"code": "1", "session_id": "x"}])
async def test_error_is_a_sentence_for_the_model(service: ServiceProcess, arguments: dict[str, str]) -> None:
    answer = await Chat(service).call("execute_python", **arguments)
    assert "HTTP error 4" in answer["error"]
    assert '"message"' in answer["error"]


async def test_runs_are_in_the_record(service: ServiceProcess) -> None:
    answer = await Chat(service).call("execute_python", code="'recorded'")
    with service.client() as client:
        assert client.get(f"/v1/runs/{answer['run_id']}").json()["recorded"] is True
