"""Notebooks in a browser: what an output may be on the page, frames, lists, errors."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from fakes import Api, error_of
from recordkit import accepted, ended, session_info

from interpreter.api.shown import show_output
from interpreter.models import RunStatus, SessionInfo
from interpreter.record import Recorder

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
SCRIPT = {"text/html": "<p id=x>chart</p><script>draw('</script>')</script>"}


@pytest.fixture
def api(recorded_api: Api) -> Api:
    return recorded_api


def display(data: dict[str, Any]) -> dict[str, Any]:
    return {"output_type": "display_data", "data": data, "metadata": {}}


async def recorded(
    recorder: Recorder, *outputs: dict[str, Any], code: str = "1+1", **changes: Any
) -> SessionInfo:
    info = session_info()
    await recorder.begin_session(info)
    run = accepted(info, 1, code)
    await recorder.accept_run(run, idempotency_key=None, request_hash=None)
    run = ended(run, "")
    folded = replace(run.folded, outputs=outputs)
    assert await recorder.finish_run(replace(run, folded=folded, **changes))
    return info


async def page_of(api: Api, path: str, code: int = 200) -> str:
    got = await api.ask("GET", path, headers=BROWSER)
    assert got.code == code
    assert got.headers["Content-Type"] == "text/html; charset=utf-8"
    return got.body.decode()


# One output


@pytest.mark.parametrize(
    "html",
    [
        "<script>x()</script>",
        '<img src="x" onerror="x()">',
        '<meta http-equiv="refresh" content="0;url=http://x">',
        '<a href="http://x">y</a>',
        "<style>p { color: red }</style>",
        '<table><tr onclick="x()"><td>1</td></tr></table>',
        '<form action="http://x"></form>',
        '<p style="position: fixed">x</p>',
        '<base href="http://x">',
        "<svg><p></p></svg>",
        "<p>never closed",
        "<p></p><script",
        "<!-- comment -->",
        "<p>" * 40 + "</p>" * 40,
    ],
    ids=lambda html: re.sub(r"\W+", "-", html)[:30],
)
def test_html_that_sanitising_would_change_is_only_in_a_frame(html: str) -> None:
    shown = show_output(display({"text/html": html}))
    assert (shown.framed, shown.html) == (True, "")


def test_a_table_of_pandas_is_in_the_page_without_its_styles() -> None:
    html = (
        "<div>\n<style scoped>\n    .dataframe thead th { text-align: right; }\n</style>\n"
        '<table border="1" class="dataframe">\n<thead><tr style="text-align: right;"><th></th></tr></thead>\n'
        '<tbody><tr><th colspan="2">a &lt; b</th></tr></tbody>\n</table>\n</div>'
    )
    shown = show_output(display({"text/html": html}))
    assert not shown.framed
    assert '<th colspan="2">a &lt; b</th>' in shown.html
    assert "style" not in shown.html
    assert "border" not in shown.html


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"image/png": "aGk=\n", "text/plain": "x"}, 'src="data:image/png;base64,aGk="'),
        ({"image/png": '"><script>'}, "kind that this page can"),
        ({"image/svg+xml": '<svg onload="x()"/>'}, "data:image/svg+xml,%3Csvg%20onload%3D%22x%28%29%22/%3E"),
        ({"text/markdown": "# A\n\n[b](http://x)"}, ">b</p>"),
        ({"text/markdown": "<script>x()</script>"}, "&lt;script&gt;"),
        ({"text/latex": "$<$"}, "<pre>$&lt;$</pre>"),
        ({"application/json": {"a": ["<b>"]}}, "&lt;b&gt;"),
        ({"application/vnd.plotly.v1+json": {"data": []}}, "is only in the notebook file"),
        ({"application/vnd.x": 1, "text/plain": "Figure()"}, "<pre>Figure()</pre>"),
        ({}, "no content"),
    ],
    ids=[
        "picture",
        "no-picture",
        "svg",
        "markdown",
        "markdown-html",
        "latex",
        "json",
        "plotly",
        "fallback",
        "empty",
    ],
)
def test_other_outputs_are_shown_safely(data: dict[str, Any], expected: str) -> None:
    shown = show_output(display(data))
    assert expected in shown.html + shown.note
    assert not shown.framed
    assert not re.search(r"<(?!/?(pre|p|h1|div|img)\b)", shown.html)


def test_a_chart_that_wants_the_internet_says_so_or_shows_its_picture() -> None:
    html = '<div></div><script src="https://cdn.example/vega.js"></script>'
    assert "may stay empty" in show_output(display({"text/html": html})).note
    with_picture = show_output(display({"text/html": html, "image/png": "aGk="}))
    assert not with_picture.framed
    assert "<img" in with_picture.html


# The page


async def test_outputs_with_scripts_are_frames_and_their_text_is_not_on_the_page(
    api: Api, recorder: Recorder
) -> None:
    info = await recorded(
        recorder, display({"text/plain": "x"}), display(SCRIPT), display({"text/javascript": "go()"})
    )
    page = await page_of(api, f"/v1/notebooks/{info.id}")
    assert re.findall(r'<iframe sandbox="([^"]*)".*src="([^"]*)"', page) == [
        ("allow-scripts", f"/v1/notebooks/{info.id}/frames/1/1"),
        ("allow-scripts", f"/v1/notebooks/{info.id}/frames/1/2"),
    ]
    assert "draw(" not in page
    assert "<script" not in page


async def test_the_page_tells_who_when_and_how_a_run_ended(api: Api, recorder: Recorder) -> None:
    info = await recorded(
        recorder,
        code="while True: <b>",
        status=RunStatus.TIMEOUT,
        notices=("It was <cut>.",),
        duration_ms=61_500,
    )
    page = await page_of(api, f"/v1/notebooks/{info.id}")
    for text in (
        "alice",
        "timed out",
        "61.5 seconds",
        "limit 60 seconds",
        "It was &lt;cut&gt;.",
        "2026-01-31 23:59:00",
    ):
        assert text in page
    for link in (f"{info.id}?download=1", f"{info.id}/verify", "/v1/notebooks"):
        assert f'{link}"' in page
    assert "<b>" not in page


async def test_ansi_colours_of_a_traceback_are_classes(api: Api, recorder: Recorder) -> None:
    error = {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mE\x1b[0m: <v>"]}
    info = await recorded(recorder, error)
    assert '<span class="ansi-red-fg">E</span>: &lt;v&gt;' in await page_of(api, f"/v1/notebooks/{info.id}")


async def test_verification_is_a_page_for_browsers(api: Api, recorder: Recorder) -> None:
    info = await recorded(recorder)
    assert "whole and unchanged" in await page_of(api, f"/v1/notebooks/{info.id}/verify")


async def test_all_notebooks_are_reached_page_by_page_and_by_search(api: Api, recorder: Recorder) -> None:
    infos = [await recorded(recorder, code=f"thing_{number}") for number in range(3)]
    found, url = "", "/v1/notebooks?limit=2"
    for _ in range(2):
        page = await page_of(api, url)
        found += page
        following = re.search(r'href="([^"]*)" rel="next"', page)
        url = following[1].replace("&amp;", "&") if following else ""
    assert url == ""
    assert all(f"/v1/notebooks/{info.id}/verify" in found for info in infos)
    searched = await page_of(api, "/v1/notebooks?q=thing_1&status=&since=")
    assert [info.id in searched for info in infos] == [False, True, False]
    listed = await api.ask("GET", "/v1/notebooks")
    assert len(json.loads(listed.body)["data"]) == 3


# Frames


async def test_a_frame_is_confined_and_holds_its_output_as_text_only(api: Api, recorder: Recorder) -> None:
    info = await recorded(recorder, display(SCRIPT))
    path = f"/v1/notebooks/{info.id}/frames/1/0"
    got = await api.ask("GET", path, headers=BROWSER)
    policy = got.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none';")
    assert "frame-ancestors 'self'" in policy
    assert "http" not in policy
    assert got.headers["Connection-Allowlist"] == "()"
    document = got.body.decode()
    held = re.search(r'id="output">(.*?)</script>', document)
    assert held is not None
    assert json.loads(held[1]) == SCRIPT["text/html"]
    assert "<p id=x>" not in document
    head = await api.ask("HEAD", path)
    assert (head.code, head.body, head.headers["Content-Length"]) == (200, b"", str(len(got.body)))


@pytest.mark.parametrize("part", ["1/1", "2/0", "0/0", "x/0", "1/-1", "1/9999999999", "1/²", "01/0", "1/2"])
async def test_what_needs_no_frame_is_404(api: Api, recorder: Recorder, part: str) -> None:
    info = await recorded(recorder, display(SCRIPT), display({"text/plain": "x"}))
    response = await api.ask("GET", f"/v1/notebooks/{info.id}/frames/{part}", headers=BROWSER)
    assert (response.code, error_of(response)["type"]) == (404, "not_found")


async def test_a_frame_is_for_those_who_may_read_its_notebook(api: Api, recorder: Recorder) -> None:
    info = await recorded(recorder, display(SCRIPT))
    codes = {}
    for role in ("run", "review", None):
        codes[role] = (await api.ask("GET", f"/v1/notebooks/{info.id}/frames/1/0", token=role)).code
    assert codes == {"run": 404, "review": 200, None: 401}


# Errors


@pytest.mark.parametrize(
    "path", ["/nowhere", "/v1/notebooks/xxxxxxxxxxxxxxxxxxxxx", "/v1/notebooks/x/verify"]
)
async def test_a_browser_gets_errors_as_pages_and_programs_as_json(api: Api, path: str) -> None:
    page = await page_of(api, path, 404)
    assert "<h1>Not found</h1>" in page
    assert error_of(await api.ask("GET", path))["type"] == "not_found"
    assert error_of(await api.ask("DELETE", path, headers=BROWSER))["type"] in (
        "not_found",
        "method_not_allowed",
    )


async def test_a_wrong_query_of_a_page_is_a_page(api: Api) -> None:
    assert "`limit` must be" in await page_of(api, "/v1/notebooks?limit=x", 400)


async def test_a_stranger_at_an_unknown_path_is_offered_the_login(api: Api) -> None:
    response = await api.ask("GET", "/nowhere", token=None, headers=BROWSER)
    assert response.code == 401
    assert b'href="/login?next=/nowhere"' in response.body
