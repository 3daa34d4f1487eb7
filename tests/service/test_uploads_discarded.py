"""What is left of a large upload that broke off goes without anybody waiting for the disk."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from interpreter.models import new_id
from interpreter.workspace import Upload, Workspaces

LARGE = 5 * 1024**2
PATIENCE = 60.0


class Owner:
    def __init__(self) -> None:
        self.id = new_id()


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    found = Workspaces(tmp_path / "workspaces")
    found.prepare()
    return found


async def begun(workspaces: Workspaces) -> Upload:
    owner = Owner()
    workspaces.create(owner.id)
    upload = await workspaces.begin_upload(owner)
    await upload.write(b"x" * LARGE)
    return upload


async def gone(workspaces: Workspaces) -> None:
    async with asyncio.timeout(PATIENCE):
        while os.listdir(workspaces.root / ".uploads"):
            await asyncio.sleep(0)


async def test_the_event_loop_does_not_wait_until_it_is_removed(
    workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await begun(workspaces)
    may_end, here, unlink = threading.Event(), threading.get_ident(), Path.unlink

    def slowly(path: Path, missing_ok: bool = False) -> None:
        assert threading.get_ident() != here, "the loop waits"
        assert may_end.wait(PATIENCE)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", slowly)
    upload.discard()
    upload.discard()
    may_end.set()
    await gone(workspaces)


async def test_a_write_that_is_under_way_is_not_what_frees_it(
    workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is one that others wait for."""
    upload = await begun(workspaces)
    opened, may_write, fdopen = threading.Event(), threading.Event(), os.fdopen
    unlinking, unlink, links = threading.Event(), Path.unlink, []

    class Slow:
        """A file that is written when the test says so."""

        def __init__(self, descriptor: int) -> None:
            self._file = fdopen(descriptor, "wb", buffering=0)

        def __enter__(self) -> "Slow":
            return self

        def __exit__(self, *_: object) -> None:
            links.append(os.fstat(self._file.fileno()).st_nlink)
            self._file.close()

        def write(self, data: memoryview) -> int:
            opened.set()
            assert may_write.wait(PATIENCE)
            return self._file.write(data) or 0

    def note(path: Path, missing_ok: bool = False) -> None:
        unlinking.set()
        unlink(path, missing_ok)

    monkeypatch.setattr(os, "fdopen", lambda descriptor, *_, **__: Slow(descriptor))
    monkeypatch.setattr(Path, "unlink", note)
    writing = asyncio.ensure_future(upload.write(b"x" * LARGE))
    await asyncio.to_thread(opened.wait, PATIENCE)
    writing.cancel()
    await asyncio.wait({writing})
    upload.discard()
    assert not await asyncio.to_thread(unlinking.wait, 0.2)  # it waits for the write
    may_write.set()
    await gone(workspaces)
    assert links == [1]
