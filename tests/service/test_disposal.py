"""What gives room on the disk back may take long, and nobody who does something else waits for it."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from runs_kit import ALICE, stack

from interpreter.models import new_id
from interpreter.workspace import Workspaces, folder, local

SESSIONS = 4  # as many as the event loop has threads in this test, and more than there are for removals


class Slow:
    """A disk that frees nothing before it is told to."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.threads: set[int] = set()

    def wait(self, *_: object) -> None:
        self.threads.add(threading.get_ident())
        assert self.may_end.wait(60)


async def test_whoever_lists_files_waits_for_no_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    with ThreadPoolExecutor(SESSIONS) as few:
        asyncio.get_running_loop().set_default_executor(few)
        async with stack(tmp_path) as parts, asyncio.timeout(60):
            kept, *others = [await parts.session() for _ in range(1 + SESSIONS)]
            monkeypatch.setattr(local, "remove_tree", slow.wait)
            ending = [asyncio.ensure_future(parts.sessions.delete(ALICE, one.id)) for one in others]
            while not slow.threads:  # the first removal has begun
                await asyncio.sleep(0)
            listing = await parts.workspaces.files(kept).list(limit=10)
            assert not listing.files
            assert (await parts.run(kept, "print here")).folded.stdout == "here\n"
            slow.may_end.set()
            await asyncio.gather(*ending)


@pytest.mark.parametrize("what", ["replaced", "deleted"])
async def test_whoever_lists_files_waits_for_none_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    slow = Slow()
    workspaces = Workspaces(tmp_path)
    workspaces.prepare()
    sessions = [type("Owner", (), {"id": new_id()})() for _ in range(SESSIONS)]
    monkeypatch.setattr(folder, "place" if what == "replaced" else "delete", slow.wait)
    with ThreadPoolExecutor(SESSIONS) as few:
        asyncio.get_running_loop().set_default_executor(few)
        async with asyncio.timeout(60):
            for one in sessions:
                (workspaces.create(one.id) / "f").write_bytes(b"x")
            files = [workspaces.files(one) for one in sessions]
            source = tmp_path / "source"
            changing = [
                asyncio.ensure_future(one.put("f", source) if what == "replaced" else one.delete("f"))
                for one in files
            ]
            while len(slow.threads) < SESSIONS:
                await asyncio.sleep(0)
            assert [info.path for info in (await files[0].list(limit=10)).files] == ["f"]
            slow.may_end.set()
            await asyncio.gather(*changing)


async def test_a_file_that_was_read_is_not_closed_by_the_event_loop(tmp_path: Path) -> None:
    """Code may have removed it meanwhile: its last reference frees it."""
    workspaces = Workspaces(tmp_path)
    workspaces.prepare()
    owner = type("Owner", (), {"id": new_id()})()
    (workspaces.create(owner.id) / "f").write_bytes(b"content")
    opened = await workspaces.files(owner).open("f")
    closed, closing = asyncio.Event(), opened._file.close
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    threads: list[int] = []

    def close() -> None:
        threads.append(threading.get_ident())
        closing()
        loop.call_soon_threadsafe(closed.set)

    opened._file.close = close  # type: ignore[method-assign]
    await opened.aclose()
    async with asyncio.timeout(60):
        await closed.wait()
    assert here not in threads


async def test_a_file_that_was_opened_for_nobody_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspaces = Workspaces(tmp_path)
    workspaces.prepare()
    owner = type("Owner", (), {"id": new_id()})()
    (workspaces.create(owner.id) / "f").write_bytes(b"content")
    begun, may_go_on = threading.Event(), threading.Event()
    open_file, descriptors = folder.open_file, []

    def slowly(root: int, parts: tuple[str, ...]) -> int:
        begun.set()
        assert may_go_on.wait(60)
        descriptors.append(open_file(root, parts))
        return descriptors[0]

    monkeypatch.setattr(folder, "open_file", slowly)
    opening = asyncio.ensure_future(workspaces.files(owner).open("f"))
    await asyncio.to_thread(begun.wait, 60)
    opening.cancel()
    await asyncio.wait({opening})
    may_go_on.set()
    async with asyncio.timeout(60):
        while not descriptors or _is_open(descriptors[0], tmp_path):
            await asyncio.sleep(0)


def _is_open(descriptor: int, below: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(below))
    except FileNotFoundError:
        return False
