"""The workspace on the host's side: may it be one, who owns it, how full is it.

Everything below it is written by the kernel, perhaps while we look: no link is followed, no file opened, no
path put together; folders are entered by descriptor only.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from interpreter.disposal import Rooms, Work

MAX_DEPTH = 64  # folders in folders; each level holds one descriptor during a walk
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LARGE = 1000  # entries from which on a walk takes long, …
DEEP = 8  # … and levels from which on it holds many descriptors: few of those go on at once. Others wait for none
_rooms = Rooms(2)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a folder holds. ``size`` in bytes on disk; ``complete`` is False when a walk gave up, ``steady`` when
    something was no longer there when it came to it."""

    size: int
    files: int
    complete: bool = True
    steady: bool = True


class WorkspaceError(ValueError):
    """This folder can't be a kernel's workspace."""


def check_workspace(cwd: str, *, root: str, runtime_dir: str) -> str:
    """The real path of a workspace. Raises `WorkspaceError`.

    With a ``root`` it must lie below that; else it must not be, or hold, the gateway's own folders.
    """
    path = os.path.realpath(cwd)
    if not os.path.isdir(path):
        raise WorkspaceError("the kernel's working directory does not exist")
    if root:
        if os.path.dirname(path) != os.path.realpath(root) and not _within(
            path, os.path.realpath(root), strict=True
        ):
            raise WorkspaceError("the kernel's working directory is not below workspace_root")
        return path
    for own in (os.path.expanduser("~"), sys.prefix, sys.base_prefix, runtime_dir, "/usr", "/etc"):
        if _within(os.path.realpath(own), path) or (own in ("/usr", "/etc") and _within(path, own)):
            raise WorkspaceError("the kernel's working directory holds more than one session's files")
    return path


def _within(path: str, folder: str, *, strict: bool = False) -> bool:
    if path == folder:
        return not strict
    return path.startswith(folder.rstrip("/") + "/")


def may_take_over(path: str, is_sandbox_uid: Callable[[int], bool], *, root: str) -> bool:
    """Whether root may give this folder to a sandbox's uid: never somebody's files by mistake."""
    status = os.stat(path, follow_symlinks=False)
    if root or is_sandbox_uid(status.st_uid):
        return True
    with os.scandir(path) as entries:
        return next(entries, None) is None


def give_to(path: Path, uid: int) -> None:
    """Make ``uid`` the owner of a folder and all that is in it."""
    fd = os.open(path, _FOLDER)
    try:
        if os.fstat(fd).st_uid != uid:
            _walk(fd, lambda parent, entry, _: _chown(parent, entry, uid), limit=sys.maxsize)
            os.fchown(fd, uid, uid)
        os.fchmod(fd, 0o700)
    finally:
        os.close(fd)


def open_to_owner(path: Path) -> None:
    """Give the owner of a folder all rights to it: the kernel before may have taken them, and none starts without."""
    with contextlib.suppress(OSError):  # gone: the start says so
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(f"/proc/self/fd/{fd}", mode | stat.S_IRWXU)
        finally:
            os.close(fd)


def _chown(parent: int, entry: os.DirEntry[str], uid: int) -> None:
    os.chown(entry.name, uid, uid, dir_fd=parent, follow_symlinks=False)


def measure(fd: int, *, max_files: int) -> Usage:
    """What the folder open as ``fd`` holds; stops above ``max_files`` entries."""
    size, files, linked = 0, 0, set[int]()

    def count(_: int, entry: os.DirEntry[str], status: os.stat_result) -> None:
        nonlocal size, files
        files += 1
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if status.st_ino in linked:
                return
            linked.add(status.st_ino)
        size += status.st_blocks * 512
        del entry

    complete, steady = _walk(fd, count, limit=max_files)
    return Usage(size, files, complete, steady)


def _walk(
    fd: int, visit: Callable[[int, os.DirEntry[str], os.stat_result], None], *, limit: int
) -> tuple[bool, bool]:
    """Visit every entry below ``fd``: complete and steady, as in `Usage` (it gives up when they are too many, or deep)."""
    with _rooms.work() as work:
        return _walk_on(fd, visit, limit, work)


def _walk_on(
    fd: int, visit: Callable[[int, os.DirEntry[str], os.stat_result], None], limit: int, work: Work
) -> tuple[bool, bool]:
    stack: list[tuple[int, list[os.DirEntry[str]]]] = [(os.dup(fd), [])]
    seen, complete, steady = 0, True, True
    try:
        stack[0][1].extend(_entries(fd, limit, work))
        while stack:
            parent, entries = stack[-1]
            if not entries:
                os.close(stack.pop()[0])
                continue
            entry = entries.pop()
            seen += 1
            if seen > limit:
                return False, steady
            if seen > LARGE or len(stack) > DEEP:
                work.is_large()
            try:
                status = _status(parent, entry)
                visit(parent, entry, status)
                if stat.S_ISDIR(status.st_mode):
                    if len(stack) >= MAX_DEPTH:
                        complete = False
                    else:
                        child = open_folder(entry.name, parent)
                        stack.append((child, []))
                        stack[-1][1].extend(_entries(child, limit, work))
            except (FileNotFoundError, NotADirectoryError):
                steady = False  # gone or changed while we looked
            except PermissionError:
                continue  # a folder that its owner closed
    finally:
        for handle, _ in stack:
            os.close(handle)
    return complete, steady


def _status(parent: int, entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat(follow_symlinks=False)
    except PermissionError:
        os.fchmod(parent, 0o700)  # readable but not searchable: made so to hide sizes
        return os.stat(entry.name, dir_fd=parent, follow_symlinks=False)


def open_folder(path: str, parent: int | None) -> int:
    """A descriptor of a folder, ``path`` being relative to ``parent`` if given; never through a link."""
    try:
        return os.open(path, _FOLDER, dir_fd=parent)
    except PermissionError:
        pass
    # Its owner, who is our own user, closed it to hide what it holds: open it again.
    handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)
    return os.open(path, _FOLDER, dir_fd=parent)


def _entries(fd: int, limit: int, work: Work) -> list[os.DirEntry[str]]:
    found = []
    with os.scandir(fd) as entries:
        for entry in entries:
            found.append(entry)
            if len(found) == LARGE:
                work.is_large()
            if len(found) > limit:
                break
    return found
