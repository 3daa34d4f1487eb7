"""Removing what hostile code left: closed folders, folders nested without end, a million files.

`shutil.rmtree` recurses (a nest of some thousand folders is a RecursionError) and can't enter folders that
their owner closed. Here every step works on two levels only: what lies deeper is first moved up.
"""

import contextlib
import itertools
import os
import stat
from pathlib import Path

from interpreter.gateway_extension.sandbox.workspace import open_folder


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
    numbers = itertools.count()
    try:
        os.fchmod(top, 0o700)
        while names := os.listdir(top):
            for name in names:
                _remove_entry(top, name, numbers)
    finally:
        os.close(top)
    path.rmdir()


def _remove_entry(top: int, name: str, numbers: "itertools.count[int]") -> None:
    if not _unlink(top, name):
        folder = open_folder(name, top)
        try:
            os.fchmod(folder, 0o700)
            for inner in os.listdir(folder):
                if not _unlink(folder, inner):
                    # to be moved it must be writable itself
                    inner_fd = open_folder(inner, folder)
                    os.fchmod(inner_fd, 0o700)
                    os.close(inner_fd)
                    os.rename(inner, _free_name(top, numbers), src_dir_fd=folder, dst_dir_fd=top)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)


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
