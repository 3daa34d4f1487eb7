"""Sessions and runs over HTTP: answers, events, and what a client that leaves does to its run."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fakes import Api, error_of

from interpreter.models import RunStatus


async def test_a_session_is_made_shown_listed_restarted_and_ended(api: Api) -> None:
    made = await api.ask("POST", "/v1/sessions", {"metadata": {"chat": "7"}, "timeout": 9, "network": "none"})
    session = json.loads(made.body)
    path = f"/v1/sessions/{session['id']}"
    assert (made.code, session["metadata"], session["timeout"]) == (201, {"chat": "7"}, 9)
    assert made.headers["Location"] == path
    assert json.loads((await api.ask("GET", path)).body) == session
    listed = json.loads((await api.ask("GET", "/v1/sessions")).body)
    assert listed == {
        "data": [session],
        "has_more": False,
        "first_id": session["id"],
        "last_id": session["id"],
    }
    assert (await api.ask("POST", path + "/interrupt")).code == 204
    assert (await api.ask("POST", path + "/restart", {})).code == 200
    assert (await api.ask("DELETE", path)).code == 204
    assert error_of(await api.ask("GET", path))["code"] == "session_expired"


async def test_a_session_can_be_made_without_a_body(api: Api) -> None:
    assert (await api.ask("POST", "/v1/sessions")).code == 201


async def test_a_token_sees_only_its_own_sessions_and_an_admin_sees_all(api: Api) -> None:
    mine, other = await api.make_session("run"), await api.make_session("admin")
    assert (await api.ask("GET", f"/v1/sessions/{other}", token="run")).code == 404
    ids = [s["id"] for s in json.loads((await api.ask("GET", "/v1/sessions", token="run")).body)["data"]]
    assert ids == [mine]
    everything = json.loads((await api.ask("GET", "/v1/sessions?order=asc")).body)["data"]
    assert [s["id"] for s in everything] == [mine, other]


async def test_lists_are_paged(api: Api) -> None:
    ids = [await api.make_session() for _ in range(3)][::-1]
    first = json.loads((await api.ask("GET", "/v1/sessions?limit=2")).body)
    assert ([s["id"] for s in first["data"]], first["has_more"]) == (ids[:2], True)
    second = json.loads((await api.ask("GET", f"/v1/sessions?limit=2&after={first['last_id']}")).body)
    assert ([s["id"] for s in second["data"]], second["has_more"]) == (ids[2:], False)


@pytest.mark.parametrize(("code", "status"), [("1", "ok"), ("raise", "error")])
async def test_a_run_is_answered_when_it_has_ended(api: Api, code: str, status: str) -> None:
    session_id = await api.make_session()
    body = {"code": code, "tool_call_id": "call_1", "timeout": 3}
    response = await api.ask("POST", f"/v1/sessions/{session_id}/runs", body)
    run = json.loads(response.body)
    assert (response.code, run["status"], run["tool_call_id"]) == (200, status, "call_1")
    assert json.loads((await api.ask("GET", f"/v1/runs/{run['id']}")).body) == run
    assert json.loads((await api.ask("GET", f"/v1/sessions/{session_id}/runs")).body)["data"] == [run]


async def test_a_one_off_run_leaves_no_session(api: Api) -> None:
    response = await api.ask("POST", "/v1/runs", {"code": "1", "kernel_name": "python3"})
    assert (response.code, json.loads(response.body)["status"]) == (200, "ok")
    assert api.sessions.live == {}


async def test_a_restart_with_replay_says_what_came_of_it(api: Api) -> None:
    path = f"/v1/sessions/{await api.make_session()}/restart"
    plain = json.loads((await api.ask("POST", path, {"replay": False})).body)
    assert "notice" not in plain
    answer = await api.ask("POST", path, {"replay": True})
    assert answer.code == 200
    assert json.loads(answer.body) == {
        **plain,
        "notice": "It was fresh, 0 earlier runs were executed again.",
    }
    wrong = await api.ask("POST", path, {"replay": "yes"})
    assert (wrong.code, error_of(wrong)["param"]) == (400, "replay")


async def test_a_reviewer_lists_the_runs_of_all_and_pages_them(api: Api) -> None:
    session_id = await api.make_session("run")
    path = f"/v1/sessions/{session_id}/runs"
    ids = [json.loads((await api.ask("POST", path, {"code": "1"})).body)["id"] for _ in range(3)]
    first = json.loads((await api.ask("GET", path + "?limit=2", token="review")).body)
    assert ([run["id"] for run in first["data"]], first["has_more"]) == ([ids[2], ids[1]], True)
    rest = json.loads((await api.ask("GET", f"{path}?after={ids[1]}", token="review")).body)
    assert [(run["id"], run["stdout"]) for run in rest["data"]] == [(ids[0], "1")]
    assert (await api.ask("POST", path, {"code": "1"}, token="review")).code == 403
    assert (await api.ask("GET", f"/v1/sessions/{session_id}", token="review")).code == 404


async def test_a_background_run_is_answered_at_once_and_can_be_cancelled(api: Api) -> None:
    response = await api.ask("POST", "/v1/runs", {"code": "wait", "background": True})
    run = json.loads(response.body)
    assert (response.code, run["status"]) == (202, "running")
    cancelled = await api.ask("POST", f"/v1/runs/{run['id']}/cancel")
    assert json.loads(cancelled.body)["status"] == "cancelled"


async def test_the_idempotency_key_reaches_the_run(api: Api) -> None:
    await api.ask("POST", "/v1/runs", {"code": "1"}, headers={"Idempotency-Key": "k-1"})
    assert api.runs.requests[0].idempotency_key == "k-1"
    wrong = await api.ask("POST", "/v1/runs", {"code": "1"}, headers={"Idempotency-Key": "k" * 256})
    assert (wrong.code, error_of(wrong)["param"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize(
    ("body", "headers", "at_end"),
    [
        ({}, {}, True),
        ({"background": True}, {}, False),
        ({"stream": True}, {}, False),
        ({}, {"Accept": "text/event-stream"}, False),
        ({"stream": False}, {"Accept": "text/event-stream"}, True),
    ],
)
async def test_the_record_knows_whether_the_client_is_told_before_the_end(
    api: Api, body: dict[str, Any], headers: dict[str, str], at_end: bool
) -> None:
    await api.ask("POST", "/v1/runs", {"code": "1", **body}, headers=headers)
    assert api.runs.requests[0].told_at_end is at_end


def _events(body: bytes) -> list[tuple[int, str, Any]]:
    events = []
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            events.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return events


@pytest.mark.parametrize(("body", "headers"), [({"stream": True}, {}), ({}, {"Accept": "text/event-stream"})])
async def test_a_stream_tells_each_event_with_a_rising_id(
    api: Api, body: dict[str, Any], headers: dict[str, str]
) -> None:
    response = await api.ask("POST", "/v1/runs", {"code": "1", **body}, headers=headers)
    assert response.headers["Content-Type"] == "text/event-stream"
    events = _events(response.body)
    assert [(n, kind) for n, kind, _ in events] == [(1, "run.started"), (2, "output"), (3, "run.completed")]
    assert events[1][2]["output"]["text"] == "\u2028é"
    assert events[2][2]["status"] == "ok"


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?after=1", {}), ("", {"Last-Event-ID": "1"}), ("?after=1", {"Last-Event-ID": "0"})],
)
async def test_a_client_reconnects_behind_the_last_event_it_saw(
    api: Api, query: str, headers: dict[str, str]
) -> None:
    run = json.loads((await api.ask("POST", "/v1/runs", {"code": "1"})).body)
    response = await api.ask("GET", f"/v1/runs/{run['id']}/events{query}", headers=headers)
    assert [n for n, _, _ in _events(response.body)] == [2, 3]
    assert (await api.ask("HEAD", f"/v1/runs/{run['id']}/events")).body == b""


async def test_a_refused_run_is_json_even_for_a_stream(api: Api) -> None:
    response = await api.ask("POST", "/v1/runs", {"stream": True})
    assert (response.code, error_of(response)["param"]) == (400, "code")


async def _post(api: Api, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.secrets['admin']}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "execute_python", "arguments": '{"code": "wait"}'},
}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/runs", {"code": "wait"}),
        ("/v1/runs", {"code": "wait", "stream": True}),
        ("/v1/tool_calls", {"tool_calls": [CALL]}),
        ("/v1/tool_calls", {"tool_calls": [CALL], "stateless": True}),
    ],
)
async def test_a_client_that_goes_away_cancels_its_run(
    api: Api, path: str, body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "interpreter")
    _, writer = await _post(api, path, body)
    await api.runs.submitted.wait()
    writer.close()
    run_id, reason = await api.runs.cancelled.get()
    assert (api.runs.active[run_id].run.status, reason) == (RunStatus.CANCELLED, "The client went away.")
    assert (await api.ask("GET", "/healthz")).code == 200
    assert "status=499" in caplog.text
    assert "ERROR" not in caplog.text
    assert api.sessions.live == {}


async def test_a_background_run_outlives_the_client_of_its_stream(api: Api) -> None:
    reader, writer = await _post(api, "/v1/runs", {"code": "wait", "stream": True, "background": True})
    await reader.readuntil(b"event: run.started")
    writer.close()
    (active,) = api.runs.active.values()
    watcher, other = await asyncio.open_connection("127.0.0.1", api.port)
    head = f"GET /v1/runs/{active.run.id}/events HTTP/1.1\r\nHost: x\r\n"
    other.write(f"{head}Authorization: token {api.secrets['admin']}\r\n\r\n".encode())
    await watcher.readuntil(b"event: run.started")
    assert not active.done.is_set()
    active.finish(RunStatus.OK)
    await watcher.readuntil(b"event: run.completed")
    other.close()
    assert api.runs.cancelled.empty()


async def test_a_silent_stream_sends_comments(tmp_path: Path) -> None:
    api = await Api.start(tmp_path, keepalive_interval=0.01)
    reader, writer = await _post(api, "/v1/runs", {"code": "wait", "stream": True})
    await reader.readuntil(b": keep-alive\n\n")
    await reader.readuntil(b": keep-alive\n\n")
    (active,) = api.runs.active.values()
    active.finish(RunStatus.OK)
    await reader.readuntil(b"event: run.completed")
    writer.close()
    await api.aclose()
