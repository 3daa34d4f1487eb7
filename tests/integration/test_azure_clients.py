"""Azure's dynamic sessions against the real service, called by LangChain's and LlamaIndex's tools."""

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure_clients import OPENED, load_langchain, load_llama_index
from service_process import ServiceProcess

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"


@pytest.fixture(autouse=True)
def closed_files() -> Iterator[None]:
    """The clients open what they send and close none of it."""
    yield
    while OPENED:
        OPENED.pop().close()


@pytest.fixture
def langchain(service: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = load_langchain(monkeypatch)
    return SimpleNamespace(
        python=module.SessionsPythonREPLTool(
            pool_management_endpoint=f"{service.url}/azure", access_token_provider=lambda: service.token
        ),
        bash=module.SessionsBashTool(
            pool_management_endpoint=f"{service.url}/azure/", access_token_provider=lambda: service.token
        ),
        delete=module._delete_session,
    )


def test_langchain_python_keeps_state_and_gets_values(langchain: Any) -> None:
    tool = langchain.python
    assert tool.execute("x = 41")["result"] is None
    call = {"type": "tool_call", "id": "1", "name": tool.name}
    answer = tool.invoke({**call, "args": {"python_code": "```python\nprint('hi')\nx + 1\n```"}})
    assert json.loads(answer.content) == {"result": 42, "stdout": "hi\n", "stderr": ""}
    assert answer.artifact["status"] == "Success"
    assert "ZeroDivisionError: division by zero" in json.loads(tool.invoke("1 / 0"))["stderr"]


def test_langchain_gets_plots(langchain: Any) -> None:
    content, artifact = langchain.python._run(PLOT)
    assert json.loads(content)["result"] == {"type": "image", "format": "png"}
    assert artifact["result"]["base64_data"].startswith("iVBOR")
    more = langchain.python.execute(f"{PLOT}\n{PLOT}")
    assert "Figures saved as figure_2_1.png, figure_2_2.png" in more["stdout"]
    assert len(langchain.python.list_files()) == 2


def test_langchain_files_go_both_ways(langchain: Any, tmp_path: Path) -> None:
    tool = langchain.python
    sent = tool.upload_file(data=io.BytesIO(b"a,b\n1,2\n"), remote_file_path="data.csv")
    assert (sent.filename, sent.size_in_bytes, sent.full_path) == ("data.csv", 8, "/mnt/data/data.csv")
    local = tmp_path / "more.txt"
    local.write_text("more")
    tool.upload_file(local_file_path=str(local))
    assert tool.execute("open('data.csv').read() + open('more.txt').read()")["result"] == "a,b\n1,2\nmore"
    odd = "a'\"#?% é.txt"
    tool.upload_file(data=io.BytesIO(b"odd"), remote_file_path=odd)
    assert tool.download_file(remote_file_path=odd).read() == b"odd"
    tool.execute(f"import os; os.remove({odd!r})")
    tool.execute("open('made by code.txt', 'w').write('made')")
    assert {file.filename for file in tool.list_files()} == {"data.csv", "more.txt", "made by code.txt"}
    assert tool.download_file(remote_file_path="made by code.txt").read() == b"made"


def test_langchain_ends_sessions(langchain: Any, service: ServiceProcess) -> None:
    tool = langchain.python
    tool.execute("x = 1")
    langchain.delete(
        pool_management_endpoint=tool.pool_management_endpoint,
        session_id=tool.session_id,
        access_token=service.token,
    )
    assert "NameError" in tool.execute("x")["stderr"]


def test_langchain_bash(langchain: Any) -> None:
    tool = langchain.bash
    content, _ = tool._run("echo out; echo err >&2; exit 3")
    assert json.loads(content) == {"stdout": "out\n", "stderr": "err\n", "exitCode": 3}
    sent = tool.upload_file(data=io.BytesIO(b"abc"), remote_file_path="a.txt")
    assert (sent.filename, sent.size_in_bytes) == ("a.txt", 3)
    assert json.loads(tool._run("cat a.txt; touch b.txt")[0])["stdout"] == "abc"
    assert {file.filename for file in tool.list_files()} == {"a.txt", "b.txt"}
    assert tool.download_file(remote_file_path="a.txt").read() == b"abc"


def test_llama_index(service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_llama_index(monkeypatch)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    spec = module.AzureCodeInterpreterToolSpec(
        pool_management_endpoint=f"{service.url}/azure", local_save_path=str(pictures)
    )
    spec.access_token = SimpleNamespace(token=service.token, expires_on=time.time() + 3600)
    local = tmp_path / "data.csv"
    local.write_text("1")
    (sent,) = spec.upload_file(local_file_path=str(local))
    assert (sent.filename, sent.file_full_path) == ("data.csv", "/mnt/data/data.csv")
    tools = {tool.metadata.name: tool for tool in spec.to_tool_list()}
    answer = tools["code_interpreter"].call("int(open('data.csv').read()) + 1").raw_output
    assert answer["properties"]["result"] == 2
    assert spec.code_interpreter(PLOT)["properties"]["result"]["saved_to_local_path"] is True
    assert len(list(pictures.iterdir())) == 1
    assert [file.filename for file in spec.list_files()] == ["data.csv"]
    spec.download_file_to_local("/mnt/data/data.csv", str(tmp_path / "back.csv"))
    assert (tmp_path / "back.csv").read_text() == "1"
