"""Dify's sandbox over real sockets: its frame, and which failures are HTTP errors."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes import NOW, Api
from tornado.httpclient import HTTPResponse

from interpreter.errors import TooManySessionsError
from interpreter.frontends.dify import answer
from interpreter.models import Folded, Run, RunError, RunStatus


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    running = await Api.start(tmp_path, max_code_bytes=1000)
    yield running
    await running.aclose()


async def ask(api: Api, method: str, path: str, body: Any = None, role: str = "run") -> HTTPResponse:
    headers = {"X-Api-Key": api.secrets[role]}
    return await api.ask(method, f"/dify{path}", body, token=None, headers=headers)


async def run(api: Api, **body: Any) -> Any:
    asked = {"language": "python3", "code": "1", "preload": "", "enable_network": True, **body}
    found = await ask(api, "POST", "/v1/sandbox/run", asked)
    assert found.code == 200
    return json.loads(found.body)


def ended(status: RunStatus, **folded: Any) -> Run:
    return Run("run_x_1", "x", "o", status, "1", NOW, 1.0, folded=Folded(**folded))


async def test_code_runs_in_a_fresh_kernel(api: Api) -> None:
    found = await run(api, code="print(1)")
    assert found == {
        "code": 0,
        "message": "success",
        "data": {"stdout": "print(1)", "stderr": "", "error": "", "exit_code": 0},
    }
    assert not api.sessions.live


async def test_preload_comes_first(api: Api) -> None:
    await run(api, preload="import json", code="json")
    assert api.runs.requests[-1].code == "import json\njson"


async def test_failed_code_fills_the_error(api: Api) -> None:
    assert (await run(api, code="raise"))["data"]["error"]


async def test_python_is_run_as_a_script(api: Api) -> None:
    await run(api, code="import asyncio\nasyncio.run(main())\nexit(2)")
    assert api.runs.requests[-1].code == "import asyncio\n(await main())\n__import__('sys').exit(2)"


@pytest.mark.parametrize(
    ("value", "code", "error"), [("0", 0, ""), ("4", 4, "SystemExit: 4\n")], ids=["0", "4"]
)
def test_a_script_may_end_itself(value: str, code: int, error: str) -> None:
    output = {"output_type": "error", "ename": "SystemExit", "evalue": value, "traceback": ["An exception"]}
    told = answer(ended(RunStatus.ERROR, error=RunError("SystemExit", value), outputs=(output,)))
    assert (told["exit_code"], told["error"]) == (code, error)


@pytest.mark.parametrize(
    "body",
    [{"language": "nodejs"}, {"language": "perl"}, {"language": 1}, {"code": None}, {"code": "a" * 1001}],
)
async def test_refusals_are_sentences(api: Api, body: dict[str, Any]) -> None:
    found = await run(api, **body)
    assert found["code"] in (-400, -413)
    assert found["message"].endswith(".")


async def test_no_room_is_a_sentence(api: Api) -> None:
    api.sessions.error = TooManySessionsError("Every session is taken.")
    assert await run(api) == {"code": -429, "message": "Every session is taken.", "data": None}


async def test_wrong_keys_are_http_errors(api: Api) -> None:
    answer = await api.ask(
        "POST", "/dify/v1/sandbox/run", {}, token=None, headers={"X-Api-Key": "dify-sandbox"}
    )
    assert answer.code == 401
    assert (await ask(api, "POST", "/v1/sandbox/run", {}, "review")).code == 403


async def test_the_rest(api: Api) -> None:
    assert json.loads((await api.ask("GET", "/dify/health", token=None)).body) == "ok"
    for method, path in (("GET", ""), ("POST", "/update"), ("GET", "/refresh")):
        found = json.loads((await ask(api, method, f"/v1/sandbox/dependencies{path}", None)).body)
        assert found["data"] == {"dependencies": []}


def test_warnings_do_not_fail_the_node() -> None:
    assert answer(ended(RunStatus.OK, stdout="1", stderr="careful", result="2")) == {
        "stdout": "1", "stderr": "careful", "error": "", "exit_code": 0,
    }  # fmt: skip


def test_error_is_the_traceback() -> None:
    output = {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mE\x1b[0m: v"]}
    found = answer(ended(RunStatus.ERROR, outputs=(output,), error=RunError("E", "v"), stderr="w"))
    assert (found["error"], found["exit_code"], found["stderr"]) == ("E: v\n", 1, "w")


def test_every_failure_has_an_error() -> None:
    for status in (RunStatus.TIMEOUT, RunStatus.KERNEL_DIED, RunStatus.CANCELLED):
        assert answer(ended(status))["error"]
