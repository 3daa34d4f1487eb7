"""Nobody who removes or replaces something of his own waits for what others do."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs_kit import ALICE, stack

from interpreter.disposal import Rooms
from interpreter.models import new_id
from interpreter.workspace import Workspaces, folder, local, removal

MANY = 6  # sessions, more than anything here has threads
PATIENCE = 60.0


class Slow:
    """A step that takes as long as the test likes, where ``is_slow`` says so of its arguments."""

    def __init__(self, step: Callable[..., Any], is_slow: Callable[..., bool]) -> None:
        self.step = step
        self.is_slow = is_slow
        self.may_go_on = threading.Event()
        self.begun: list[object] = []

    def __call__(self, *args: Any) -> Any:
        if self.is_slow(*args):
            self.begun.append(args)
            assert self.may_go_on.wait(PATIENCE)
        return self.step(*args)


async def test_a_session_ends_while_others_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack(tmp_path) as parts, asyncio.timeout(PATIENCE):
        normal, *others = [await parts.session() for _ in range(1 + MANY)]
        slow = Slow(local.remove_tree, lambda _, name: not name.startswith(normal.id))
        monkeypatch.setattr(local, "remove_tree", slow)
        ending = [asyncio.ensure_future(parts.sessions.delete(ALICE, one.id)) for one in others]
        while len(slow.begun) < 2:
            await asyncio.sleep(0)
        await parts.sessions.delete(ALICE, normal.id)
        assert not (parts.workspaces.root / normal.id).exists()
        slow.may_go_on.set()
        await asyncio.gather(*ending)


@pytest.mark.parametrize("what", ["place", "delete"])
async def test_a_file_is_put_and_deleted_while_those_of_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    workspaces = Workspaces(tmp_path / "workspaces")
    workspaces.prepare()
    owners = [type("Owner", (), {"id": new_id()})() for _ in range(1 + MANY)]
    for one in owners:
        (workspaces.create(one.id) / "f").write_bytes(b"x")
    normal, *others = map(workspaces.files, owners)
    slow = Slow(getattr(folder, what), lambda _, parts, *rest: tuple(parts) == ("f",))
    monkeypatch.setattr(folder, what, slow)
    sources = [tmp_path / f"source{number}" for number in range(1 + MANY)]
    for source in sources:
        source.touch()
    async with asyncio.timeout(PATIENCE):
        changing = [
            asyncio.ensure_future(one.put("f", source) if what == "place" else one.delete("f"))
            for one, source in zip(others, sources[1:], strict=True)
        ]
        while len(slow.begun) < 4:
            await asyncio.sleep(0)
        await normal.put("other", sources[0])
        await normal.delete("other")
        slow.may_go_on.set()
        await asyncio.gather(*changing)


def removed(path: Path) -> None:
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        removal.remove_tree(parent, path.name)
    finally:
        os.close(parent)


def test_of_large_folders_two_are_removed_at_once_and_small_ones_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "LARGE", 5)
    monkeypatch.setattr(removal, "_rooms", Rooms(2))
    large, small = [tmp_path / f"large{number}" for number in range(3)], tmp_path / "small"
    for path, files in (*((path, 20) for path in large), (small, 4)):
        path.mkdir()
        for number in range(files):
            (path / str(number)).touch()
    with removal._rooms.work() as one, removal._rooms.work() as other:
        one.is_large()
        other.is_large()
        waiting = [threading.Thread(target=removed, args=(path,)) for path in large]
        for thread in waiting:
            thread.start()
        removed(small)
        assert all(len(os.listdir(path)) >= 15 for path in large)
    for thread in waiting:
        thread.join(PATIENCE)
    assert os.listdir(tmp_path) == []
