"""Reading files of a session over HTTP: types, ranges, conditions, and content that can not run."""

import os
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from fakes import Api
from files_kit import FilesClient

from interpreter.api.files import content_disposition


@pytest.mark.parametrize(
    ("name", "kind", "how"),
    [
        ("a.html", "text/html; charset=utf-8", "attachment"),
        ("a.svg", "image/svg+xml", "attachment"),
        ("a.png", "image/png", "inline"),
        ("a.txt", "text/plain; charset=utf-8", "inline"),
        ("a.csv", "text/csv; charset=utf-8", "attachment"),
        ("a.parquet", "application/vnd.apache.parquet", "attachment"),
        ("a.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "attachment"),
        ("a.ipynb", "application/x-ipynb+json", "attachment"),
        ("a.tar.gz", "application/gzip", "attachment"),
        ("data:a,b", "application/octet-stream", "attachment"),
    ],
)
async def test_content_has_its_type_and_can_not_run(
    client: FilesClient, name: str, kind: str, how: str
) -> None:
    await client.put(f"/{quote(name)}", content=b"<script>alert(1)</script>")
    got = await client.get(f"/{quote(name)}")
    assert got.headers["Content-Type"] == kind
    assert got.headers["Content-Disposition"].startswith(f"{how}; filename=")
    policy = got.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox; default-src 'none';")
    assert "script" not in policy
    assert got.headers["X-Content-Type-Options"] == "nosniff"


def test_names_of_downloads_are_plain_and_utf8() -> None:
    assert content_disposition('d/é"\\\r\n%.txt', "text/csv") == (
        "attachment; filename=\"______.txt\"; filename*=UTF-8''%C3%A9%22%5C%0D%0A%25.txt"
    )


@pytest.mark.parametrize(
    ("wanted", "status", "content", "content_range"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("bytes=4-2", 200, b"0123456789", None),
        ("lines=0-1", 200, b"0123456789", None),
        ("bytes=x-y", 200, b"0123456789", None),
    ],
)
async def test_ranges(
    client: FilesClient, wanted: str, status: int, content: bytes | None, content_range: str | None
) -> None:
    await client.put("/n", content=b"0123456789")
    got = await client.get("/n", headers={"Range": wanted})
    assert got.status_code == status
    assert got.headers.get("Content-Range") == content_range
    assert got.headers["Accept-Ranges"] == "bytes"
    if content is None:
        assert got.json()["error"]["type"] == "range_not_satisfiable"
    else:
        assert got.content == content


async def test_what_the_client_has_is_not_sent_again(client: FilesClient) -> None:
    await client.put("/n", content=b"0123456789")
    first = await client.get("/n")
    etag, date = first.headers["ETag"], first.headers["Last-Modified"]
    for known in ({"If-None-Match": etag}, {"If-None-Match": f'"x", W/{etag}'}, {"If-Modified-Since": date}):
        again = await client.get("/n", headers=known)
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", etag)
    some = {"Range": "bytes=0-1"}
    assert (await client.get("/n", headers={**some, "If-Range": etag})).status_code == 206
    assert (await client.get("/n", headers={**some, "If-Range": '"old"'})).status_code == 200
    await client.put("/n", content=b"9876543210")
    assert (await client.get("/n", headers={"If-None-Match": etag})).status_code == 200
    assert (await client.get("/n", headers={**some, "If-Range": etag})).status_code == 200


async def test_head_is_get_without_the_content(client: FilesClient) -> None:
    await client.put("/n.txt", content=b"0123456789")
    get, head = await client.get("/n.txt"), await client.head("/n.txt")
    assert (head.status_code, head.content) == (200, b"")
    differing = {"date", "x-request-id"}
    assert {k: v for k, v in head.headers.items() if k not in differing} == {
        k: v for k, v in get.headers.items() if k not in differing
    }
    assert (await client.head("/none")).status_code == 404


async def test_a_file_that_shrinks_while_it_is_sent_breaks_the_connection(
    api: Api, session_id: str, folder: Path
) -> None:
    size = 64 * 1024**2  # more than sockets hold
    (folder / "big").touch()
    os.truncate(folder / "big", size)
    url = f"{api.url}/v1/sessions/{session_id}/files/big"
    headers = {"Authorization": f"Bearer {api.secrets['admin']}"}
    received = 0

    async def read(got: httpx.Response) -> None:
        nonlocal received
        async for chunk in got.aiter_raw(65536):
            if not received:
                os.truncate(folder / "big", 0)
            received += len(chunk)

    async with (
        httpx.AsyncClient(trust_env=False) as client,
        client.stream("GET", url, headers=headers) as got,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await read(got)
    assert received < size
