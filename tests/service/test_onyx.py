"""Onyx's code interpreter over real sockets: keys, files by id, refusals that show no URL, the stream."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes import Api
from tornado.httpclient import HTTPResponse

from interpreter.api import validity
from interpreter.errors import TooManySessionsError


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    running = await Api.start(tmp_path, state_dir=str(tmp_path / "state"), max_file_bytes=1000)
    yield running
    await running.aclose()


def basic(secret: str) -> dict[str, str]:
    """As the client sends what stands in its URL."""
    return {"Authorization": f"Basic {base64.b64encode(f':{secret}'.encode()).decode()}"}


async def ask(
    api: Api, method: str, path: str, body: Any = None, *, role: str = "run", **options: Any
) -> HTTPResponse:
    headers = {**basic(api.secrets[role]), **options.pop("headers", {})}
    return await api.ask(method, f"/onyx{path}", body, token=None, headers=headers, **options)


async def execute(api: Api, code: str = "1", **fields: Any) -> Any:
    answer = await ask(api, "POST", "/v1/execute", {"code": code, "timeout_ms": 5000, **fields})
    assert answer.code == 200, answer.body
    return json.loads(answer.body)


async def upload(api: Api, name: str, content: bytes) -> HTTPResponse:
    head = f'--B\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    return await ask(
        api, "POST", "/v1/files", raw=head.encode() + content + b"\r\n--B--\r\n", headers=headers
    )


def events_of(answer: HTTPResponse) -> list[tuple[str, Any]]:
    blocks = [block.split("\n") for block in answer.body.decode("ascii").split("\n\n") if block]
    return [
        (b[0].removeprefix("event: "), json.loads(b[1].removeprefix("data: ")))
        for b in blocks
        if b[0][0] != ":"
    ]


async def test_health_needs_no_key(api: Api) -> None:
    answer = await api.ask("GET", "/onyx/health", token=None)
    assert json.loads(answer.body)["status"] == "ok"


async def test_code_runs_in_a_session_of_its_own_that_ends(api: Api) -> None:
    found = await execute(api, "print(1)")
    assert set(found) == {"stdout", "stderr", "exit_code", "timed_out", "duration_ms", "files"}
    assert (found["exit_code"], found["timed_out"], found["files"]) == (0, False, [])
    assert not api.sessions.live
    assert len(api.sessions.gone) == 1
    assert api.runs.requests[-1].timeout == 5


async def test_failed_code_has_an_exit_code(api: Api) -> None:
    assert (await execute(api, "raise"))["exit_code"] == 1


async def test_python_is_run_as_a_script(api: Api) -> None:
    await execute(api, "import asyncio\nasyncio.run(main())")
    assert api.runs.requests[-1].code == "import asyncio\n(await main())"


async def test_files_go_by_their_ids(api: Api) -> None:
    answer = await upload(api, "ä b.csv", b"1,2")
    assert answer.code == 201
    sent = json.loads(answer.body)
    assert (sent["filename"], sent["size_bytes"]) == ("ä b.csv", 3)
    content = await ask(api, "GET", f"/v1/files/{sent['file_id']}")
    assert content.body == b"1,2"
    staged = await execute(api, files=[{"path": "in/data.csv", "file_id": sent["file_id"]}])
    assert staged["exit_code"] == 0
    assert (await ask(api, "DELETE", f"/v1/files/{sent['file_id']}")).code == 204
    gone = await ask(api, "GET", f"/v1/files/{sent['file_id']}")
    assert (gone.code, json.loads(gone.body)["detail"][-1]) == (404, ".")
    refused = await execute(api, files=[{"path": "x", "file_id": sent["file_id"]}])
    assert (refused["exit_code"], "no such file" in refused["stderr"]) == (1, True)
    assert not api.sessions.live


async def test_files_of_another_token_are_not_there(api: Api) -> None:
    file_id = json.loads((await upload(api, "a", b"1")).body)["file_id"]
    assert (await ask(api, "GET", f"/v1/files/{file_id}", role="admin")).code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"code": "1", "stdin": "x"},
        {"code": "1", "timeout_ms": -1},
        {"code": "1", "files": 1},
        {"code": "1", "files": [{"path": "x"}]},
        {"code": "a" * 2_000_000},
    ],
)
@pytest.mark.parametrize("path", ["/v1/execute", "/v1/execute/stream"])
async def test_refusals_are_results(api: Api, path: str, body: Any) -> None:
    answer = await ask(api, "POST", path, body)
    assert answer.code == 200
    if path.endswith("stream"):
        (kind, output), (last, result) = events_of(answer)
        assert (kind, output["stream"], last) == ("output", "stderr", "result")
        sentence = output["data"]
    else:
        result = json.loads(answer.body)
        sentence = result["stderr"]
    assert result["exit_code"] == 1
    assert sentence.endswith(".\n")
    assert not api.sessions.live


async def test_no_room_is_told_to_the_model(api: Api) -> None:
    api.sessions.error = TooManySessionsError("Every session is taken.")
    assert (await execute(api))["stderr"] == "Every session is taken.\n"


async def test_wrong_keys_are_http_errors(api: Api) -> None:
    answer = await api.ask("POST", "/onyx/v1/execute", {"code": "1"}, token=None, headers=basic("wrong"))
    assert answer.code == 401
    refused = await ask(api, "POST", "/v1/execute", {"code": "1"}, role="review")
    assert (refused.code, set(json.loads(refused.body))) == (403, {"detail"})


async def test_stream_has_output_and_ends_with_the_result(api: Api) -> None:
    answer = await ask(api, "POST", "/v1/execute/stream", {"code": "print(1)"})
    assert answer.headers["Content-Type"] == "text/event-stream"
    kinds = [kind for kind, _ in events_of(answer)]
    assert kinds[0] == "output"
    assert kinds[-1] == "result"
    assert events_of(answer)[0][1] == {"stream": "stdout", "data": "\u2028é"}
    assert not api.sessions.live


async def test_client_that_leaves_ends_the_stream(api: Api) -> None:
    body = json.dumps({"code": "wait"}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    head = f"POST /onyx/v1/execute/stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    head += f"Authorization: Bearer {api.secrets['run']}\r\n\r\n"
    writer.write(head.encode() + body)
    await api.runs.submitted.wait()
    writer.close()
    await writer.wait_closed()
    _, reason = await api.runs.cancelled.get()
    assert "client went away" in reason
    assert reader is not None


async def test_stream_ends_with_its_token_and_so_do_run_and_session(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "_INTERVAL", 0.02)
    streaming = asyncio.ensure_future(ask(api, "POST", "/v1/execute/stream", {"code": "wait"}))
    await api.runs.submitted.wait()
    await api.revoke("run")
    kinds = [kind for kind, _ in events_of(await streaming)]
    assert "result" not in kinds
    await api.runs.cancelled.get()
    assert not api.sessions.live


async def test_sessions_run_bash(api: Api) -> None:
    made = await ask(api, "POST", "/v1/sessions", {"ttl_seconds": 60})
    session = json.loads(made.body)
    assert made.code == 201
    assert session["expires_at"] == api.sessions.live[session["session_id"]].info.created_at.timestamp() + 60
    path = f"/v1/sessions/{session['session_id']}"
    found = json.loads((await ask(api, "POST", f"{path}/bash", {"cmd": "ls"})).body)
    assert (found["exit_code"], found["timed_out"]) == (0, False)
    assert api.runs.requests[-1].code.endswith("ls")
    assert api.runs.requests[-1].timeout == 30
    assert (await ask(api, "DELETE", path)).code == 204
    assert (await ask(api, "DELETE", path)).code == 404
