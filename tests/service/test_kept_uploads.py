"""What LibreChat's and Onyx' front ends keep for a token is bounded on the disk, and in memory nothing is kept."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Api
from tornado.httpclient import HTTPResponse

from interpreter.models import FileChange, RunStatus
from interpreter.workspace import Workspaces

LIMIT = 3000
PLENTY = b"x" * 900
SKILL = {"kind": "skill", "id": "s", "version": "1"}


async def start(folder: Path, **settings: Any) -> Api:
    """The service; again, if it was there before."""
    return await Api.start(
        folder, **{"state_dir": str(folder / "state"), "max_workspace_bytes": LIMIT, **settings}
    )


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    running = await start(tmp_path)
    yield running
    await running.aclose()


async def upload(
    api: Api, path: str, content: bytes = PLENTY, *, token: str = "run", **fields: str
) -> HTTPResponse:
    parts = [f'--B\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in fields.items()]
    parts.append('--B\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n')
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    body = "".join(parts).encode() + content + b"\r\n--B--\r\n"
    return await api.ask("POST", path, raw=body, token=token, headers=headers)


def check_refused(answer: HTTPResponse, key: str) -> None:
    assert answer.code == 413, answer.body
    assert "max_kept_file_bytes (3000)" in json.loads(answer.body)[key]


async def fill(api: Api) -> str:
    """Three files, each by another way; the id of Onyx'."""
    assert (await upload(api, "/librechat/upload")).code == 200
    assert (await upload(api, "/librechat/upload", **SKILL)).code == 200
    return str(json.loads((await upload(api, "/onyx/v1/files")).body)["file_id"])


async def test_the_uploads_of_a_token_are_bounded_together(api: Api) -> None:
    file_id = await fill(api)
    check_refused(await upload(api, "/librechat/upload"), "error")
    check_refused(await upload(api, "/librechat/upload", kind="agent", id="another"), "error")
    check_refused(await upload(api, "/onyx/v1/files"), "detail")
    batch = await upload(api, "/librechat/upload/batch")
    assert "max_kept_file_bytes" in json.loads(batch.body)["files"][0]["error"]
    assert (await upload(api, "/onyx/v1/files", token="admin")).code == 201
    assert (await api.ask("DELETE", f"/onyx/v1/files/{file_id}", token="run")).code == 204
    assert (await upload(api, "/librechat/upload")).code == 200


async def test_what_an_earlier_process_kept_counts(tmp_path: Path) -> None:
    api = await start(tmp_path)
    run = api.secrets["run"]
    await fill(api)
    await api.aclose()
    api = await start(tmp_path)
    api.secrets["run"] = run
    check_refused(await upload(api, "/librechat/upload"), "error")
    check_refused(await upload(api, "/onyx/v1/files"), "detail")
    await api.aclose()
    api = await start(tmp_path, max_kept_file_bytes=2 * LIMIT)
    api.secrets["run"] = run
    assert (await upload(api, "/librechat/upload")).code == 200
    await api.aclose()


async def test_a_front_end_leaves_the_uploads_of_another_alone(api: Api, tmp_path: Path) -> None:
    part_head = '--B\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
    body = part_head.encode() + PLENTY + b"\r\n--B--\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(
        f"POST /librechat/upload HTTP/1.1\r\nHost: x\r\nX-API-Key: {api.secrets['run']}\r\n"
        f"Content-Type: multipart/form-data; boundary=B\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body[:500]
    )
    while not list((tmp_path / "state").rglob(".uploads/*")):
        await asyncio.sleep(0)
    assert (await upload(api, "/onyx/v1/files")).code == 201
    writer.write(body[500:])
    assert (await reader.readline()).split()[1] == b"200"
    writer.close()


@pytest.mark.parametrize("path", ["/onyx/v1/execute", "/onyx/v1/execute/stream"])
async def test_code_whose_files_find_no_room_has_its_output_all_the_same(api: Api, path: str) -> None:
    await fill(api)
    asking = asyncio.ensure_future(api.ask("POST", path, {"code": "wait"}, token="run"))
    await api.runs.submitted.wait()
    [active] = api.runs.active.values()
    (api.sessions.workspaces.root / active.run.session_id / "plot.png").write_bytes(PLENTY)
    active.run = replace(active.run, files=(FileChange("plot.png", len(PLENTY), "image/png", "created", ""),))
    active.finish(RunStatus.OK)
    answer = (await asking).body.decode()
    assert "plot.png was not kept: The files that are kept here" in answer
    assert '"exit_code":0' in answer.replace(" ", "")


async def test_nothing_is_remembered_of_owners_that_a_client_invents(api: Api) -> None:
    def count() -> int:
        gc.collect()
        return sum(isinstance(found, Workspaces) for found in gc.get_objects())

    made = json.loads((await upload(api, "/librechat/upload", **SKILL)).body)["session_id"]
    before = count()
    for number in range(20):
        query = f"kind=skill&id={number}&version=1"
        assert (await api.ask("GET", f"/librechat/files/{made}?{query}", token="run")).code == 404
        assert (await upload(api, "/librechat/upload", b"1", kind="agent", id=str(number))).code == 200
    assert count() == before
    found = await api.ask("GET", f"/librechat/files/{made}?kind=skill&id=s&version=1", token="run")
    assert len(json.loads(found.body)) == 1
