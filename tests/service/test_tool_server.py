"""The OpenAPI tool server over real sockets: its document, sessions by header, files, errors."""

import base64
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Api, error_of
from tornado.httpclient import HTTPResponse

from interpreter.models import FileChange, Folded, Role, RunStatus

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # one pixel


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    running = await Api.start(tmp_path, max_file_bytes=1000)
    yield running
    await running.aclose()


async def use(api: Api, tool: str, *, chat: str | None = "chat-1", **arguments: Any) -> HTTPResponse:
    headers = {"X-OpenWebUI-Chat-Id": chat} if chat else {}
    return await api.ask("POST", f"/openapi-tools/{tool}", arguments, token="run", headers=headers)


async def used(api: Api, tool: str, **arguments: Any) -> Any:
    answer = await use(api, tool, **arguments)
    assert answer.code == 200, answer.body
    return json.loads(answer.body)


async def document(api: Api) -> Any:
    return json.loads((await api.ask("GET", "/openapi-tools/openapi.json", token="run")).body)


async def test_document_has_only_tools_that_a_model_can_use(api: Api) -> None:
    found = await document(api)
    operations = {path: item["post"] for path, item in found["paths"].items()}
    assert [operation["operationId"] for operation in operations.values()] == [
        "execute_python", "list_files", "read_file", "write_file", "delete_file", "restart_session",
    ]  # fmt: skip
    for path, operation in operations.items():
        assert path == f"/{operation['operationId']}"
        assert re.fullmatch(r"[a-z_]{1,64}", operation["operationId"])
        assert operation["description"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["required"]) <= set(schema["properties"])
        assert all(field["description"] and field["type"] for field in schema["properties"].values())
    assert "$ref" not in json.dumps(found)
    assert found["servers"] == [{"url": f"{api.url}/openapi-tools"}]


@pytest.mark.parametrize("header", ["X-OpenWebUI-Chat-Id", "X-Session-Id"])
async def test_a_chat_has_one_session(api: Api, header: str) -> None:
    sessions = []
    for chat in ("a", "a", "b"):
        answer = await api.ask(
            "POST", "/openapi-tools/execute_python", {"code": "1"}, token="run", headers={header: chat}
        )
        sessions.append(json.loads(answer.body)["session_id"])
    assert sessions[0] == sessions[1] != sessions[2]


async def test_without_a_chat_the_user_names_the_session(api: Api) -> None:
    found = set()
    for user in ("u1", "u1", "u2"):
        headers = {"X-OpenWebUI-User-Id": user}
        answer = await api.ask(
            "POST", "/openapi-tools/execute_python", {"code": "1"}, token="run", headers=headers
        )
        found.add(json.loads(answer.body)["session_id"])
    assert len(found) == 2


async def test_without_headers_the_answer_names_a_new_session(api: Api) -> None:
    first = await used(api, "execute_python", chat=None, code="1")
    assert first["session_id"] in first["output"]
    second = await used(api, "execute_python", chat=None, code="1", session_id=first["session_id"])
    assert second["session_id"] == first["session_id"]
    assert len(api.sessions.live) == 1


async def test_model_is_told_when_its_session_was_lost(api: Api) -> None:
    first = await used(api, "execute_python", code="1")
    del api.sessions.live[first["session_id"]]
    again = await used(api, "execute_python", code="1")
    assert "variables and files are gone" in again["output"]


async def test_failed_code_is_a_normal_answer(api: Api) -> None:
    assert (await used(api, "execute_python", code="raise"))["status"] == "error"


async def test_what_models_get_wrong_is_read(api: Api) -> None:
    await used(api, "execute_python", python_code="```python\n6 * 7\n```", timeout="30")
    assert api.runs.requests[-1].code.strip() == "6 * 7"
    assert api.runs.requests[-1].timeout == 30


async def test_figures_are_inline_or_saved(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = api.runs.submit

    async def with_figure(*args: Any) -> Any:
        active = await submit(*args)
        output = {"output_type": "display_data", "data": {"image/png": PNG}, "metadata": {}}
        active.run = replace(active.run, status=RunStatus.OK, folded=Folded(outputs=(output,)))
        return active

    monkeypatch.setattr(api.runs, "submit", with_figure)
    saved = await used(api, "execute_python", code="plot()")
    assert PNG not in json.dumps(saved)
    assert [file["path"] for file in saved["files"]] == re.findall(r"figure_\S+\.png", saved["output"])
    assert "without output" not in saved["output"]
    assert "shown to the user" not in saved["output"]
    (path,) = re.findall(r"figure_\S+\.png", saved["output"])
    shown = await use(api, "read_file", path=path)
    assert shown.headers["Content-Type"] == "image/png"
    assert shown.body == base64.b64decode(PNG)
    headers = {"X-OpenWebUI-Chat-Id": "chat-1", "X-Inline-Images": "true"}
    inline = await api.ask("POST", "/openapi-tools/execute_python", {"code": "x"}, headers=headers)
    assert json.loads(inline.body)["images"] == [f"data:image/png;base64,{PNG}"]


@pytest.mark.parametrize("client", ["openapi-tools", "open-terminal"])
async def test_a_figure_that_was_saved_too_is_told_of_as_not_seen(
    api: Api, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    submit = api.runs.submit

    async def with_figure(*args: Any) -> Any:
        active = await submit(*args)
        output = {"output_type": "display_data", "data": {"image/png": PNG}, "metadata": {}}
        made = (FileChange("p.png", 1, "image/png", "created", "/"),)
        active.run = replace(active.run, status=RunStatus.OK, folded=Folded(outputs=(output,)), files=made)
        return active

    monkeypatch.setattr(api.runs, "submit", with_figure)
    answer = await api.ask(
        "POST", f"/{client}/execute_python", {"code": "x"}, token="run", headers={"X-Session-Id": "c"}
    )
    output = json.loads(answer.body)["output"]
    assert "shown to the user" not in output
    assert "read_file for each to show it: p.png" in output


async def test_paths_may_be_those_that_code_sees(api: Api) -> None:
    await used(api, "write_file", path="/mnt/data/a/b.txt", content="x")
    assert (await used(api, "read_file", path="/mnt/data/a/b.txt"))["path"] == "a/b.txt"
    assert (await used(api, "delete_file", path="/mnt/data/a/b.txt"))["path"] == "a/b.txt"
    missing = error_of(await use(api, "read_file", path="a/b.txt"))["message"]
    assert missing == "There is no such file; list_files shows those that there are."
    assert error_of(await use(api, "read_file", path="/etc/passwd"))["param"] == "path"


async def test_files_are_written_listed_read_and_deleted(api: Api) -> None:
    written = await used(api, "write_file", path="data/ä.csv", content="a,b\n1,2\n")
    assert (written["path"], written["size"], written["mime_type"]) == ("data/ä.csv", 8, "text/csv")
    await used(api, "write_file", path="b.bin", content="AP8=", encoding="base64")
    assert [f["path"] for f in (await used(api, "list_files"))["files"]] == ["b.bin", "data/ä.csv"]
    assert (await used(api, "read_file", path="data/ä.csv"))["content"] == "a,b\n1,2\n"
    await used(api, "delete_file", path="b.bin")
    assert len((await used(api, "list_files"))["files"]) == 1
    assert (await used(api, "list_files"))["has_more"] is False


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "param"),
    [
        ("execute_python", {}, 400, "code"),
        ("execute_python", {"code": "1", "session_id": "nonsense"}, 404, "session_id"),
        ("write_file", {"path": "../x", "content": ""}, 400, "path"),
        ("write_file", {"path": "x"}, 400, "content"),
        ("write_file", {"path": "x", "content": "?", "encoding": "base64"}, 400, "content"),
        ("write_file", {"path": "x", "content": "a" * 1001}, 413, None),
        ("read_file", {"path": 7}, 400, "path"),
        ("list_files", {}, 404, None),
        ("restart_session", {}, 404, None),
    ],
)
async def test_errors_say_what_to_change(
    api: Api, tool: str, arguments: dict[str, Any], code: int, param: str | None
) -> None:
    answer = await use(api, tool, **arguments)
    assert answer.code == code
    assert error_of(answer)["param"] == param


async def test_reading_bytes_names_the_other_tool(api: Api) -> None:
    await used(api, "write_file", path="b.bin", content="AP8=", encoding="base64")
    answer = await use(api, "read_file", path="b.bin")
    assert "execute_python" in error_of(answer)["message"]


async def test_tokens_guard_every_operation(api: Api) -> None:
    for method, path in (("GET", "openapi.json"), ("POST", "execute_python"), ("POST", "list_files")):
        assert (await api.ask(method, f"/openapi-tools/{path}", token=None)).code == 401
    assert (await api.ask("POST", "/openapi-tools/execute_python", {"code": "1"}, token="review")).code == 403


async def test_sessions_of_other_tokens_are_not_there(api: Api) -> None:
    mine = await used(api, "execute_python", code="1")
    body = {"code": "1", "session_id": mine["session_id"]}
    _, secret = await api.tokens.create("another", Role.RUN, None)
    headers = {"Authorization": f"Bearer {secret}"}
    answer = await api.ask("POST", "/openapi-tools/execute_python", body, token=None, headers=headers)
    assert answer.code == 404
    same_chat = {**headers, "X-OpenWebUI-Chat-Id": "chat-1"}
    other = await api.ask(
        "POST", "/openapi-tools/execute_python", {"code": "1"}, token=None, headers=same_chat
    )
    assert json.loads(other.body)["session_id"] != mine["session_id"]
