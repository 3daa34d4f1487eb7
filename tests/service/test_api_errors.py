"""Every route answers every kind of wrong request in the one error shape."""

import asyncio
from pathlib import Path

import pytest
from fakes import Api, error_of

from interpreter.api.routes import ROUTES
from interpreter.models import new_id

UNKNOWN = {
    "session_id": "SessionThatIsNotThere",
    "run_id": "run_SessionThatIsNotThere_1",
    "token_id": "tok_unknown",
    "run": "1",
    "index": "0",
    "path": "a/b.txt",
}
PATHS = {template: template.format(**UNKNOWN) for template, _ in ROUTES}
OPERATIONS = [(template, method, op) for template, h in ROUTES for method, op in h.operations.items()]
WITH_BODY = [(t, m, op.body) for t, m, op in OPERATIONS if op.body and not op.form]
GUARDED = [(t, m) for t, m, op in OPERATIONS if op.access.name != "PUBLIC"]


@pytest.mark.parametrize(("template", "method"), GUARDED)
async def test_every_route_wants_a_token(api: Api, template: str, method: str) -> None:
    response = await api.ask(method, PATHS[template], token=None)
    assert response.code == 401
    assert error_of(response)["type"] == "unauthorized"
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(("template", "method"), GUARDED)
async def test_a_wrong_token_opens_no_route(api: Api, template: str, method: str) -> None:
    response = await api.ask(method, PATHS[template], token=None, headers={"Authorization": "Bearer x"})
    assert response.code == 401
    assert error_of(response)["code"] == "invalid_token"


@pytest.mark.parametrize(
    ("template", "method", "role"),
    [
        (t, m, {"RUN": "review", "REVIEW": "run", "ADMIN": "run"}[op.access.name])
        for t, m, op in OPERATIONS
        if op.access.name in ("RUN", "REVIEW", "ADMIN")
    ],
)
async def test_a_role_that_is_not_enough_is_403(api: Api, template: str, method: str, role: str) -> None:
    response = await api.ask(method, PATHS[template], token=role)
    assert response.code == 403
    assert error_of(response)["type"] == "forbidden"


@pytest.mark.parametrize("template", list(PATHS))
@pytest.mark.parametrize("method", ["PATCH", "OPTIONS", "BREW"])
async def test_a_wrong_method_is_405_and_allow_lists_the_right_ones(
    api: Api, template: str, method: str
) -> None:
    response = await api.ask(method, PATHS[template])
    assert response.code == 405
    assert error_of(response)["type"] == "method_not_allowed"
    assert response.headers["Allow"].split(", ")[0] in dict(ROUTES)[template].operations


@pytest.mark.parametrize(("template", "method", "schema"), WITH_BODY)
@pytest.mark.parametrize("raw", [b"{", b"[]", b'"x"', b"\xff", b'{"code": NaN}'])
async def test_malformed_json_is_400_without_a_param(
    api: Api, template: str, method: str, schema: str, raw: bytes
) -> None:
    response = await api.ask(method, PATHS[template], raw=raw)
    assert response.code == 400
    error = error_of(response)
    assert (error["type"], error["param"]) == ("invalid_request", None)


@pytest.mark.parametrize(("template", "method", "schema"), WITH_BODY)
async def test_an_unknown_field_is_named(api: Api, template: str, method: str, schema: str) -> None:
    known = {
        "RunCreate": {"code": "1"},
        "OneOffRunCreate": {"code": "1"},
        "ToolCallsCreate": {"tool_calls": []},
        "TokenCreate": {"name": "x", "role": "run"},
    }
    response = await api.ask(method, PATHS[template], {**known.get(schema, {}), "bogus": 1})
    assert (response.code, error_of(response)["param"]) == (400, "bogus")


@pytest.mark.parametrize(("template", "method", "schema"), WITH_BODY)
async def test_another_content_type_is_415(api: Api, template: str, method: str, schema: str) -> None:
    headers = {"Content-Type": "text/plain"}
    response = await api.ask(method, PATHS[template], {}, headers=headers)
    assert (response.code, error_of(response)["type"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/runs", {}, "code"),
        ("/v1/runs", {"code": 1}, "code"),
        ("/v1/runs", {"code": "\ud800"}, "code"),
        ("/v1/runs", {"code": "1", "timeout": True}, "timeout"),
        ("/v1/runs", {"code": "1", "timeout": 1e9}, "timeout"),
        ("/v1/sessions", {"metadata": {"a": 1}}, "metadata.a"),
        ("/v1/sessions", {"metadata": {"a": "\udc00"}}, "metadata.a"),
        ("/v1/sessions", {"kernel_name": "cobol"}, "kernel_name"),
        ("/v1/tool_calls", {}, "tool_calls"),
        ("/v1/tool_calls", {"tool_calls": [{"what": 1}]}, "tool_calls"),
        ("/v1/tokens", {"name": "x"}, "role"),
        ("/v1/tokens", {"name": "x", "role": "run", "expires_at": "2031-05-01T11:00:00Z"}, "expires_at"),
        ("/v1/tokens", {"name": "x", "role": "run", "expires_at": "2032-05-01T11:00:00"}, "expires_at"),
        ("/v1/tokens", {"name": "x", "role": "run", "expires_at": "soon"}, "expires_at"),
    ],
)
async def test_a_wrong_field_is_named(api: Api, path: str, body: object, param: str) -> None:
    response = await api.ask("POST", path, body)
    assert (response.code, error_of(response)["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/sessions?limit=0", "limit"),
        ("/v1/sessions?after=x", "after"),
        ("/v1/notebooks?status=good", "status"),
        ("/v1/notebooks?since=now", "since"),
        ("/v1/notebooks?owner=me", "owner"),
        ("/v1/tools?dialect=latin", "dialect"),
        ("/v1/tokens?order=up", "order"),
        (f"/v1/runs/{UNKNOWN['run_id']}/events?after=-1", "after"),
    ],
)
async def test_a_wrong_query_parameter_is_named(api: Api, path: str, param: str) -> None:
    response = await api.ask("GET", path)
    assert (response.code, error_of(response)["param"]) == (400, param)


@pytest.mark.parametrize(
    ("method", "path"),
    [(m, PATHS[t]) for t, m, op in OPERATIONS if "{" in t and not op.body_required]
    + [("GET", "/v1/sessions/..%2f..%2fetc"), ("GET", "/v1/runs/run_1"), ("GET", "/v1"), ("POST", "/nope")]
    + [("GET", "/static/none.css"), ("GET", "/v1/sessions/")],
)
async def test_what_is_unknown_is_404(api: Api, method: str, path: str) -> None:
    response = await api.ask(method, path)
    assert (response.code, error_of(response)["type"]) == (404, "not_found")


async def test_running_in_an_unknown_session_is_404(api: Api) -> None:
    response = await api.ask("POST", f"/v1/sessions/{new_id()}/runs", {"code": "1"})
    assert (response.code, error_of(response)["type"]) == (404, "not_found")


async def test_an_expired_session_is_404_with_its_code(api: Api) -> None:
    session_id = await api.make_session()
    api.sessions.gone.add(session_id)
    response = await api.ask("GET", f"/v1/sessions/{session_id}")
    assert (response.code, error_of(response)["code"]) == (404, "session_expired")


async def test_a_path_that_is_not_utf8_is_400(api: Api) -> None:
    response = await api.ask("GET", "/v1/sessions/%ff")
    assert (response.code, error_of(response)["type"]) == (400, "invalid_request")


async def test_our_own_bug_is_an_opaque_500(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    api.sessions.error = RuntimeError("/secret/path")
    response = await api.ask("POST", "/v1/sessions", {})
    assert (response.code, error_of(response)["type"]) == (500, "internal_error")
    assert b"secret" not in response.body
    assert "/secret/path" in caplog.text


async def test_code_over_its_limit_is_413(tmp_path: Path) -> None:
    api = await Api.start(tmp_path, max_code_bytes=10)
    response = await api.ask("POST", "/v1/runs", {"code": "é" * 6})
    error = error_of(response)
    assert (response.code, error["type"], error["param"]) == (413, "too_large", "code")
    await api.aclose()


CHUNKED = (
    b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\n"
)
PLAIN = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n"


async def _send(api: Api, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(data)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_over_the_limit_is_413_and_the_connection_goes_on(tmp_path: Path, chunked: bool) -> None:
    api = await Api.start(tmp_path, max_body_bytes=1000)
    secret = api.secrets["admin"].encode()
    body = b" " * 300_000
    if chunked:
        data = CHUNKED % secret + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        data = PLAIN % (secret, len(body)) + body
    reader, writer = await _send(api, data + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    answer = await reader.readuntil(b'{"status":"ok"}')
    assert b'"type":"too_large"' in answer
    writer.close()
    await api.aclose()


async def test_a_client_that_waits_for_100_is_told_413_at_once(tmp_path: Path) -> None:
    api = await Api.start(tmp_path, max_body_bytes=1000)
    head = PLAIN % (api.secrets["admin"].encode(), 2000)
    reader, writer = await _send(api, head[:-2] + b"Expect: 100-continue\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
    writer.close()
    await api.aclose()


async def test_a_hopelessly_large_body_is_told_413_at_once(api: Api) -> None:
    reader, writer = await _send(api, PLAIN % (api.secrets["admin"].encode(), 10**12))
    assert b'"type":"too_large"' in await reader.read()
    writer.close()


async def test_a_request_id_is_kept_when_it_is_plain(api: Api) -> None:
    response = await api.ask("GET", "/v1/nope", headers={"X-Request-Id": "abc-1"})
    assert response.headers["X-Request-Id"] == "abc-1"
    assert error_of(response)["type"] == "not_found"
    other = await api.ask("GET", "/v1/nope", headers={"X-Request-Id": "a b<>"})
    assert other.headers["X-Request-Id"].startswith("req_")
