"""The one interface to a session's files: the same claims on a shared disk and through a kernel."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from interpreter.errors import InvalidRequestError, NotFoundError, TooLargeError, UnavailableError
from interpreter.kernel_files import CHUNK_BYTES, KernelWorkspaces
from interpreter.models import SessionInfo, new_id
from interpreter.workspace import UNKNOWN, Files, Upload, Workspaces, changes

INFO = SessionInfo(
    id=new_id(),
    owner_id="o",
    owner_name="o",
    kernel_name="python3",
    language="python",
    created_at=datetime(2031, 1, 1, tzinfo=UTC),
    timeout=1.0,
    idle_timeout=1.0,
)


@dataclass
class InProcessKernel:
    """Evaluates expressions here, as a kernel does there."""

    dead: bool = False
    answers: list[Mapping[str, Any]] = field(default_factory=list)
    """What it says next, instead of the truth."""
    asked: int = 0

    async def evaluate(self, code: str, expressions: Mapping[str, str]) -> Mapping[str, Any]:
        assert code == ""
        self.asked += 1
        if self.answers:
            return self.answers.pop(0)
        (name, expression), *none = expressions.items()
        assert not none
        try:
            value = {"status": "ok", "data": {"text/plain": repr(eval(expression, {}))}}
        except Exception as error:  # noqa: BLE001 - as a kernel does
            value = {"status": "error", "ename": type(error).__name__}
        return {"status": "ok", "user_expressions": {name: value}}


@dataclass
class FakeSession:
    info: SessionInfo
    kernel: InProcessKernel | None

    @property
    def id(self) -> str:
        return self.info.id


@dataclass
class Place:
    """One implementation, and where its files really lie."""

    workspaces: Any
    session: FakeSession
    folder: Path
    uploads: Path

    @property
    def files(self) -> Files:
        found: Files = self.workspaces.files(self.session)
        return found

    async def begin(self) -> Upload:
        begun: Upload = await self.workspaces.begin_upload(self.session)
        return begun

    async def upload(self, path: str, content: bytes) -> None:
        one = await self.begin()
        try:
            await one.replace(path)
            await one.write(content)
            await one.commit(path)
        finally:
            one.discard()

    @property
    def left_behind(self) -> list[str]:
        beside = [n for n in os.listdir(self.folder.parent) if n.startswith(f"{self.folder.name}.")]
        return os.listdir(self.uploads) + beside


@pytest.fixture
def kernel_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    local = Workspaces(tmp_path / "workspaces", max_file_bytes=2_000_000, max_workspace_bytes=3_000_000)
    local.prepare()
    session = FakeSession(INFO, InProcessKernel())
    folder = tmp_path / f"interpreter-{session.id}"
    folder.mkdir()
    yield Place(KernelWorkspaces(local.uploads), session, folder, tmp_path / "workspaces" / ".uploads")
    for name in ("_interpreter_agent", "_interpreter_folder"):
        sys.modules.pop(name, None)


@pytest.fixture(params=["shared disk", "through the kernel"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "through the kernel":
        found: Place = request.getfixturevalue("kernel_place")
        return found
    workspaces = Workspaces(tmp_path / "workspaces", max_file_bytes=2_000_000, max_workspace_bytes=3_000_000)
    workspaces.prepare()
    session = FakeSession(INFO, None)
    return Place(workspaces, session, workspaces.create(session.id), tmp_path / "workspaces" / ".uploads")


async def read_all(files: Files, path: str) -> bytes:
    file = await files.open(path)
    content = b""
    try:
        while chunk := await file.read(len(content), 1024**2):
            content += chunk
        assert len(content) == file.info.size
    finally:
        await file.aclose()
    return content


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
async def test_what_is_uploaded_is_there(place: Place, size: int) -> None:
    content = os.urandom(size)
    await place.upload("d/é 世\n.bin", content)
    assert (place.folder / "d" / "é 世\n.bin").read_bytes() == content
    assert await read_all(place.files, "d/é 世\n.bin") == content
    assert (await place.files.used_bytes()) == size
    assert place.left_behind == []


async def test_files_are_listed_by_path(place: Place) -> None:
    for path in ("b", "a/y", "a/x", ".hidden/z"):
        await place.upload(path, b"12")
    (place.folder / "link").symlink_to("b")
    listing = await place.files.list(limit=2)
    assert ([f.path for f in listing.files], listing.has_more) == (["a/x", "a/y"], True)
    listing = await place.files.list(limit=2, after="a/y")
    assert ([f.path for f in listing.files], listing.has_more) == (["b"], False)
    listing = await place.files.list(limit=1, descending=True)
    assert ([(f.path, f.size) for f in listing.files], listing.has_more) == ([("b", 2)], True)


async def test_deleting_takes_files_and_empty_folders(place: Place) -> None:
    await place.upload("d/a", b"x")
    with pytest.raises(InvalidRequestError, match="not empty"):
        await place.files.delete("d")
    await place.files.delete("d/a")
    await place.files.delete("d")
    assert os.listdir(place.folder) == []
    with pytest.raises(NotFoundError):
        await place.files.delete("d")


@pytest.mark.parametrize("path", ["out", "outdir/x", "loop", "../x", "/etc/passwd", "pipe", "d"])
async def test_nothing_but_files_below_is_reached(place: Place, path: str) -> None:
    (place.folder.parent / "x").write_text("secret")
    (place.folder / "out").symlink_to("../x")
    (place.folder / "outdir").symlink_to("..")
    (place.folder / "loop").symlink_to("loop")
    os.mkfifo(place.folder / "pipe")
    (place.folder / "d" / "e").mkdir(parents=True)
    with pytest.raises(InvalidRequestError) as raised:
        await place.files.open(path)
    assert raised.value.param == "path"
    with pytest.raises(InvalidRequestError):
        await place.upload(path, b"x")
    assert (place.folder.parent / "x").read_text() == "secret"
    assert place.left_behind == []


async def test_what_is_not_there_is_not_found(place: Place) -> None:
    await place.upload("f", b"x")
    for path in ("none", "none/x", "f/x"):
        with pytest.raises(NotFoundError):
            await place.files.open(path)
    assert await place.files.find("none") is None
    with pytest.raises(InvalidRequestError):
        await place.upload("f/x", b"x")


async def test_limits_leave_nothing(place: Place) -> None:
    with pytest.raises(TooLargeError, match="max_file_bytes"):
        await place.upload("a", b"x" * 2_000_001)
    await place.upload("a", b"x" * 2_000_000)
    with pytest.raises(TooLargeError, match="max_workspace_bytes"):
        await place.upload("b", b"x" * 1_000_001)
    await place.upload("a", b"y" * 2_000_000)
    assert os.listdir(place.folder) == ["a"]
    assert place.left_behind == []


async def test_snapshots_tell_changes(place: Place) -> None:
    await place.upload("kept", b"x")
    await place.upload("gone", b"x")
    before = await place.files.snapshot()
    (place.folder / "made").write_text("abc")
    (place.folder / "gone").unlink()
    found = changes(INFO.id, before, await place.files.snapshot())
    assert [(f.path, f.change, f.size) for f in found] == [("gone", "deleted", 0), ("made", "created", 3)]
    assert changes(INFO.id, UNKNOWN, before) == changes(INFO.id, before, UNKNOWN) == ()


# -- through the kernel only --------------------------------------------------------------------


async def test_the_kernel_works_in_its_folder_from_the_first_look_on(kernel_place: Place) -> None:
    kernel_place.folder.rmdir()
    await kernel_place.files.snapshot()
    assert os.getcwd() == str(kernel_place.folder)


async def test_without_a_kernel_there_are_no_files_now(kernel_place: Place) -> None:
    for kernel in (None, InProcessKernel(dead=True)):
        kernel_place.session.kernel = kernel
        with pytest.raises(UnavailableError):
            await kernel_place.files.list(limit=1)
        assert await kernel_place.files.snapshot() == UNKNOWN


async def test_kernels_of_other_languages_need_a_shared_disk(kernel_place: Place) -> None:
    kernel_place.session.info = replace(INFO, language="R")
    with pytest.raises(UnavailableError, match="gateway_workspace_path"):
        await kernel_place.begin()


def answer(text: str) -> Mapping[str, Any]:
    value = {"status": "ok", "data": {"text/plain": text}}
    return {"status": "ok", "user_expressions": {"answer": value}}


@pytest.mark.parametrize(
    "forged",
    [
        {"status": "error"}, {"status": "ok", "user_expressions": {"answer": {"status": "error"}}},
        answer("__import__('os').system('true')"), answer("'no json'"), answer("'{}'"), answer("17"),
        answer("'[1]'"), answer("('" + "[" * 100_000 + "')"), answer("'{\"value\": [[[\"../x\", 1, 1, 1, 1]], false]}'"),
        answer("'{\"value\": [[[\"x\", -1, 1, 1, 1]], false]}'"), answer("'{\"value\": null}'"),
        answer("'{\"error\": 5, \"errno\": \"x\"}'"),
    ],
)  # fmt: skip
async def test_forged_answers_are_no_answers(kernel_place: Place, forged: Mapping[str, Any]) -> None:
    kernel = kernel_place.session.kernel
    assert kernel is not None
    kernel.answers = [forged] * 3
    with pytest.raises(UnavailableError):
        await kernel_place.files.list(limit=10)


async def test_a_request_that_a_failing_run_took_along_is_repeated(kernel_place: Place) -> None:
    kernel = kernel_place.session.kernel
    assert kernel is not None
    await kernel_place.upload("a", b"x")
    kernel.answers = [{"status": "aborted"}]
    assert await read_all(kernel_place.files, "a") == b"x"


async def test_a_file_that_changes_while_it_is_read_ends(kernel_place: Place) -> None:
    await kernel_place.upload("a", b"x" * (CHUNK_BYTES + 1))
    file = await kernel_place.files.open("a")
    assert len(await file.read(0, CHUNK_BYTES)) == CHUNK_BYTES
    await kernel_place.upload("a", b"y" * (CHUNK_BYTES + 1))
    assert await file.read(CHUNK_BYTES, 1) == b""
    await file.aclose()


async def test_the_folder_goes_with_the_session(kernel_place: Place) -> None:
    await kernel_place.upload("a", b"x")
    await kernel_place.workspaces.session_ends(kernel_place.session, "shutdown")
    assert kernel_place.folder.exists()
    await kernel_place.workspaces.session_ends(kernel_place.session, "deleted")
    assert not kernel_place.folder.exists()
