"""Who gets in: tokens, roles, revocation, the browser's cookie, and what the log never holds."""

import json
import re
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

import pytest
from fakes import ADMIN_SECRET, NOW, Api, error_of

from interpreter.errors import ConflictError
from interpreter.models import Role
from interpreter.store import Store
from interpreter.tokens import TokenStore


def _cookies(*headers: str) -> str:
    return "; ".join(header.partition(";")[0] for header in headers)


async def _login(api: Api, token: str, target: str = "/") -> tuple[int, str, list[str]]:
    page = await api.ask("GET", "/login", token=None)
    xsrf = re.search(r'name="_xsrf" value="([^"]+)"', page.body.decode())
    assert xsrf
    form = urlencode({"_xsrf": xsrf[1], "token": token, "next": target}).encode()
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Cookie": _cookies(*page.headers.get_list("Set-Cookie")),
    }
    response = await api.ask("POST", "/login", token=None, raw=form, headers=headers)
    return response.code, response.headers.get("Location", ""), response.headers.get_list("Set-Cookie")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "token"])
async def test_both_schemes_are_understood(api: Api, scheme: str) -> None:
    headers = {"Authorization": f"{scheme} {ADMIN_SECRET}"}
    assert (await api.ask("GET", "/v1/tokens", token=None, headers=headers)).code == 200


async def test_a_token_is_shown_once_and_revoked_at_once(api: Api) -> None:
    body = {"name": "ci", "role": "run", "expires_at": "2032-01-01T00:00:00+01:00"}
    made = json.loads((await api.ask("POST", "/v1/tokens", body)).body)
    assert made["expires_at"] == "2031-12-31T23:00:00.000000Z"
    bearer = {"Authorization": f"Bearer {made['token']}"}
    assert (await api.ask("GET", "/v1/sessions", token=None, headers=bearer)).code == 200
    listed = await api.ask("GET", "/v1/tokens")
    assert made["token"] not in listed.body.decode()
    assert made["id"] in [t["id"] for t in json.loads(listed.body)["data"]]
    assert (await api.ask("DELETE", f"/v1/tokens/{made['id']}")).code == 204
    assert (await api.ask("GET", "/v1/sessions", token=None, headers=bearer)).code == 401
    assert (await api.ask("DELETE", f"/v1/tokens/{made['id']}")).code == 404


async def test_the_configured_token_cannot_be_revoked_here(api: Api) -> None:
    response = await api.ask("DELETE", "/v1/tokens/tok_configured")
    assert (response.code, error_of(response)["type"]) == (409, "conflict")


async def test_the_last_admin_token_stays(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 's.sqlite'}")
    await store.start()
    tokens = TokenStore(store, clock=lambda: NOW)
    first, _ = await tokens.create("first", Role.ADMIN, None)
    second, _ = await tokens.create("second", Role.ADMIN, None)
    assert await tokens.revoke(first.id)
    with pytest.raises(ConflictError):
        await tokens.revoke(second.id)
    await store.aclose()


async def test_tokens_outlive_the_process_as_hashes_only(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = Store(f"sqlite:///{path}")
    await store.start()
    _, secret = await TokenStore(store, clock=lambda: NOW).create("kept", Role.RUN, None)
    await store.aclose()
    assert path.stat().st_mode & 0o077 == 0
    assert not any(secret.encode() in file.read_bytes() for file in tmp_path.iterdir())
    store = Store(f"sqlite:///{path}")
    await store.start()
    principal = await TokenStore(store, clock=lambda: NOW).authenticate(secret)
    assert principal is not None
    assert (principal.name, principal.role) == ("kept", Role.RUN)
    await store.aclose()


async def test_a_token_ends_when_it_expires_even_while_it_is_remembered(tmp_path: Path) -> None:
    now = NOW
    store = Store(f"sqlite:///{tmp_path / 's.sqlite'}")
    await store.start()
    tokens = TokenStore(store, clock=lambda: now)
    _, secret = await tokens.create("short", Role.RUN, NOW + timedelta(seconds=1))
    assert await tokens.authenticate(secret) is not None
    now = NOW + timedelta(seconds=1)
    assert await tokens.authenticate(secret) is None
    await store.aclose()


async def test_a_known_token_costs_no_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("sqlite://")
    await store.start()
    tokens = TokenStore(store, clock=lambda: NOW)
    _, secret = await tokens.create("fast", Role.RUN, None)
    assert await tokens.authenticate(secret)
    asked: list[object] = []
    monkeypatch.setattr(store, "run", asked.append)
    assert await tokens.authenticate(secret)
    assert asked == []
    await store.aclose()


async def test_the_printed_url_sets_a_cookie_and_leads_to_a_clean_url(api: Api) -> None:
    response = await api.ask("GET", f"/?token={api.secrets['run']}&a=1", token=None)
    assert (response.code, response.headers["Location"]) == (302, "/?a=1")
    (cookie,) = response.headers.get_list("Set-Cookie")
    assert "httponly" in cookie.lower()
    assert "samesite=lax" in cookie.lower()
    assert api.secrets["run"] not in cookie
    page = await api.ask("GET", "/", token=None, headers={"Cookie": _cookies(cookie)})
    assert page.code == 200
    assert "a run token" in page.body.decode()


async def test_a_redirect_never_leads_to_another_host(api: Api) -> None:
    response = await api.ask("GET", f"//evil.example/?token={api.secrets['run']}", token=None)
    assert not response.headers.get("Location", "/").startswith("//")


async def test_a_token_in_the_url_of_an_api_route_is_no_token(api: Api) -> None:
    response = await api.ask("GET", f"/v1/tokens?token={api.secrets['admin']}", token=None)
    assert response.code == 401


async def test_a_browser_without_a_cookie_is_sent_to_the_login(api: Api) -> None:
    response = await api.ask("GET", "/docs", token=None, headers={"Accept": "text/html"})
    assert (response.code, response.headers["Location"]) == (302, "/login?next=/docs")


async def test_the_login_form_lets_in(api: Api) -> None:
    code, location, cookies = await _login(api, api.secrets["review"], "/docs")
    assert (code, location) == (302, "/docs")
    page = await api.ask("GET", "/docs", token=None, headers={"Cookie": _cookies(*cookies)})
    assert page.code == 200


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "x"])
async def test_the_login_never_leads_elsewhere(api: Api, target: str) -> None:
    assert (await _login(api, api.secrets["run"], target))[:2] == (302, "/")


async def test_a_wrong_token_at_the_login_is_401_and_too_many_are_429(api: Api) -> None:
    codes = [(await _login(api, f"wrong-{n}"))[0] for n in range(11)]
    assert codes == [401] * 10 + [429]


async def test_a_right_token_gets_in_after_many_wrong_ones_of_the_same_address(api: Api) -> None:
    for n in range(11):
        await _login(api, f"wrong-{n}")
    assert (await _login(api, api.secrets["run"]))[0] == 302
    assert (await api.ask("GET", f"/?token={api.secrets['run']}", token=None)).code == 302


async def test_a_login_without_its_xsrf_field_shows_the_page_again(api: Api) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    response = await api.ask("POST", "/login", token=None, raw=b"token=x", headers=headers)
    assert (response.code, response.headers["Content-Type"]) == (403, "text/html; charset=utf-8")
    assert "The page has expired" in response.body.decode()
    assert 'name="_xsrf"' in response.body.decode()


async def test_a_login_that_is_no_form_is_415(api: Api) -> None:
    response = await api.ask("POST", "/login", {"token": api.secrets["run"]}, token=None)
    assert (response.code, error_of(response)["type"]) == (415, "unsupported_media_type")


async def test_a_logout_ends_every_copy_of_its_cookie_and_no_other_login(api: Api) -> None:
    first, second = [(await _login(api, api.secrets["run"]))[2] for _ in range(2)]
    page = await api.ask("GET", "/login", token=None)
    xsrf = re.search(r'name="_xsrf" value="([^"]+)"', page.body.decode())
    assert xsrf
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Cookie": _cookies(*page.headers.get_list("Set-Cookie"), *first),
    }
    form = urlencode({"_xsrf": xsrf[1]}).encode()
    assert (await api.ask("POST", "/logout", token=None, raw=form, headers=headers)).code == 302
    codes = [
        (await api.ask("GET", "/v1/sessions", token=None, headers={"Cookie": _cookies(*cookies)})).code
        for cookies in (first, second)
    ]
    assert codes == [401, 200]


async def test_a_cookie_reads_but_changes_nothing(api: Api) -> None:
    _, _, cookies = await _login(api, api.secrets["admin"])
    headers = {"Cookie": _cookies(*cookies)}
    assert (await api.ask("GET", "/v1/sessions", token=None, headers=headers)).code == 200
    assert (await api.ask("POST", "/v1/sessions", {}, token=None, headers=headers)).code == 401


async def test_a_cookie_ends_with_its_token(api: Api) -> None:
    _, _, cookies = await _login(api, api.secrets["run"])
    headers = {"Cookie": _cookies(*cookies)}
    assert (await api.ask("GET", "/v1/sessions", token=None, headers=headers)).code == 200
    (info,) = [t for t in await api.tokens.list() if t.role is Role.RUN]
    await api.tokens.revoke(info.id)
    assert (await api.ask("GET", "/v1/sessions", token=None, headers=headers)).code == 401


async def test_a_forged_cookie_is_nothing(api: Api) -> None:
    _, _, cookies = await _login(api, api.secrets["run"])
    headers = {"Cookie": _cookies(*cookies)[:-1] + "x"}
    assert (await api.ask("GET", "/v1/sessions", token=None, headers=headers)).code == 401


async def test_a_token_over_its_rate_is_429_and_others_go_on(tmp_path: Path) -> None:
    api = await Api.start(tmp_path, rate_limit=2)
    codes = [(await api.ask("GET", "/v1/sessions")).code for _ in range(2)]
    refused = await api.ask("GET", "/v1/sessions")
    assert codes == [200, 200]
    assert (refused.code, error_of(refused)["type"]) == (429, "rate_limited")
    assert 1 <= int(refused.headers["Retry-After"]) <= 30
    assert (await api.ask("GET", "/v1/sessions", token="run")).code == 200
    await api.aclose()


async def test_no_token_and_no_code_ever_reaches_the_log(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    secret = api.secrets["admin"]
    api.sessions.error = RuntimeError("boom")
    await api.ask("GET", f"/?token={secret}", token=None)
    await api.ask("GET", f"/v1/nope/{secret}?token={secret}")
    await api.ask("POST", "/v1/sessions?token=" + secret, {})
    await api.ask("POST", "/v1/tokens", {"name": "x", "role": "run"})
    await api.ask("GET", "/v1/notebooks?q=hunter2")
    api.sessions.error = None
    await api.ask("POST", "/v1/runs", {"code": "hunter2"})
    await _login(api, secret)
    records = [r for r in caplog.records if not r.name.startswith("aiosqlite")]
    text = "\n".join(f"{record.getMessage()} {vars(record)}" for record in records)
    assert secret not in text
    assert "hunter2" not in text
    assert "jci_" not in text
    lines = [record for record in records if record.name == "interpreter.access"]
    assert len(lines) == 8
    assert {"/", "/v1/runs", "/login", "(unknown)"} <= {vars(line)["route"] for line in lines}
