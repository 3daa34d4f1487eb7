"""Azure's dynamic sessions over real sockets: identifiers, both forms of answers, files, errors."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes import Api
from tornado.httpclient import HTTPResponse

from interpreter.errors import TooManySessionsError
from interpreter.frontends.azure.answers import value_of

OLD, NEW = "code/execute", "executions"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    running = await Api.start(tmp_path, max_file_bytes=1000)
    yield running
    await running.aclose()


async def ask(
    api: Api, method: str, path: str, body: Any = None, *, identifier: str | None = "one", **options: Any
) -> HTTPResponse:
    query = "api-version=2024-02-02-preview" + (f"&identifier={identifier}" if identifier else "")
    return await api.ask(method, f"/azure/{path}?{query}", body, token="run", **options)


async def execute(api: Api, code: str = "6 * 7", **options: Any) -> Any:
    properties = {"codeInputType": "inline", "executionType": "synchronous", "code": code}
    answer = await ask(api, "POST", OLD, {"properties": properties}, **options)
    assert answer.code == 200, answer.body
    return json.loads(answer.body)["properties"]


async def upload(api: Api, name: str, content: bytes, path: str = "files/upload") -> HTTPResponse:
    head = f'--B\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    return await ask(api, "POST", path, raw=head.encode() + content + b"\r\n--B--\r\n", headers=headers)


async def test_an_identifier_has_one_session(api: Api) -> None:
    for identifier in ("a", "a", "b"):
        assert (await execute(api, identifier=identifier))["result"] == 42
    assert len(api.sessions.live) == 2
    assert (await ask(api, "DELETE", "session", identifier="a")).code == 204
    assert len(api.sessions.live) == 1
    assert (await ask(api, "DELETE", "session", identifier="a")).code == 204


async def test_failed_code_is_a_normal_answer(api: Api) -> None:
    assert (await execute(api, "raise"))["status"] == "Failure"
    assert (await execute(api))["status"] == "Success"


async def test_newer_form_has_no_properties(api: Api) -> None:
    body = {"codeInputType": "Inline", "executionType": "Synchronous", "code": "1", "timeoutInSeconds": 7}
    found = json.loads((await ask(api, "POST", NEW, body)).body)
    assert (found["status"], found["identifier"]) == ("Succeeded", "one")
    assert found["result"]["executionResult"] == 42
    assert api.runs.requests[-1].timeout == 7


async def test_shell_command_runs_as_bash(api: Api) -> None:
    found = json.loads((await ask(api, "POST", NEW, {"shellCommand": "echo hi"})).body)
    assert found["status"] == "0"
    assert api.runs.requests[-1].code.startswith("%%script bash")
    assert api.runs.requests[-1].code.endswith("echo hi")


@pytest.mark.parametrize("name", ["data/ä.csv", "/mnt/data/data/ä.csv"])
async def test_files_in_both_forms(api: Api, name: str) -> None:
    sent = json.loads((await upload(api, name, b"abc")).body)
    assert sent["value"][0]["properties"]["filename"] == "data/ä.csv"
    assert (sent["name"], sent["sizeInBytes"]) == ("data/ä.csv", 3)
    (listed,) = json.loads((await ask(api, "GET", "files")).body)["value"]
    assert listed["properties"]["size"] == listed["sizeInBytes"] == 3
    for path in ("files/content/data/%C3%A4.csv", "files/data/%C3%A4.csv/content"):
        assert (await ask(api, "GET", path)).body == b"abc"
    assert json.loads((await ask(api, "GET", "files/data/%C3%A4.csv")).body)["contentType"] == "text/csv"
    assert (await ask(api, "DELETE", "files/data/%C3%A4.csv")).code == 204
    assert json.loads((await ask(api, "GET", "files")).body) == {"value": []}


async def test_files_of_no_session_are_none(api: Api) -> None:
    assert json.loads((await ask(api, "GET", "files")).body) == {"value": []}
    assert (await ask(api, "GET", "files/content/x")).code == 404
    assert not api.sessions.live


@pytest.mark.parametrize(
    ("body", "target"),
    [
        ({"properties": {"executionType": "asynchronous", "code": "1"}}, "executionType"),
        ({"properties": {"codeInputType": "file", "code": "1"}}, "codeInputType"),
        ({"properties": {}}, "code"),
        ({"properties": 1}, "properties"),
        ({"shellCommand": 1}, "shellCommand"),
        ({"properties": {"code": "1", "timeoutInSeconds": 0}}, "timeoutInSeconds"),
    ],
)
async def test_errors_have_azures_shape(api: Api, body: Any, target: str) -> None:
    answer = await ask(api, "POST", OLD, body)
    assert answer.code == 400
    error = json.loads(answer.body)["error"]
    assert (error["code"], error["target"]) == ("invalid_request", target)
    assert answer.headers["x-ms-error-code"] == "invalid_request"
    assert not api.sessions.live


@pytest.mark.parametrize("identifier", [None, "a" * 201, "%0a", "%C3%A4"])
async def test_identifier_is_needed(api: Api, identifier: str | None) -> None:
    answer = await ask(api, "POST", OLD, {"properties": {"code": "1"}}, identifier=identifier)
    error = json.loads(answer.body)["error"]
    assert error["target"] == "identifier"
    assert "1 to 200 printable" in error["message"]


async def test_limits_are_told(api: Api) -> None:
    assert (await upload(api, "big", b"a" * 1001)).code == 413
    assert (await upload(api, "../x", b"a")).code == 400
    api.sessions.error = TooManySessionsError("Too many.", retry_after=7)
    answer = await ask(api, "POST", OLD, {"properties": {"code": "1"}}, identifier="new")
    assert (answer.code, answer.headers["Retry-After"]) == (429, "7")


async def test_token_is_needed(api: Api) -> None:
    answer = await api.ask("GET", "/azure/files?identifier=a", token=None)
    assert answer.code == 401
    assert json.loads(answer.body)["error"]["code"] == "unauthorized"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("1.5", 1.5),
        ("'a'", "a"),
        ("[1, None]", [1, None]),
        ("{'a': True}", {"a": True}),
        ("(1, 2)", "(1, 2)"),
        ("1e999", "1e999"),
        ("<object>", "<object>"),
        (str(2**60), str(2**60)),
        ("-" * 10000 + "1", "-" * 10000 + "1"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_result_is_the_value_where_json_has_it(text: str, value: Any) -> None:
    assert value_of(text) == value
