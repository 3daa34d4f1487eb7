"""Open Terminal's operations over real sockets: one session per chat, files, commands, notebooks, errors."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fakes import Api
from tornado.httpclient import HTTPResponse

from interpreter.errors import InvalidRequestError
from interpreter.frontends.open_terminal import ROUTES
from interpreter.frontends.open_terminal.document import PREFIX
from interpreter.frontends.open_terminal.files import replaced

NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": "# Title", "metadata": {}},
        {"cell_type": "code", "source": ["1 +\n", "1"], "metadata": {}, "outputs": [], "execution_count": None},
    ],
    "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
}  # fmt: skip


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    running = await Api.start(tmp_path, max_file_bytes=1000)
    yield running
    await running.aclose()


async def ask(
    api: Api, method: str, path: str, body: Any = None, /, *, chat: str | None = "c1", **query: str
) -> HTTPResponse:
    headers = {"X-User-Id": "u1", **({"X-Session-Id": chat} if chat else {})}
    text = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    return await api.ask(method, f"{PREFIX}{path}?{text}", body, token="run", headers=headers)


async def done(api: Api, method: str, path: str, body: Any = None, /, **options: Any) -> Any:
    answer = await ask(api, method, path, body, **options)
    assert answer.code == 200, answer.body
    return json.loads(answer.body)


async def write(api: Api, path: str, content: str, **options: Any) -> Any:
    return await done(api, "POST", "/files/write", {"path": path, "content": content}, **options)


async def test_document_names_what_open_webui_knows(api: Api) -> None:
    found = await done(api, "GET", "/openapi.json")
    served = {path for path, _ in ROUTES}
    ids = {
        operation["operationId"]
        for path, methods in found["paths"].items()
        for operation in methods.values()
        if path in served
    }
    assert ids == {
        "execute_python", "run_command", "list_processes", "get_process_status", "kill_process",
        "list_files", "read_file", "display_file", "write_file", "replace_file_content",
        "grep_search", "glob_search",
    }  # fmt: skip
    assert set(found["paths"]) <= served


async def test_what_open_webui_asks_first(api: Api) -> None:
    for path in ("/health", "/api/config"):
        assert (await api.ask("GET", PREFIX + path, token=None)).code == 200
    assert (await api.ask("GET", f"{PREFIX}/system", token=None)).code == 401
    assert (await done(api, "GET", "/api/config"))["features"]["notebooks"] is True
    assert "/mnt/data" in (await done(api, "GET", "/system"))["prompt"]
    assert (await done(api, "GET", "/files/cwd"))["cwd"] == "/mnt/data"
    assert (await done(api, "GET", "/skills"), await done(api, "GET", "/ports")) == ([], {"ports": []})


async def test_a_chat_has_its_own_files(api: Api) -> None:
    await write(api, "a.txt", "1", chat="one")
    await write(api, "b.txt", "2", chat="two")
    assert [e["name"] for e in (await done(api, "GET", "/files/list", chat="one"))["entries"]] == ["a.txt"]
    assert (await done(api, "GET", "/files/list", chat=None))["entries"] == []  # the user's own
    assert len(api.sessions.live) == 3


async def test_files_as_a_model_reads_them(api: Api) -> None:
    assert await write(api, "/mnt/data/docs/ä.txt", "one\ntwo\nthree\n") == {
        "path": "/mnt/data/docs/ä.txt", "size": 14,
    }  # fmt: skip
    found = await done(api, "GET", "/files/read", path="docs/ä.txt", start_line="2", end_line="null")
    assert (found["content"], found["total_lines"]) == ("two\nthree\n", 3)
    listed = await done(api, "GET", "/files/list", directory=".")
    assert [(e["name"], e["type"]) for e in listed["entries"]] == [("docs", "directory")]
    shown = await done(api, "GET", "/files/display", path="docs/ä.txt")
    assert shown == {"path": "/mnt/data/docs/ä.txt", "exists": True}
    assert (await done(api, "GET", "/files/display", path="docs"))["exists"] is False
    change = {"target": "two", "replacement": "2"}
    await done(api, "POST", "/files/replace", {"path": "docs/ä.txt", "replacements": [change]})
    assert (await done(api, "GET", "/files/read", path="docs/ä.txt"))["content"] == "one\n2\nthree\n"


async def test_images_come_as_they_are(api: Api) -> None:
    await upload(api, "a.png", b"\x89PNG", ".")
    answer = await ask(api, "GET", "/files/read", path="a.png")
    assert (answer.headers["Content-Type"], answer.body) == ("image/png", b"\x89PNG")


async def upload(api: Api, name: str, content: bytes, directory: str) -> Any:
    head = f'--B\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    answer = await api.ask(
        "POST",
        f"{PREFIX}/files/upload?directory={quote(directory)}",
        raw=head.encode() + content + b"\r\n--B--\r\n",
        token="run",
        headers={"X-Session-Id": "c1", "Content-Type": "multipart/form-data; boundary=B"},
    )
    assert answer.code == 200, answer.body
    return json.loads(answer.body)


async def test_file_browser(api: Api) -> None:
    assert (await upload(api, "a.bin", b"\xff", "/mnt/data/in"))["path"] == "/mnt/data/in/a.bin"
    assert (await ask(api, "GET", "/files/view", path="/mnt/data/in/a.bin")).body == b"\xff"
    assert (await ask(api, "GET", "/files/serve/mnt/data/in/a.bin")).body == b"\xff"
    await done(api, "POST", "/files/mkdir", {"path": "/mnt/data/empty"})
    names = [e["name"] for e in (await done(api, "GET", "/files/list"))["entries"]]
    assert names == ["empty", "in"]
    await done(api, "POST", "/files/move", {"source": "/mnt/data/in", "destination": "/mnt/data/out"})
    assert (await ask(api, "GET", "/files/view", path="out/a.bin")).body == b"\xff"
    assert (await done(api, "DELETE", "/files/delete", path="out"))["type"] == "directory"
    assert (await done(api, "DELETE", "/files/delete", path="empty"))["type"] == "directory"
    assert (await done(api, "GET", "/files/list"))["entries"] == []


async def test_working_folder_is_the_chats(api: Api) -> None:
    await write(api, "sub/a.txt", "1")
    assert (await done(api, "POST", "/files/cwd", {"path": "sub"}))["cwd"] == "/mnt/data/sub"
    assert (await done(api, "GET", "/files/read", path="a.txt"))["content"] == "1"
    assert (await done(api, "GET", "/files/cwd", chat="c2"))["cwd"] == "/mnt/data"
    assert (await ask(api, "POST", "/files/cwd", {"path": "/mnt/data/nowhere"})).code == 404


async def test_commands_go_on_in_the_background(api: Api) -> None:
    body = {"command": "ls", "cwd": "/mnt/data/a b", "env": {"N": "it's"}}
    started = await done(api, "POST", "/execute", body, wait="5")
    assert api.runs.requests[-1].background
    assert api.runs.requests[-1].code.endswith("cd -- 'a b' || exit\nexport N='it'\"'\"'s'\nls")
    assert (started["status"], started["exit_code"]) == ("done", 0)
    assert started["output"] == [{"type": "stdout", "data": "\u2028é"}]
    later = await done(api, "GET", f"/execute/{started['id']}/status", offset=str(started["next_offset"]))
    assert later["output"] == []
    (listed,) = await done(api, "GET", "/execute")
    assert listed["id"] == started["id"]
    assert await done(api, "DELETE", f"/execute/{started['id']}") == {"status": "killed"}
    assert (await ask(api, "GET", f"/execute/{started['id']}/status", chat="c2")).code == 404


async def test_python_runs_in_the_same_session(api: Api) -> None:
    await write(api, "a.txt", "1")
    await done(api, "POST", "/execute_python", {"code": "1"})
    assert len(api.sessions.live) == 1


async def test_notebook_cells_run_and_are_saved(api: Api) -> None:
    await write(api, "n.ipynb", json.dumps(NOTEBOOK))
    opened = await done(api, "POST", "/notebooks", {"path": "/mnt/data/n.ipynb"})
    assert (opened["kernel"], opened["status"]) == ("python3", "ready")
    path = f"/notebooks/{opened['id']}"
    assert (await done(api, "POST", f"{path}/execute", {"cell_index": 1}))["status"] == "ok"
    assert api.runs.requests[-1].code == "1 +\n1"
    await done(api, "POST", f"{path}/execute", {"cell_index": 1, "source": "2"})
    saved = json.loads((await done(api, "GET", "/files/read", path="n.ipynb"))["content"])
    assert saved["cells"][1]["source"] == "2"
    assert saved["cells"][0] == NOTEBOOK["cells"][0]  # type: ignore[index]
    for index in (0, 2, -1, "1", True):
        assert (await ask(api, "POST", f"{path}/execute", {"cell_index": index})).code == 400
    assert (await done(api, "GET", path))["status"] == "ready"
    assert (await ask(api, "GET", path, chat="c2")).code == 404
    assert await done(api, "DELETE", path) == {"status": "stopped"}
    assert (await ask(api, "GET", path)).code == 404


@pytest.mark.parametrize(
    ("call", "query", "code"),
    [
        (("GET", "/files/read", None), {"path": "/etc/passwd"}, 400),
        (("GET", "/files/read", None), {"path": "../x"}, 400),
        (("GET", "/files/read", None), {"path": "x"}, 404),
        (("GET", "/files/read", None), {}, 400),
        (("GET", "/files/list", None), {"directory": "nowhere"}, 404),
        (("POST", "/files/write", {"path": "/tmp/x", "content": ""}), {}, 400),
        (("POST", "/files/write", {"path": "x", "content": "a" * 1001}), {}, 413),
        (("POST", "/files/replace", {"path": "x", "replacements": 1}), {}, 400),
        (("POST", "/execute", {}), {}, 400),
        (("POST", "/execute", {"command": "ls", "env": {"A;B": "1"}}), {}, 400),
        (("POST", "/execute", {"command": "ls"}), {"wait": "x"}, 400),
        (("GET", "/execute/nonsense/status", None), {}, 404),
        (("GET", "/files/grep", None), {"query": "x", "max_results": "9999"}, 400),
        (("POST", "/notebooks", {"path": "x"}), {}, 404),
    ],
)
async def test_errors_are_sentences(
    api: Api, call: tuple[Any, ...], query: dict[str, str], code: int
) -> None:
    answer = await ask(api, *call, **query)
    assert answer.code == code
    assert json.loads(answer.body)["detail"].endswith(".")


def test_replacements_are_exact() -> None:
    text = "a\nb\na\n"
    assert replaced(text, {"target": "a", "replacement": "c", "start_line": 2}) == "a\nb\nc\n"
    assert replaced(text, {"target": "a", "replacement": "c", "allow_multiple": True}) == "c\nb\nc\n"
    for change in ({"target": "a"}, {"target": ""}, {"target": "x"}, {"target": "b", "start_line": 3}):
        with pytest.raises(InvalidRequestError):
            replaced(text, {"replacement": "c", **change})


async def test_the_home_folder_itself_is_not_deleted(api: Api) -> None:
    await write(api, "a.txt", "x")
    answer = await ask(api, "DELETE", "/files/delete", path="/mnt/data")
    assert answer.code == 400
    assert (await done(api, "GET", "/files/read", path="a.txt"))["content"] == "x"


async def test_what_is_not_served_is_an_error_of_its_form(api: Api) -> None:
    for method in ("GET", "POST"):
        answer = await ask(api, method, "/nothing/here", {} if method == "POST" else None)
        assert (answer.code, list(json.loads(answer.body))) == (404, ["detail"])
