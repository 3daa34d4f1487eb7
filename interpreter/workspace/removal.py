"""Deleting a folder with all that is in it, however deep, however many, whoever closed it."""

import os
import secrets
import stat

from interpreter.disposal import Rooms, Work

LARGE = 10_000
"""Entries from which on a removal is a large one. A few of those go on at once; others wait for none."""
_rooms = Rooms(2)
_MAX_OPEN = 32  # folders at a time
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(parent: int, name: str) -> None:
    """Delete ``name`` in the folder open as ``parent``; nothing happens when it is not there.

    Links are deleted, not followed. What lies too deep is moved up, so that depth costs neither
    descriptors nor stack. Raises OSError when something can't be deleted.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        root = open_closed(parent, name)
    except FileNotFoundError:
        return
    with _rooms.work() as work:
        _remove_folder(parent, name, root, _Count(work))


class _Count:
    """Of what was removed."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._entries = 0

    def add(self) -> None:
        self._entries += 1
        if self._entries > LARGE:
            self._work.is_large()


def _remove_folder(parent: int, name: str, root: int, count: _Count) -> None:
    stack: list[tuple[int, str, list[str]]] = [(root, name, [])]
    try:
        stack[0][2].extend(_remove_files(root, count))
        while stack:
            folder, name, inner = stack[-1]
            if not inner:
                os.close(stack.pop()[0])
                os.rmdir(name, dir_fd=stack[-1][0] if stack else parent)
            elif len(stack) < _MAX_OPEN:
                child = open_closed(folder, inner[-1])
                stack.append((child, inner.pop(), []))
                stack[-1][2].extend(_remove_files(child, count))
            else:
                os.close(open_closed(folder, inner[-1]))  # one that is closed to us can't be moved
                moved = secrets.token_hex(16)
                os.rename(inner.pop(), moved, src_dir_fd=folder, dst_dir_fd=root)
                stack[0][2].append(moved)
    finally:
        for folder, _, _ in stack:
            os.close(folder)


def _remove_files(folder: int, count: _Count) -> list[str]:
    """Delete all but the folders; their names."""
    folders: set[str] = set()
    found = True
    while found:  # a listing may miss some while entries go
        found = False
        with os.scandir(folder) as entries:
            for entry in entries:
                count.add()
                if entry.is_dir(follow_symlinks=False):
                    folders.add(entry.name)
                else:
                    os.unlink(entry.name, dir_fd=folder)
                    found = True
    return list(folders)


def open_closed(parent: int, name: str) -> int:
    """Open a folder, also one that its owner (our own user) has closed."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if status.st_mode & stat.S_IRWXU == stat.S_IRWXU:
            return os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        pass
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
    else:  # Linux: by way of a descriptor that needs no permission
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        finally:
            os.close(handle)
    return os.open(name, _FOLDER, dir_fd=parent)
