"""Files between clients and the code of real kernels, also large ones."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import httpx
import psutil
from service_process import ServiceProcess

MIB = 1024**2


def test_code_reads_uploads_and_clients_read_results(
    api: httpx.Client, session_id: str, run: Callable[..., dict]
) -> None:
    base = f"/v1/sessions/{session_id}/files"
    assert api.put(f"{base}/data/été.csv", content=b"a,b\n1,2\n").status_code == 201
    assert api.post(base, files={"file": ("notes.txt", b"hello")}).json()["path"] == "notes.txt"
    made = run(
        "text = open('data/été.csv').read() + open('notes.txt').read()\nopen('out.txt', 'w').write(text);"
    )
    assert [(f["path"], f["change"]) for f in made["files"]] == [("out.txt", "created")]
    file = made["files"][0]
    assert file["url"] == f"{base}/out.txt"
    assert api.get(file["url"]).text == "a,b\n1,2\nhello"
    assert [f["path"] for f in api.get(base).json()["data"]] == ["data/été.csv", "notes.txt", "out.txt"]


def test_code_may_change_and_delete_what_was_uploaded(
    api: httpx.Client, session_id: str, run: Callable[..., dict]
) -> None:
    base = f"/v1/sessions/{session_id}/files"
    for name in ("changed", "deleted", "d/inner", "kept"):
        api.put(f"{base}/{name}", content=b"x")
    made = run(
        "import os, shutil\nopen('changed', 'a').write('y')\nos.remove('deleted')\nshutil.rmtree('d')\nNone"
    )
    assert made["status"] == "ok", made["error"]
    assert [(f["path"], f["change"]) for f in made["files"]] == [
        ("changed", "modified"), ("d/inner", "deleted"), ("deleted", "deleted"),
    ]  # fmt: skip
    assert run("1")["files"] == []


def test_links_that_code_makes_do_not_lead_out(
    api: httpx.Client, session_id: str, run: Callable[..., dict]
) -> None:
    base = f"/v1/sessions/{session_id}/files"
    made = run(
        "import os\nos.symlink('/etc/passwd', 'p')\nos.symlink('/etc', 'e')\nos.symlink('../..', 'up')"
    )
    assert made["files"] == []
    for path in ("p", "e/passwd", "up/store.sqlite"):
        for method in ("GET", "PUT", "DELETE"):
            assert api.request(method, f"{base}/{path}", content=b"x").status_code == 400
    assert api.get(base).json()["data"] == []


def test_files_stay_when_the_kernel_restarts_and_go_with_the_session(
    service: ServiceProcess, api: httpx.Client, session_id: str
) -> None:
    base = f"/v1/sessions/{session_id}/files"
    api.put(f"{base}/a", content=b"x")
    assert api.post(f"/v1/sessions/{session_id}/restart").status_code == 200
    assert api.get(f"{base}/a").content == b"x"
    assert api.delete(f"/v1/sessions/{session_id}").status_code == 204
    assert api.get(f"{base}/a").json()["error"]["code"] == "session_deleted"
    assert session_id not in os.listdir(service.state_dir / "workspaces")


class Peak:
    """The most memory that the service takes while something happens, in bytes above the beginning."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._process.memory_info().rss
        self.growth = 0

    def look(self) -> None:
        self.growth = max(self.growth, self._process.memory_info().rss - self._before)


def test_large_files_take_little_memory(service: ServiceProcess, api: httpx.Client, session_id: str) -> None:
    size, block = 256 * MIB, os.urandom(MIB)
    url = f"/v1/sessions/{session_id}/files/large.bin"
    peak = Peak(service.process.pid)

    def blocks() -> Iterator[bytes]:
        for _ in range(size // MIB):
            yield block
            peak.look()

    answer = api.put(url, content=blocks())
    assert (answer.status_code, answer.json()["size"]) == (201, size)
    received = 0
    with api.stream("GET", url) as got:
        assert got.headers["Content-Length"] == str(size)
        for chunk in got.iter_raw(MIB):
            received += len(chunk)
            peak.look()
    assert received == size
    part = api.get(url, headers={"Range": f"bytes={size - MIB}-"})
    assert part.status_code == 206
    assert part.content == block
    assert peak.growth < 64 * MIB
    api.delete(url)


class Zeros:
    """A large file to send, made as it is read."""

    def __init__(self, size: int, look: Callable[[], None]) -> None:
        self._left, self._look = size, look

    def read(self, size: int) -> bytes:
        self._look()
        size = min(size, self._left)
        self._left -= size
        return bytes(size)


def test_large_forms_take_little_memory(service: ServiceProcess, api: httpx.Client, session_id: str) -> None:
    peak = Peak(service.process.pid)
    base = f"/v1/sessions/{session_id}/files"
    parts = [("file", (name, Zeros(64 * MIB, peak.look))) for name in ("a", "b")]
    answer = api.post(base, files=parts)
    assert [file["size"] for file in answer.json()["data"]] == [64 * MIB] * 2
    assert peak.growth < 64 * MIB


def test_a_reader_that_stops_reading_costs_no_memory(
    service: ServiceProcess, api: httpx.Client, session_id: str, run: Callable[..., dict]
) -> None:
    run(f"with open('large', 'wb') as file:\n    file.truncate({256 * MIB})")
    peak = Peak(service.process.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            got = stack.enter_context(api.stream("GET", f"/v1/sessions/{session_id}/files/large"))
            next(got.iter_raw(1024))
        for _ in range(20):  # requests that are answered meanwhile
            assert api.get(f"/v1/sessions/{session_id}/files").status_code == 200
            peak.look()
    assert peak.growth < 64 * MIB


def test_other_requests_are_answered_during_an_upload(api: httpx.Client, session_id: str) -> None:
    slowest = 0.0

    def blocks() -> Iterator[bytes]:
        nonlocal slowest
        for _ in range(64):
            yield b"x" * MIB
            begin = time.monotonic()
            assert api.get("/healthz").status_code == 200
            slowest = max(slowest, time.monotonic() - begin)

    url = f"/v1/sessions/{session_id}/files/large.bin"
    assert api.put(url, content=blocks()).status_code == 201
    assert slowest < 30
