"""Large sessions are read piece by piece: as complete as small ones, in the memory of one run."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from fakes import Api
from recordkit import check_notebook, record_run, session_info

from interpreter.api.notebook_page import MAX_PAGE_BYTES, MAX_PAGE_CELLS
from interpreter.models import SessionInfo
from interpreter.record import Recorder

MB = 1024**2


@pytest.fixture
def api(recorded_api: Api) -> Api:
    return recorded_api


async def recorded(recorder: Recorder, *texts: str, ended: bool = False, code: str = "1+1") -> SessionInfo:
    info = session_info()
    await recorder.begin_session(info)
    for number, text in enumerate(texts, 1):
        await record_run(recorder, info, number, code=code, text=text)
    if ended:
        await recorder.end_session(info.id, "deleted")
    return info


@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended"])
@pytest.mark.parametrize("size", [10, 3 * MB], ids=["small", "large"])
async def test_a_notebook_comes_whole(api: Api, recorder: Recorder, ended: bool, size: int) -> None:
    info = await recorded(recorder, "a" * size, "last", ended=ended)
    path = f"/v1/notebooks/{info.id}"
    got = await api.ask("GET", path)
    assert [cell.outputs[0].text for cell in check_notebook(got.body).cells] == ["a" * size, "last"]
    assert got.headers["Content-Length"] == str(len(got.body))
    head = await api.ask("HEAD", path)
    assert (head.headers["Content-Length"], head.body) == (got.headers["Content-Length"], b"")


async def test_an_opened_notebook_stays_as_it_is_while_runs_are_added(recorder: Recorder) -> None:
    info = await recorded(recorder, "one")
    with await recorder.open_notebook(info.id) as before:
        await record_run(recorder, info, 2, text="two")
        assert len(check_notebook(before.read()).cells) == 1
    assert len(check_notebook(await recorder.notebook(info.id)).cells) == 2


@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended"])
async def test_opening_a_large_notebook_costs_the_memory_of_one_run(recorder: Recorder, ended: bool) -> None:
    info = await recorded(recorder, *(["x" * MB] * 12), ended=ended)
    tracemalloc.start()
    with await recorder.open_notebook(info.id) as notebook:
        peak = tracemalloc.get_traced_memory()[1]
        assert notebook.seek(0, 2) > 12 * MB
    tracemalloc.stop()
    assert peak < 8 * MB


async def test_a_browser_can_save_the_notebook_that_it_would_be_shown(api: Api, recorder: Recorder) -> None:
    info = await recorded(recorder, "text")
    got = await api.ask("GET", f"/v1/notebooks/{info.id}?download=1", headers={"Accept": "text/html"})
    assert got.headers["Content-Disposition"] == f'attachment; filename="{info.id}.ipynb"'
    check_notebook(got.body)
    assert (await api.ask("GET", f"/v1/notebooks/{info.id}?download=yes")).code == 400


async def page_of(api: Api, info: SessionInfo) -> str:
    got = await api.ask("GET", f"/v1/notebooks/{info.id}", headers={"Accept": "text/html"})
    assert got.code == 200
    return got.body.decode()


async def test_the_page_of_a_large_notebook_says_what_it_leaves_out(api: Api, recorder: Recorder) -> None:
    heavy = 'print("], \\"source\\": ")'
    info = await recorded(recorder, "small one", "x" * MAX_PAGE_BYTES, "small two", code=heavy)
    page = await page_of(api, info)
    assert "small one" in page
    assert "small two" in page
    assert "bytes of outputs are not shown on this page" in page
    assert f"/v1/notebooks/{info.id}?download=1" in page
    assert page.count("source") >= 3
    assert "x" * 1000 not in page
    assert "The page ends here" not in page


@pytest.mark.parametrize(
    ("texts", "code"),
    [(["t"] * (MAX_PAGE_CELLS + 2), "1+1"), (["t"] * 4, "#" * 700_000)],
    ids=["cells", "bytes"],
)
async def test_the_page_ends_where_it_is_full(
    api: Api, recorder: Recorder, texts: list[str], code: str
) -> None:
    page = await page_of(api, await recorded(recorder, *texts, code=code))
    assert "The page ends here" in page
    assert "?download=1" in page
    assert len(page) < 2 * MAX_PAGE_BYTES


async def test_a_replay_reads_only_the_code_of_what_succeeded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = await recorded(recorder, "x" * MB, code="print('x' * 2**20)")
    tracemalloc.start()
    run = await recorder.get_program(f"run_{info.id}_1")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert run is not None
    assert (run.code, run.folded.outputs, run.timeout) == ("print('x' * 2**20)", (), 60.0)
    assert peak < MB / 2
    assert await recorder.get_program(f"run_{info.id}_2") is None


async def test_large_runs_are_listed_as_small_ones_are(tmp_path: Path) -> None:
    api = await Api.start(tmp_path)
    session_id = await api.make_session()
    path = f"/v1/sessions/{session_id}/runs"

    async def listed(query: str) -> Any:
        got = await api.ask("GET", path + query)
        assert got.headers["Content-Type"] == "application/json"
        assert (await api.ask("HEAD", path + query)).body == b""
        return json.loads(got.body)

    empty = {"data": [], "has_more": False, "first_id": None, "last_id": None}
    assert await listed("") == empty
    for code in ("a", "é" * 400_000, "b"):
        await api.ask("POST", path, {"code": code})
    everything = await listed("?order=asc")
    assert [run["code"] for run in everything["data"]] == ["a", "é" * 400_000, "b"]
    ids = [run["id"] for run in everything["data"]]
    assert (everything["has_more"], everything["first_id"], everything["last_id"]) == (False, ids[0], ids[2])
    page = await listed("?order=asc&limit=2")
    assert (page["data"], page["has_more"]) == (everything["data"][:2], True)
    await api.aclose()
