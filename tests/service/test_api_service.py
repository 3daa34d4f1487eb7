"""The record, health, metrics, the description and the pages."""

import json
from typing import Any

import pytest
from fakes import Api, error_of
from jsonschema import Draft202012Validator

from interpreter.api.routes import ROUTES
from interpreter.api.schemas import Schemas
from interpreter.errors import UnavailableError


async def _json(api: Api, path: str, token: str = "admin") -> Any:
    response = await api.ask("GET", path, token=token)
    assert response.code == 200, response.body
    return json.loads(response.body)


async def test_notebooks_are_listed_for_those_who_may_read_them(api: Api) -> None:
    mine, other = await api.make_session("run"), await api.make_session("admin")
    assert [n["id"] for n in (await _json(api, "/v1/notebooks", "run"))["data"]] == [mine]
    assert [n["id"] for n in (await _json(api, "/v1/notebooks", "review"))["data"]] == [other, mine]
    assert (await api.ask("GET", f"/v1/notebooks/{other}", token="run")).code == 404
    assert (await api.ask("GET", f"/v1/notebooks/{other}/verify", token="run")).code == 404


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=HELLO", True),
        ("q=absent", False),
        ("status=ok", True),
        ("status=timeout", False),
        ("since=2031-05-01T12:00:00Z", True),
        ("since=2031-05-01T12:00:01Z", False),
        ("until=2031-05-01T11:59:59Z", False),
        ("kernel_name=python3", True),
        ("kernel_name=ir", False),
        ("session_id=x", False),
    ],
)
async def test_notebooks_are_filtered(api: Api, query: str, found: bool) -> None:
    session_id = await api.make_session()
    await api.ask("POST", f"/v1/sessions/{session_id}/runs", {"code": "hello"})
    data = (await _json(api, f"/v1/notebooks?{query}"))["data"]
    assert [n["session_id"] for n in data] == ([session_id] if found else [])


async def test_a_notebook_is_a_file_or_a_page_in_which_no_script_runs(api: Api) -> None:
    session_id = await api.make_session()
    path = f"/v1/notebooks/{session_id}"
    file = await api.ask("GET", path)
    assert file.headers["Content-Type"] == "application/x-ipynb+json"
    assert json.loads(file.body)["nbformat"] == 4
    page = await api.ask("GET", path, headers={"Accept": "text/html,*/*"})
    policy = page.headers["Content-Security-Policy"]
    assert "script-src 'none'" in policy
    assert "frame-src 'self'" in policy
    assert page.headers["Content-Type"].startswith("text/html")
    assert b"&lt;b&gt;" in page.body
    assert "default-src 'none'" in policy
    assert b"<script" not in page.body
    assert await _json(api, path + "/verify") == {"valid": True, "runs": 1, "problems": []}


async def test_health_needs_no_token(api: Api) -> None:
    response = await api.ask("GET", "/healthz", token=None)
    assert json.loads(response.body) == {"status": "ok"}
    assert "Server" not in response.headers
    assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_readiness_tells_each_part(api: Api) -> None:
    async def good() -> tuple[bool, str]:
        return True, "It answers."

    async def bad() -> tuple[bool, str]:
        raise UnavailableError("The disk is full.")

    api.readiness["gateway"] = good
    assert (await _json(api, "/readyz"))["status"] == "ok"
    api.readiness["record"] = bad
    response = await api.ask("GET", "/readyz")
    body = json.loads(response.body)
    assert (response.code, body["checks"]["record"]) == (503, {"ok": False, "detail": "The disk is full."})
    assert body["checks"]["gateway"]["ok"] is True
    assert error_of(response)["type"] == "unavailable"


async def test_requests_are_counted_by_route_pattern(api: Api) -> None:
    await api.make_session()
    response = await api.ask("GET", "/metrics")
    assert response.headers["Content-Type"].startswith("text/plain")
    line = 'interpreter_http_requests_total{method="POST",route="/v1/sessions",status="201"} 1.0'
    assert line in response.body.decode()


async def test_kernelspecs_are_listed(api: Api) -> None:
    assert (await _json(api, "/v1/kernelspecs", "run"))["default"] == "python3"


@pytest.mark.parametrize(
    "path", ["/healthz", "/v1/sessions", "/docs", "/openapi.json", "/", "/login", "/static/style.css"]
)
async def test_head_is_a_get_without_its_body(api: Api, path: str) -> None:
    response = await api.ask("HEAD", path)
    assert (response.code, response.body) == (200, b"")
    assert int(response.headers["Content-Length"]) > 0


async def test_the_description_documents_every_operation(api: Api) -> None:
    document = await _json(api, "/openapi.json")
    assert document["openapi"] == "3.1.0"
    operations = [op for methods in document["paths"].values() for op in methods.values()]
    assert len(operations) == sum(len(handler.operations) for _, handler in ROUTES)
    assert len({op["operationId"] for op in operations}) == len(operations)
    assert all(op["summary"] and op["description"] and op["responses"] for op in operations)


async def test_the_description_holds_the_schemas_that_validate(api: Api) -> None:
    document = await _json(api, "/openapi.json")
    assert document["components"]["schemas"] == dict(Schemas(api.settings).components)
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [ref for item in value.values() for ref in _references(item)]
    return [ref for item in value for ref in _references(item)] if isinstance(value, list) else []


async def test_every_reference_of_the_description_leads_somewhere(api: Api) -> None:
    document = await _json(api, "/openapi.json")
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(_references(document)) <= known


async def test_answers_fit_the_described_schemas(api: Api) -> None:
    document = await _json(api, "/openapi.json")
    session_id = await api.make_session()
    run = json.loads((await api.ask("POST", f"/v1/sessions/{session_id}/runs", {"code": "x"})).body)
    answers = {
        "Run": run,
        "RunList": await _json(api, f"/v1/sessions/{session_id}/runs"),
        "SessionList": await _json(api, "/v1/sessions"),
        "NotebookList": await _json(api, "/v1/notebooks"),
        "TokenList": await _json(api, "/v1/tokens"),
        "Kernelspecs": await _json(api, "/v1/kernelspecs"),
        "Readiness": await _json(api, "/readyz"),
        "Error": json.loads((await api.ask("GET", "/nope")).body),
    }
    for name, value in answers.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        Draft202012Validator(schema).validate(value)


async def test_the_docs_page_lists_every_route_and_loads_nothing_from_elsewhere(api: Api) -> None:
    page = (await api.ask("GET", "/docs")).body.decode()
    assert all(f"<code>{template}</code>" in page for template, _ in ROUTES)
    assert 'src="http' not in page
    assert 'href="http' not in page


async def test_the_first_page_links_sessions_and_notebooks_and_escapes(api: Api) -> None:
    session_id = await api.make_session()
    info, secret = await api.tokens.create("<script>x</script>", (await api.tokens.list())[0].role, None)
    response = await api.ask("GET", "/", token=None, headers={"Authorization": f"Bearer {secret}"})
    page = response.body.decode()
    assert page.count(f'href="/v1/notebooks/{session_id}"') == 2
    assert page.count(f'href="/v1/notebooks/{session_id}?download=1"') == 1
    assert info.name not in page
    assert "script-src 'self'" in response.headers["Content-Security-Policy"]
