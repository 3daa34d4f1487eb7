"""Open Terminal's operations, called by Open WebUI's own client of tool servers."""

import json
from typing import Any

import httpx
import pytest
from openwebui_tools import load_tool_client
from service_process import ServiceProcess

from interpreter.models import new_id


class Terminal:
    """A chat of Open WebUI with the terminal."""

    def __init__(self, service: ServiceProcess) -> None:
        self.client = load_tool_client()
        self.url = f"{service.url}/open-terminal"
        self.headers = {
            "Authorization": f"Bearer {service.token}",
            "X-Session-Id": new_id(),
            "X-User-Id": "user-1",
        }
        self.document: Any = None

    async def call(self, name: str, **arguments: Any) -> Any:
        if self.document is None:
            self.document = await self.client.get_tool_server_data(f"{self.url}/openapi.json", self.headers)
        server = {"openapi": self.document}
        answer, _ = await self.client.execute_tool_server(self.url, self.headers, {}, name, arguments, server)
        return answer

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=60, trust_env=False)


@pytest.fixture
def terminal(service: ServiceProcess) -> Terminal:
    return Terminal(service)


def text_of(answer: Any) -> str:
    return "".join(piece["data"] for piece in answer["output"])


async def test_open_webui_finds_prompt_and_working_folder(terminal: Terminal) -> None:
    assert await terminal.client.get_terminal_cwd(terminal.url, terminal.headers) == "/mnt/data"
    prompt = await terminal.client.get_terminal_system_prompt(terminal.url, terminal.headers)
    assert "execute_python" in prompt


async def test_commands_and_python_share_files(terminal: Terminal) -> None:
    await terminal.call("write_file", path="data.csv", content="a\n1\n")
    found = await terminal.call("run_command", command="cat data.csv; echo err >&2; exit 3", wait=30)
    assert (found["status"], found["exit_code"]) == ("done", 3)
    assert {"type": "stderr", "data": "err\n"} in found["output"]
    assert "a\n1\n" in text_of(found)
    answer = await terminal.call("execute_python", code="open('out.txt', 'w').write('é'); x = 1; x + 1")
    assert "2" in answer["output"]
    assert (await terminal.call("read_file", path="out.txt"))["content"] == "é"
    entries = (await terminal.call("list_files"))["entries"]
    assert {entry["name"] for entry in entries} == {"data.csv", "out.txt"}


async def test_long_command_is_followed_and_killed(terminal: Terminal) -> None:
    status = await terminal.call("run_command", command="echo begun; sleep 300; echo ended", wait=1)
    process_id, shown = status["id"], text_of(status)
    while not shown:
        assert status["status"] == "running"
        offset = status["next_offset"]
        status = await terminal.call("get_process_status", process_id=process_id, offset=offset, wait=1)
        shown = text_of(status)
    assert (status["status"], shown) == ("running", "begun\n")
    status = await terminal.call("get_process_status", process_id=process_id, offset=status["next_offset"])
    assert (status["status"], status["output"]) == ("running", [])
    await terminal.call("kill_process", process_id=process_id)
    ended = await terminal.call("get_process_status", process_id=process_id, wait=60)
    assert ended["status"] == "killed"
    assert "ended\n" not in text_of(ended)
    assert len(await terminal.call("list_processes")) == 1


async def test_search(terminal: Terminal) -> None:
    await terminal.call("write_file", path="src/a.py", content="import os\nprint('it''s')\n")
    await terminal.call("write_file", path="src/b.txt", content="import this\n")
    found = await terminal.call("grep_search", query=r"^import\s", include=["*.py"])
    assert found["matches"] == [{"file": "/mnt/data/src/a.py", "line": 1, "content": "import os"}]
    files = await terminal.call("grep_search", query="IMPORT", case_insensitive=True, match_per_line=False)
    assert len(files["matches"]) == 2
    limited = await terminal.call("grep_search", query="import", max_results=1)
    assert (len(limited["matches"]), limited["truncated"]) == (1, True)
    assert "expression" in (await terminal.call("grep_search", query="("))["error"]
    globbed = await terminal.call("glob_search", pattern="*.py", path="src")
    assert [match["path"] for match in globbed["matches"]] == ["a.py"]


async def test_notebook_runs_in_the_chats_session(terminal: Terminal) -> None:
    cell = {"cell_type": "code", "source": "y = 41\ny + 1", "metadata": {}, "outputs": []}
    notebook = {
        "cells": [{**cell, "execution_count": None}],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    await terminal.call("write_file", path="n.ipynb", content=json.dumps(notebook))
    with terminal.http() as http:
        opened = http.post("/notebooks", json={"path": "/mnt/data/n.ipynb"}).json()
        ran = http.post(f"/notebooks/{opened['id']}/execute", json={"cell_index": 0}).json()
    assert ran["status"] == "ok"
    assert ran["outputs"][0]["data"]["text/plain"] == "42"
    saved = json.loads((await terminal.call("read_file", path="n.ipynb"))["content"])
    assert saved["cells"][0]["outputs"] == ran["outputs"]
    assert "41" in (await terminal.call("execute_python", code="y"))["output"]
