"""Files of a session over HTTP: uploads, downloads, lists, and what must be refused."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fakes import Api, error_of
from files_kit import FilesClient

LIMITS = {"max_file_bytes": 100_000, "max_workspace_bytes": 250_000}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    api = await Api.start(tmp_path, **LIMITS)
    yield api
    await api.aclose()


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def uploads_left(tmp_path: Path) -> list[str]:
    return os.listdir(tmp_path / "workspaces" / ".uploads")


async def ask(api: Api, session_id: str, method: str, path: str, **options: Any) -> Any:
    """One request whose path is sent as it is: other clients clean it up."""
    return await api.ask(method, f"/v1/sessions/{session_id}/files{path}", **options)


@pytest.mark.parametrize(
    "name",
    [
        "a.txt",
        "deep/er/a.csv",
        "été 世界.txt",
        "e\u0301.txt",
        ".env",
        ".hidden/x",
        "a b%20?#&+;=.bin",
        "x\ny",
    ],
)
async def test_what_is_put_is_got(client: FilesClient, session_id: str, name: str) -> None:
    url = f"/{quote(name)}"
    put = await client.put(url, content=b"content")
    assert put.status_code == 201
    body = put.json()
    assert (body["path"], body["size"], body["url"]) == (name, 7, f"/v1/sessions/{session_id}/files{url}")
    assert put.headers["Location"] == body["url"]
    got = await client.get(url)
    assert (got.status_code, got.content) == (200, b"content")
    assert (await client.delete(url)).status_code == 204
    assert (await client.get(url)).status_code == 404


async def test_an_encoded_slash_is_a_slash(client: FilesClient, folder: Path) -> None:
    assert (await client.put("/a%2Fb.txt", content=b"x")).json()["path"] == "a/b.txt"
    assert (folder / "a" / "b.txt").read_bytes() == b"x"


async def test_an_empty_file_is_a_file(client: FilesClient) -> None:
    assert (await client.put("/empty")).json()["size"] == 0
    got = await client.get("/empty")
    assert (got.content, got.headers["Content-Length"]) == (b"", "0")


async def test_put_replaces(client: FilesClient, folder: Path, tmp_path: Path) -> None:
    await client.put("/a", content=b"first, longer")
    await client.put("/a", content=b"second")
    assert (folder / "a").read_bytes() == b"second"
    assert uploads_left(tmp_path) == []


async def test_one_file_of_a_form_is_answered_by_itself(client: FilesClient, folder: Path) -> None:
    answer = await client.post("", files={"anything": ("tàble.csv", b"a,b\n1,2\n")})
    assert answer.status_code == 201
    assert (answer.json()["path"], answer.json()["mime_type"]) == ("tàble.csv", "text/csv")
    assert (folder / "tàble.csv").read_bytes() == b"a,b\n1,2\n"


async def test_several_files_of_a_form_are_answered_as_a_list(client: FilesClient) -> None:
    parts = [("file", ("a.txt", b"1")), ("file", ("b/c.txt", b"22")), ("x", ("d", b""))]
    answer = await client.post("", files=parts)
    assert answer.status_code == 201
    assert [(f["path"], f["size"]) for f in answer.json()["data"]] == [("a.txt", 1), ("b/c.txt", 2), ("d", 0)]


@pytest.mark.parametrize(
    ("path", "names", "paths"),
    [
        ("in", ["a"], ["in"]),
        ("in/", ["a"], ["in/a"]),
        ("in", ["a", "b"], ["in/a", "in/b"]),
        ("in/deep/", ["a", "b"], ["in/deep/a", "in/deep/b"]),
    ],
)
async def test_a_form_may_say_where(
    client: FilesClient, folder: Path, path: str, names: list[str], paths: list[str]
) -> None:
    files = [("f", (name, b"x")) for name in names]
    assert (await client.post("", data={"path": path, "other": "x"}, files=files)).status_code == 201
    assert all((folder / name).is_file() for name in paths)


async def test_names_in_the_extended_form_are_read(client: FilesClient) -> None:
    body = b"--B\r\nContent-Disposition: form-data; name=\"f\"; filename*=utf-8''%C3%A9.txt\r\n\r\nx\r\n--B--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    assert (await client.post("", content=body, headers=headers)).json()["path"] == "é.txt"


PART = b'--B\r\nContent-Disposition: form-data; name="f"; filename="%b"\r\n\r\n%b\r\n'


@pytest.mark.parametrize(
    ("body", "kind", "status", "param"),
    [
        (PART % (b"a", b"x"), "multipart/form-data; boundary=B", 400, None),
        (PART % (b"a", b"x") + b"--B--\r\n", "multipart/form-data", 400, None),
        (b"nonsense", "multipart/form-data; boundary=B", 400, None),
        (b"", "multipart/form-data; boundary=B", 400, None),
        (b"--B--\r\n", "multipart/form-data; boundary=B", 400, "file"),
        (PART % (b"../a", b"x") + b"--B--\r\n", "multipart/form-data; boundary=B", 400, "path"),
        (PART % (b"/a", b"x") + b"--B--\r\n", "multipart/form-data; boundary=B", 400, "path"),
        (PART % (b"", b"") + b"--B--\r\n", "multipart/form-data; boundary=B", 400, "file"),
        (PART % (b"\xff", b"") + b"--B--\r\n", "multipart/form-data; boundary=B", 400, "filename"),
        (PART % (b"a", b"x") * 2 + b"--B--\r\n", "multipart/form-data; boundary=B", 400, "path"),
        (PART % (b"a", b"x") * 1001 + b"--B--\r\n", "multipart/form-data; boundary=B", 400, "file"),
        (b"{}", "application/json", 415, None),
        (b"x", "", 415, None),
    ],
)
async def test_a_form_that_is_wrong_leaves_nothing(  # noqa: PLR0917 - fixtures
    api: Api, session_id: str, folder: Path, tmp_path: Path,
    body: bytes, kind: str, status: int, param: str | None,
) -> None:  # fmt: skip
    answer = await ask(api, session_id, "POST", "", raw=body, headers={"Content-Type": kind})
    assert answer.code == status, answer.body
    assert error_of(answer)["param"] == param
    assert (everything_below(folder), uploads_left(tmp_path)) == ([], [])


BAD_PATHS = [
    "/", "/..", "/../x", "/a/../x", "/a/../../x", "/%2e%2e/x", "/..%2fx", "/a/..", "//etc/passwd", "/%2Fetc/passwd",
    "/a//b", "/a/", "/.", "/./a", "/a/./b", "/..%5Cx", "/a%5Cb", "/a%00b", "/" + "a" * 256, "/" + "a/" * 64 + "a",
    "/" + "/".join(["a" * 250] * 5), "/%ff",
]  # fmt: skip


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE", "HEAD"])
async def test_paths_that_can_be_no_file_below_are_refused(
    api: Api, session_id: str, folder: Path, method: str
) -> None:
    for path in BAD_PATHS:
        answer = await ask(api, session_id, method, path, raw=b"x" if method == "PUT" else None)
        assert answer.code == 400, path
        if method != "HEAD":
            assert (error_of(answer)["type"], error_of(answer)["param"]) == ("invalid_request", "path")
    assert everything_below(folder) == []


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
async def test_links_do_not_lead_out(
    api: Api, session_id: str, folder: Path, tmp_path: Path, method: str
) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    for name, target in {
        "out": "../../secret.txt", "outdir": "../..", "up": "..", "loop": "loop", "chain": "out",
        "absolute": str(folder / "file"),
    }.items():  # fmt: skip
        (folder / name).symlink_to(target)
    for path in ("/out", "/outdir/secret.txt", "/up/x", "/loop", "/chain", "/absolute"):
        answer = await ask(api, session_id, method, path, raw=b"x" if method == "PUT" else None)
        assert answer.code == 400, path
        assert error_of(answer)["param"] == "path"
    assert (tmp_path / "secret.txt").read_text() == "secret"
    assert {name for name in os.listdir(tmp_path) if "." not in name} == {"workspaces"}


async def test_links_inside_are_followed(client: FilesClient, folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "a").write_text("a")
    (folder / "data" / "back").symlink_to("../latest")
    (folder / "latest").symlink_to("data/a")
    assert (await client.get("/data/back")).content == b"a"
    await client.put("/latest", content=b"new")
    assert (folder / "data" / "a").read_text() == "new"
    assert (await client.delete("/latest")).status_code == 204
    assert (folder / "data" / "a").exists()


async def test_pipes_and_sockets_are_no_files(client: FilesClient, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        here = os.getcwd()
        os.chdir(folder)  # a socket's path is short
        unix.bind("sock")
        os.chdir(here)
    for name in ("pipe", "sock"):
        assert (await client.get(f"/{name}")).json()["error"]["param"] == "path"
        assert (await client.put(f"/{name}", content=b"x")).status_code == 400
    assert (await client.get("")).json()["data"] == []
    assert (await client.delete("/pipe")).status_code == 204


async def test_folders_are_no_files(client: FilesClient, folder: Path) -> None:
    (folder / "d" / "e").mkdir(parents=True)
    assert (await client.get("/d")).status_code == 400
    assert (await client.put("/d", content=b"x")).status_code == 400
    assert (await client.delete("/d")).status_code == 400
    assert (await client.delete("/d/e")).status_code == 204
    await client.put("/f", content=b"x")
    assert (await client.put("/f/g", content=b"x")).status_code == 400
    assert (await client.get("/f/g")).status_code == 404
    assert everything_below(folder) == ["d", "f"]


async def test_over_the_limit_of_a_file_leaves_nothing(
    client: FilesClient, api: Api, folder: Path, tmp_path: Path
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 6000

    big = b"x" * 100_001
    answers = [
        await client.put("/d/a", content=big),
        await client.put("/d/a", content=chunks()),
        await client.post("", files={"f": ("d/a", big)}),
        await client.post("", files=[("f", ("ok", b"x")), ("f", ("a", big))]),
    ]
    for answer in answers:
        assert answer.status_code == 413
        assert answer.json()["error"]["type"] == "too_large"
        assert "max_file_bytes" in answer.json()["message"]
    assert (everything_below(folder), uploads_left(tmp_path)) == ([], [])
    assert (await client.put("/a", content=big[:-1])).status_code == 201


async def test_over_the_limit_of_the_session_leaves_nothing(
    client: FilesClient, folder: Path, tmp_path: Path
) -> None:
    for name in ("a", ".hidden/b"):
        assert (await client.put(f"/{name}", content=b"x" * 100_000)).status_code == 201
    answer = await client.put("/c", content=b"x" * 60_000)
    assert answer.status_code == 413
    assert "max_workspace_bytes" in answer.json()["message"]
    form = await client.post("", files=[("f", (f"f{n}", b"x" * 30_000)) for n in range(2)])
    assert form.status_code == 413
    assert (await client.post("", files={"f": ("x", b"x" * 260_000)})).status_code == 413
    assert (everything_below(folder), uploads_left(tmp_path)) == ([".hidden", ".hidden/b", "a"], [])
    assert (await client.put("/a", content=b"y" * 100_000)).status_code == 201, "it makes room for itself"
    assert (await client.put("/c", content=b"x" * 50_000)).status_code == 201


async def test_uploads_at_once_share_the_limit(client: FilesClient, folder: Path) -> None:
    answers = await asyncio.gather(*(client.put(f"/{n}", content=b"x" * 90_000) for n in range(6)))
    assert sorted(a.status_code for a in answers)[:2] == [201, 201]
    assert all(a.status_code in (201, 413) for a in answers)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LIMITS["max_workspace_bytes"]


@pytest.mark.parametrize("form", [False, True])
async def test_a_client_that_leaves_leaves_nothing(
    api: Api, session_id: str, folder: Path, tmp_path: Path, form: bool
) -> None:
    begin = PART.partition(b"\r\n\r\n")[0] % b"a" + b"\r\n\r\n" if form else b""
    kind = "multipart/form-data; boundary=B" if form else "text/plain"
    target = f"/v1/sessions/{session_id}/files" + ("" if form else "/a")
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(
        f"{'POST' if form else 'PUT'} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n"
        f"Content-Type: {kind}\r\nAuthorization: Bearer {api.secrets['admin']}\r\n\r\n".encode()
        + begin
        + b"x" * 10_000
    )
    await writer.drain()
    async with asyncio.timeout(60):
        while not uploads_left(tmp_path):
            await asyncio.to_thread(os.sched_yield)
        writer.transport.abort()
        while uploads_left(tmp_path):
            await asyncio.to_thread(os.sched_yield)
    assert everything_below(folder) == []
    del reader


async def test_the_list_is_cut_into_pages(client: FilesClient, folder: Path) -> None:
    for name in ("b", "a/z", "a/y", "c"):
        await client.put(f"/{name}", content=b"x")
    (folder / "link").symlink_to("b")
    (folder / os.fsdecode(b"\xff")).write_text("x")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_text("x")
    whole = (await client.get("")).json()
    assert [f["path"] for f in whole["data"]] == ["a/y", "a/z", "b", "c"]
    assert (whole["has_more"], whole["first_id"], whole["last_id"]) == (False, "a/y", "c")
    page = (await client.get("?limit=2&after=a/y")).json()
    assert ([f["path"] for f in page["data"]], page["has_more"]) == (["a/z", "b"], True)
    page = (await client.get("?limit=2&order=desc")).json()
    assert ([f["path"] for f in page["data"]], page["has_more"]) == (["c", "b"], True)
    empty = (await client.get("?after=zzz")).json()
    assert empty == {"data": [], "has_more": False, "first_id": None, "last_id": None}
    assert (await client.get("?limit=0")).status_code == 400


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST", "LIST"])
async def test_files_are_for_their_owner_only(api: Api, folder: Path, session_id: str, method: str) -> None:
    (folder / "a").write_text("mine")
    path = "" if method in ("LIST", "POST") else "/a"
    answer = await ask(
        api, session_id, "GET" if method == "LIST" else method, path, token="run",
        raw=b"x" if method in ("PUT", "POST") else None,
    )  # fmt: skip
    assert answer.code == 404
    assert (folder / "a").read_text() == "mine"


async def test_reviewers_write_nothing_and_strangers_see_nothing(api: Api, session_id: str) -> None:
    assert (await ask(api, session_id, "PUT", "/a", raw=b"x", token="review")).code == 403
    assert (await ask(api, session_id, "PUT", "/a", raw=b"x", token=None)).code == 401
    assert (await ask(api, session_id, "GET", "", token=None)).code == 401


async def test_sessions_that_are_gone_have_no_files(api: Api, session_id: str) -> None:
    await api.ask("DELETE", f"/v1/sessions/{session_id}")
    answer = await ask(api, session_id, "PUT", "/a", raw=b"x")
    assert (answer.code, error_of(answer)["code"]) == (404, "session_expired")
    assert (await ask(api, "x" * 21, "GET", "/a")).code == 404


async def test_a_form_is_in_place_as_a_whole_or_not_at_all(client: FilesClient, folder: Path) -> None:
    (folder / "d").mkdir()
    for second in ("d", "a/b", "a"):
        answer = await client.post("", files=[("f", ("a", b"1")), ("f", (second, b"2"))])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "path")
    assert everything_below(folder) == ["d"]


async def test_files_keep_a_session_in_use(api: Api, client: FilesClient, session_id: str) -> None:
    await client.put("/a", content=b"x")
    before = len(api.sessions.touched)
    await client.get("/a")
    assert api.sessions.touched[before:] == [session_id]


async def test_parts_of_a_file_are_not_put(client: FilesClient) -> None:
    answer = await client.put("/a", content=b"x", headers={"Content-Range": "bytes 0-0/2"})
    assert answer.status_code == 400


async def test_a_hopeless_upload_is_refused_before_it_is_sent(api: Api, session_id: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(
        f"PUT /v1/sessions/{session_id}/files/a HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n"
        f"Expect: 100-continue\r\nAuthorization: Bearer {api.secrets['admin']}\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_the_document_describes_uploads(api: Api) -> None:
    document = json.loads((await api.ask("GET", "/openapi.json")).body)
    paths = document["paths"]
    put = paths["/v1/sessions/{session_id}/files/{path}"]["put"]
    assert list(put["requestBody"]["content"]) == ["application/octet-stream"]
    post = paths["/v1/sessions/{session_id}/files"]["post"]
    assert list(post["requestBody"]["content"]) == ["multipart/form-data"]


async def test_a_path_that_is_not_utf_8_is_refused_when_the_body_was_read(api: Api) -> None:
    """A connection that is closed before may be reset, and the answer lost."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    secret = api.secrets["admin"]
    head = f"PUT /v1/sessions/x/files/%FF%FE HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
    for _ in range(2):  # on the same connection
        writer.write(f"{head}Content-Length: 5\r\n\r\n".encode())
        await writer.drain()
        writer.write(b"12345")
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert b"is not UTF-8" in await reader.readexactly(length)
    writer.close()
