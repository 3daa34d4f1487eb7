"""Removing what hostile code left: closed folders, folders nested without end, a million files.

`shutil.rmtree` recurses (a nest of some thousand folders is a RecursionError) and can't enter folders that
their owner closed. Here every step works on two levels only: what lies deeper is first moved up.
"""

import contextlib
import itertools
import os
import stat
from pathlib import Path

from interpreter.disposal import Rooms, Work
from interpreter.gateway_extension.sandbox.workspace import open_folder

LARGE = 10_000
"""Entries from which on a removal is a large one. A few of those go on at once; others wait for none."""
_rooms = Rooms(2)


def remove_tree(path: Path) -> None:
    """Remove a folder and all that is in it, if it is there. No process may write in it any more.

    Follows no links. Raises OSError when something can't be removed.
    """
    try:
        top = open_folder(str(path), None)
    except (FileNotFoundError, NotADirectoryError):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return
    try:
        os.fchmod(top, 0o700)
        with _rooms.work() as work:
            removal = _Removal(top, work)
            while names := os.listdir(top):
                for name in names:
                    removal.remove(name)
    finally:
        os.close(top)
    path.rmdir()


class _Removal:
    """Of what is in the folder open as ``top``."""

    def __init__(self, top: int, work: Work) -> None:
        self._top = top
        self._work = work
        self._numbers = itertools.count()
        self._entries = 0

    def remove(self, name: str) -> None:
        top = self._top
        self._count()
        if not _unlink(top, name):
            folder = open_folder(name, top)
            try:
                os.fchmod(folder, 0o700)
                for inner in os.listdir(folder):
                    self._count()
                    if not _unlink(folder, inner):
                        # to be moved it must be writable itself
                        inner_fd = open_folder(inner, folder)
                        os.fchmod(inner_fd, 0o700)
                        os.close(inner_fd)
                        os.rename(inner, _free_name(top, self._numbers), src_dir_fd=folder, dst_dir_fd=top)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)

    def _count(self) -> None:
        self._entries += 1
        if self._entries > LARGE:
            self._work.is_large()


def _unlink(parent: int, name: str) -> bool:
    """Remove an entry that is not a folder; False when it is one."""
    if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=parent)
    return True


def _free_name(top: int, numbers: "itertools.count[int]") -> str:
    while True:
        name = f"moved-{next(numbers)}"
        try:
            os.stat(name, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return name
