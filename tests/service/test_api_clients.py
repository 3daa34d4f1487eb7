"""Clients that are slow, silent, strange, or not welcome any more: each is told, and none holds anything."""

import asyncio
import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import Api, FakeRecorder, error_of
from runs_kit import ADMIN, stack

from interpreter.api import base, stalls, validity
from interpreter.models import RunRequest, RunStatus

LIMIT = 60  # seconds that a busy machine may take for anything here


async def _send(api: Api, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(data)
    await writer.drain()
    return reader, writer


def _post(api: Api, role: str, body: bytes, length: int | None = None) -> bytes:
    head = (
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.secrets[role]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body


# Tokens


@pytest.mark.parametrize("background", [False, True])
async def test_a_stream_ends_with_its_token_and_so_does_its_run(
    api: Api, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "_INTERVAL", 0.02)
    body = json.dumps({"code": "wait", "stream": True, "background": background}).encode()
    reader, writer = await _send(api, _post(api, "run", body))
    await reader.readuntil(b"event: run.started")
    await api.revoke("run")
    async with asyncio.timeout(LIMIT):
        rest = await reader.readuntil(b"0\r\n\r\n")
    (active,) = api.runs.active.values()
    assert b"run.completed" not in rest
    assert active.done.is_set() is not background  # those end with their token wherever they began
    writer.close()


async def test_a_client_that_reads_nothing_does_not_keep_its_run_either(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "_INTERVAL", 0.02)
    reader, writer = await _send(api, _post(api, "run", b'{"code": "wait", "stream": true}'))
    await reader.readuntil(b"event: run.started")
    (active,) = api.runs.active.values()
    for _ in range(3):
        active.say("output", {"text": "x" * 10_000_000})
    await api.revoke("run")
    run_id, _ = await asyncio.wait_for(api.runs.cancelled.get(), LIMIT)
    assert run_id == active.run.id
    writer.close()


async def test_who_follows_with_a_revoked_token_is_cut_off_and_the_run_goes_on(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "_INTERVAL", 0.02)
    made = await api.ask("POST", "/v1/runs", {"code": "wait", "background": True})
    run_id = json.loads(made.body)["id"]
    head = (
        f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.secrets['review']}"
    )
    reader, writer = await _send(api, head.encode() + b"\r\n\r\n")
    await reader.readuntil(b"event: run.started")
    await api.revoke("review")
    async with asyncio.timeout(LIMIT):
        await reader.readuntil(b"0\r\n\r\n")
    assert not api.runs.active[run_id].done.is_set()
    writer.close()


async def test_comments_come_also_while_output_flows(tmp_path: Path) -> None:
    api = await Api.start(tmp_path, keepalive_interval=0.01)
    reader, writer = await _send(api, _post(api, "run", b'{"code": "wait", "stream": true}'))
    await reader.readuntil(b"event: run.started")
    (active,) = api.runs.active.values()
    loop = asyncio.get_running_loop()

    def talk() -> None:
        if not active.done.is_set():
            active.say("output", {"index": 0, "output": {}})
            loop.call_later(0.001, talk)

    talk()
    async with asyncio.timeout(LIMIT):
        for _ in range(3):
            await reader.readuntil(b": keep-alive\n\n")
            await reader.readuntil(b"event: output")
    active.finish(RunStatus.OK)
    writer.close()
    await api.aclose()


# Bodies


@pytest.mark.parametrize(
    "header",
    [
        "Content-Length: 1000",
        "Content-Length: 1000\r\nExpect: 100-continue",
        "Content-Length: 1000000000000",
        "Transfer-Encoding: chunked",
    ],
)
async def test_a_stranger_is_answered_before_its_body_has_come(
    api: Api, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "LINGER", 0.05)
    head = f"POST /v1/runs HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n"
    reader, writer = await _send(api, head.encode())
    async with asyncio.timeout(LIMIT):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nConnection: close\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "unauthorized"
    writer.close()


async def test_a_stranger_that_sends_its_body_at_once_reads_its_answer(api: Api) -> None:
    body = b" " * 3_000_000
    head = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with asyncio.timeout(LIMIT):
        reader, writer = await _send(api, head + body)
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.endswith(b"}")
    writer.close()


@pytest.mark.parametrize("path", ["runs", "sessions/{}/files/a.txt"])
async def test_a_body_that_stalls_ends_its_connection(
    api: Api, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "STALL_TIMEOUT", 0.05)
    path = path.format(await api.make_session("run"))
    method = "PUT" if "files" in path else "POST"
    data = _post(api, "run", b'{"co', 1000).replace(b"POST /v1/runs", f"{method} /v1/{path}".encode())
    reader, writer = await _send(api, data)
    async with asyncio.timeout(LIMIT):
        assert await reader.read() == b""
    writer.close()
    assert api.runs.requests == []


async def test_a_slow_upload_that_goes_on_is_not_a_stall(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "STALL_TIMEOUT", 0.5)
    path = f"/v1/sessions/{await api.make_session('run')}/files/a.txt"
    data = _post(api, "run", b"", 7).replace(b"POST /v1/runs", f"PUT {path}".encode())
    reader, writer = await _send(api, data)
    loop = asyncio.get_running_loop()
    for n in range(7):
        loop.call_later(n * 0.1, writer.write, b"x")
    async with asyncio.timeout(LIMIT):
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 201 ")
    writer.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
async def test_a_body_in_another_charset_or_compressed_is_415(api: Api, headers: dict[str, str]) -> None:
    response = await api.ask("POST", "/v1/runs", {"code": "1"}, headers=headers)
    assert (response.code, error_of(response)["type"]) == (415, "unsupported_media_type")


async def test_utf_8_is_read_with_its_name_and_with_a_byte_order_mark(api: Api) -> None:
    headers = {"Content-Type": 'application/json; charset="UTF-8"'}
    raw = b"\xef\xbb\xbf" + json.dumps({"code": "1"}).encode()
    assert (await api.ask("POST", "/v1/runs", raw=raw, headers=headers)).code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {str(n): "" for n in range(700_000)}},
        {"metadata": [0] * 200_000},
        {"metadata": json.loads("[" * 200 + "]" * 200)},
    ],
)
async def test_a_body_of_very_many_or_deep_values_is_400(api: Api, body: Any) -> None:
    response = await api.ask("POST", "/v1/sessions", body)
    assert (response.code, error_of(response)["type"]) == (400, "invalid_request")


@pytest.mark.parametrize("piece", [b"[]", b"0", b'{"a":1}', b'"a,"'])
async def test_a_body_of_far_too_many_values_is_not_even_parsed(
    api: Api, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Decoder:
        def decode(self, text: str) -> Any:
            raise AssertionError("it takes seconds in which nobody else is answered")

    monkeypatch.setattr("interpreter.api.jsonbody._DECODER", Decoder())
    body = b'{"code":[' + b",".join([piece] * 500_000) + b"]}"
    reader, writer = await _send(api, _post(api, "run", body))
    assert b" 400 " in await reader.readuntil(b"\r\n")
    writer.close()


async def test_the_bodies_of_one_token_hold_only_so_much(tmp_path: Path) -> None:
    api = await Api.start(tmp_path, max_body_bytes=100_000, max_held_bytes=0)  # so four of the largest bodies
    part = b'{"code":"' + b"#" * 90_000
    unfinished = [await _send(api, _post(api, "run", part, length=99_000)) for _ in range(4)]
    body = {"code": "#" * 60_000}
    while (refused := await api.ask("POST", "/v1/runs", body, token="run")).code == 200:
        pass  # what was sent has not all arrived
    assert (refused.code, error_of(refused)["type"]) == (503, "unavailable")
    assert (await api.ask("POST", "/v1/runs", body, token="admin")).code == 200
    for _, writer in unfinished:
        writer.close()
    while (await api.ask("POST", "/v1/runs", body, token="run")).code == 503:
        pass
    await api.aclose()


async def test_a_large_body_is_read_as_a_small_one(api: Api) -> None:
    code = "#" * 1_048_000
    response = await api.ask("POST", "/v1/runs", {"code": code, "tool_call_id": "é" * 200})
    assert (response.code, api.runs.requests[0].code) == (200, code)


# Odd requests


@pytest.mark.parametrize("method", ["FOO", "TRACE"])
async def test_an_unknown_method_is_405_and_the_connection_ends(api: Api, method: str) -> None:
    reader, writer = await _send(api, f"{method} /v1/runs HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    async with asyncio.timeout(LIMIT):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert b"\r\nConnection: close\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "method_not_allowed"
    writer.close()


@pytest.mark.parametrize("path", ["", ".", "../settings.py", "%2e%2e/x", "%00", "%ff", "a/../..", "x" * 3000])
async def test_an_odd_path_of_a_static_file_is_404(api: Api, path: str) -> None:
    response = await api.ask("GET", f"/static/{path}", token=None)
    assert (response.code, error_of(response)["type"]) == (404, "not_found")


# The notebook


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("no entry"), (409, "record_damaged")),
        (KeyError("outputs"), (409, "record_damaged")),
        (FileNotFoundError(), (404, None)),
        (PermissionError(), (503, None)),
    ],
)
async def test_a_notebook_that_cannot_be_read_is_no_failure_of_the_service(
    api: Api,
    raised: Exception,
    expected: tuple[int, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def notebook(*_: object) -> None:
        raise raised

    session_id = await api.make_session()
    monkeypatch.setattr(FakeRecorder, "open_notebook", notebook)
    page = await api.ask("GET", f"/v1/notebooks/{session_id}", headers={"Accept": "text/html"})
    assert (page.code, page.headers["Content-Type"]) == (expected[0], "text/html; charset=utf-8")
    response = await api.ask("GET", f"/v1/notebooks/{session_id}")
    error = error_of(response)
    assert error["message"] in html.unescape(page.body.decode())
    assert (response.code, error["code"]) == expected
    assert ("verify" in error["message"]) == (response.code == 409)


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], None], set[int]]] = {
    "gone": (lambda path: path.unlink(), {404}),
    "empty": (lambda path: path.write_bytes(b""), {409}),
    "zeros": (lambda path: _rewrite(path, lambda data: bytes(len(data))), {409}),
    "shortened": (lambda path: _rewrite(path, lambda data: data[: len(data) // 2]), {200, 409}),
    "garbled": (lambda path: _rewrite(path, lambda data: data[:-400] + b"#" * 400), {200, 409}),
    "a folder": (_make_folder, {409, 503}),
}


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("read_before", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_journal_that_somebody_damaged_is_told_so(
    tmp_path: Path, damage: str, ended: bool, read_before: bool
) -> None:
    async with stack(tmp_path / "record") as parts:
        session = await parts.session(ADMIN)
        await parts.ended(await parts.runs.submit(ADMIN, session, RunRequest("print a")))
        if ended:
            await parts.sessions.delete(ADMIN, session.id)
        if read_before:
            assert await parts.recorder.notebook(session.id)
        record = await parts.recorder.find_session(session.id)
        assert record is not None
        api = await Api.start(tmp_path, recorder=parts.recorder)
        change, statuses = DAMAGES[damage]
        intact = record.path.read_bytes()
        change(record.path)
        for accept in ("*/*", "text/html"):
            response = await api.ask("GET", f"/v1/notebooks/{session.id}", headers={"Accept": accept})
            assert response.code in (statuses if ended else {200, *statuses})  # it is in memory then
            if response.code != 200 and accept == "*/*":
                error_of(response)
        if record.path.is_dir():
            record.path.rmdir()
        record.path.write_bytes(intact)
        await api.aclose()


@pytest.mark.parametrize(
    ("accept", "page"),
    [
        ("", False),
        ("*/*", False),
        ("text/html", True),
        ("text/html,application/xhtml+xml,*/*;q=0.8", True),
        ("text/html;q=0", False),
        ("text/html;q=0, */*", False),
        ("text/html;q=0.1, application/x-ipynb+json", False),
        ("text/html;q=0.5, application/json;q=0.9", False),
        ("TEXT/HTML; level=1; q=0.9, application/*;q=0.2", True),
        ("text/html;q=x", False),
    ],
)
async def test_the_weights_of_accept_choose_between_notebook_and_page(
    api: Api, accept: str, page: bool
) -> None:
    session_id = await api.make_session()
    response = await api.ask("GET", f"/v1/notebooks/{session_id}", headers={"Accept": accept})
    assert response.code == 200
    assert response.headers["Content-Type"].startswith("text/html") is page
