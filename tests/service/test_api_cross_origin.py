"""Pages of other origins that call the API from a browser (CORS)."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from fakes import Api
from tornado.httpclient import HTTPResponse

from interpreter.errors import SettingsError
from interpreter.settings import Settings, validate

PAGE = "https://chat.example.org"
STRANGER = "https://evil.example.net"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    api = await Api.start(tmp_path, allow_origins=f"{PAGE}, http://localhost:3000")
    yield api
    await api.aclose()


@pytest.fixture
async def open_api(tmp_path: Path) -> AsyncIterator[Api]:
    api = await Api.start(tmp_path, allow_origins="*")
    yield api
    await api.aclose()


def _cors(response: HTTPResponse) -> Mapping[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("Access-Control-")}


async def _preflight(api: Api, path: str, origin: str = PAGE) -> HTTPResponse:
    return await api.ask("OPTIONS", path, token=None, headers={"Origin": origin, **PREFLIGHT})


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sessions",
        "/v1/runs",
        "/v1/sessions/s/files",
        "/openapi-tools/execute_python",
        "/api/kernels",
        "/azure/executions",
        "/librechat/exec",
    ],
)
async def test_preflight_needs_no_token(api: Api, path: str) -> None:
    response = await _preflight(api, path)
    assert (response.code, response.body) == (204, b"")
    assert response.headers["Access-Control-Allow-Origin"] == PAGE
    assert "POST" in response.headers["Access-Control-Allow-Methods"].split(", ")
    assert response.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    assert response.headers["Vary"] == "Origin"


async def test_page_reads_answers_and_errors(api: Api) -> None:
    for token, code in (("run", 200), (None, 401)):
        response = await api.ask("GET", "/v1/sessions", token=token, headers={"Origin": PAGE})
        assert response.code == code
        assert response.headers["Access-Control-Allow-Origin"] == PAGE
        exposed = response.headers["Access-Control-Expose-Headers"].split(", ")
        assert {"X-Request-Id", "Retry-After", "ETag", "Location", "Content-Disposition"} <= set(exposed)
        assert response.headers["Vary"] == "Origin"


async def test_cookies_never_come_along(api: Api, open_api: Api) -> None:
    for served in (api, open_api):
        told = await _preflight(served, "/v1/sessions")
        answered = await served.ask("GET", "/v1/sessions", headers={"Origin": PAGE})
        for response in (told, answered):
            assert "Access-Control-Allow-Origin" in response.headers
            assert "Access-Control-Allow-Credentials" not in response.headers


@pytest.mark.parametrize("origin", [STRANGER, "null", f"{PAGE}:8443", "http://chat.example.org"])
async def test_other_pages_are_told_nothing(api: Api, origin: str) -> None:
    asked = await _preflight(api, "/v1/sessions", origin)
    assert asked.code == 401
    answered = await api.ask("GET", "/v1/sessions", headers={"Origin": origin})
    assert answered.code == 200
    for response in (asked, answered):
        assert _cors(response) == {}
        assert response.headers["Vary"] == "Origin"


async def test_without_the_setting_nothing_changes(tmp_path: Path) -> None:
    api = await Api.start(tmp_path)
    try:
        response = await _preflight(api, "/v1/sessions")
        assert (response.code, _cors(response), "Vary" in response.headers) == (401, {}, False)
        response = await api.ask("GET", "/v1/sessions", headers={"Origin": PAGE})
        assert (response.code, _cors(response), "Vary" in response.headers) == (200, {}, False)
    finally:
        await api.aclose()


async def test_star_is_for_every_page(open_api: Api) -> None:
    for origin in (STRANGER, "null"):
        response = await _preflight(open_api, "/v1/sessions", origin)
        assert (response.code, response.headers["Access-Control-Allow-Origin"]) == (204, "*")


async def test_options_that_is_no_preflight_is_a_request_like_others(open_api: Api) -> None:
    headers = {"Origin": PAGE}
    assert (await open_api.ask("OPTIONS", "/v1/sessions", token=None, headers=headers)).code == 401
    assert (await open_api.ask("OPTIONS", "/v1/sessions", headers=headers)).code == 405


@pytest.mark.parametrize("path", ["/login", "/static/style.css"])
async def test_pages_stay_for_this_origin(open_api: Api, path: str) -> None:
    answered = await open_api.ask("GET", path, token=None, headers={"Origin": PAGE})
    asked = await _preflight(open_api, path)
    assert (answered.code, _cors(answered), _cors(asked)) == (200, {}, {})
    assert asked.code in (401, 405)


async def test_mcp_still_checks_where_a_page_is_from(open_api: Api) -> None:
    """A page that is let in here has to be in `allowed_hosts` as well: those are against DNS rebinding."""
    response = await open_api.ask("POST", "/mcp", {"jsonrpc": "2.0"}, headers={"Origin": STRANGER})
    assert response.code == 403
    rebound = {"Origin": STRANGER, "Host": "evil.example.net"}
    response = await open_api.ask("POST", "/mcp", {"jsonrpc": "2.0"}, headers=rebound)
    assert response.code == 403


@pytest.mark.parametrize(
    "value", ["chat.example.org", "https://chat.example.org/", "https://*.example.org", "https://a/b", "null"]
)
def test_what_is_no_origin_stops_the_start(value: str) -> None:
    with pytest.raises(SettingsError, match="allow_origins"):
        validate(Settings(allow_origins=value))


@pytest.mark.parametrize("value", ["", "*", "https://Chat.example.org:8443, http://[::1]:3000, app://host"])
def test_origins_are_good(value: str) -> None:
    validate(Settings(allow_origins=value))
