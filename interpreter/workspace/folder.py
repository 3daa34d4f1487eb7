"""Safe steps in a folder that someone else may change at any moment.

The code that runs in a session owns its folder, and may swap a file for a link, a pipe or a device
while we look. So no path is ever put together and handed to the system: each part is opened by
descriptor from its parent, links are never followed by the kernel (``O_NOFOLLOW``), and a relative
link is read and walked here, part by part, so that it can't lead out. Only regular files are opened.

Standard library only: kernels on a disk of their own are sent the text of this module and run it.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_DEPTH = 64  # parts of a path; each holds one descriptor while it is walked
MAX_LINKS = 40  # links on one way, as in Linux
UNCOUNTED = 2**62  # more bytes than any limit
SKIPPED_FOLDERS = ("__pycache__", "node_modules")

_NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _NOFOLLOW
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _NOFOLLOW  # a pipe swapped in must not block us


class LeavesFolderError(OSError):
    """The path leads out of the folder."""


class NotAFileError(OSError):
    """The path names a pipe, a socket or a device."""


class Entry(NamedTuple):
    """A regular file; times in ns since the epoch, size in bytes."""

    path: str
    size: int
    modified: int
    changed: int
    inode: int


class Scan(NamedTuple):
    """The regular files; whether these are all; when it was, in ns since the epoch; how many can't be named."""

    entries: list[Entry]
    complete: bool
    taken_at: int
    unnamed: int


def open_root(root: str) -> int:
    """A descriptor of the folder itself."""
    return os.open(root, _FOLDER)


def resolve(root: int, parts: Iterable[str], *, make: bool = False, follow: bool = True) -> tuple[int, str]:
    """The descriptor of the folder that holds what the path names (the caller closes it), and its name.

    With ``make``, folders that are missing on the way are made. Without ``follow``, the last part may
    be a link. Raises LeavesFolderError, OSError.
    """
    stack, todo, links = [os.dup(root)], list(parts)[::-1], 0
    try:
        while todo:
            name = todo.pop()
            if name == "..":  # only a link's target has these
                if len(stack) == 1:
                    raise LeavesFolderError(errno.EXDEV, "the link leads out of the folder")
                os.close(stack.pop())
                continue
            target = _link_target(stack[-1], name) if todo or follow else None
            if target is not None:
                links += 1
                if target.startswith("/") or links > MAX_LINKS:
                    raise LeavesFolderError(errno.EXDEV, "the link leads out of the folder")
                todo += [part for part in target.split("/") if part not in ("", ".")][::-1]
            elif not todo:
                return stack.pop(), name
            elif len(stack) > MAX_DEPTH:
                raise OSError(errno.ENAMETOOLONG, "too many folders in folders")
            else:
                stack.append(_enter(stack[-1], name, make))
        raise IsADirectoryError(errno.EISDIR, "a folder")
    finally:
        for descriptor in stack:
            os.close(descriptor)


def open_file(root: int, parts: Iterable[str]) -> int:
    """A descriptor of the regular file, to read. Raises LeavesFolderError, NotAFileError, OSError."""
    parent, name = resolve(root, parts)
    try:
        _check_regular(os.stat(name, dir_fd=parent, follow_symlinks=False))
        descriptor = os.open(name, _FILE, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        _check_regular(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def place(root: int, parts: Iterable[str], source: str) -> None:
    """Move a finished file, which must lie on the same file system, to the path; what is there is replaced.

    It gets the owner of its new folder. Raises LeavesFolderError, NotAFileError, OSError.
    """
    parent, name = resolve(root, parts, make=True)
    try:
        with contextlib.suppress(FileNotFoundError):
            _check_regular(os.stat(name, dir_fd=parent, follow_symlinks=False))
        descriptor = os.open(source, os.O_RDONLY | _NOFOLLOW)
        try:
            _give_to_owner_of(parent, descriptor)
            os.fchmod(descriptor, 0o644)
        finally:
            os.close(descriptor)
        os.rename(source, name, dst_dir_fd=parent)
    finally:
        os.close(parent)


def delete(root: int, parts: Iterable[str]) -> None:
    """Remove a file (of any kind), a link (not what it names) or an empty folder.

    Raises LeavesFolderError for a link that leads out, OSError.
    """
    wanted = tuple(parts)
    try:
        os.close(resolve(root, wanted)[0])
    except LeavesFolderError:
        raise
    except OSError:
        pass  # a link to nothing, or to the folder itself
    parent, name = resolve(root, wanted, follow=False)
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    finally:
        os.close(parent)


class Walk:
    """What lies below a folder, at most ``max_entries`` of it, with two descriptors at a time.

    Yields a path and its ``DirEntry``, which can be asked until the next is taken. Names that have no
    place in a URL are left out and counted (``unnamed``), and folders that hold no results are left out
    (unless ``hidden``).
    """

    def __init__(
        self, root: int, *, max_entries: int, hidden: bool = False, max_depth: int = MAX_DEPTH
    ) -> None:
        self.complete = True
        self.unnamed = 0
        self._root = root
        self._left = max_entries
        self._hidden = hidden
        self._max_depth = max_depth

    def __iter__(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        queue: deque[str] = deque([""])
        while queue:
            prefix = queue.popleft()
            try:
                folder = _open_prefix(self._root, prefix)
            except OSError:
                continue  # gone meanwhile, or closed by the code
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if self._left <= 0:
                            self.complete = False
                            return
                        self._left -= 1
                        if not (self._hidden or _has_place_in_url(entry.name)):
                            self.unnamed += 1
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            self._enqueue(queue, prefix, entry.name)
                        else:
                            yield prefix + entry.name, entry
            finally:
                os.close(folder)

    def _enqueue(self, queue: deque[str], prefix: str, name: str) -> None:
        if not self._hidden and _is_skipped(name):
            return
        if prefix.count("/") < self._max_depth - 1:
            queue.append(f"{prefix}{name}/")
        else:
            self.complete = False


def scan(root: int, max_files: int) -> Scan:
    """The regular files, at most ``max_files``."""
    found: list[Entry] = []
    now = time.time_ns()
    walk = Walk(root, max_entries=10 * max_files)
    for path, entry in walk:
        if len(found) >= max_files:
            return Scan(found, False, now, walk.unnamed)
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            found.append(entry_of(path, status))
    return Scan(found, walk.complete, now, walk.unnamed)


def page(
    root: int, *, limit: int, after: str | None, descending: bool, max_entries: int
) -> tuple[list[Entry], bool]:
    """The next ``limit`` files in the order of their paths, and whether there are more.

    The memory that it takes depends on ``limit`` only, however many files there are.
    """
    paths = (
        path
        for path, entry in Walk(root, max_entries=max_entries)
        if entry.is_file(follow_symlinks=False)
        and (after is None or (path < after if descending else path > after))
    )
    chosen = (heapq.nlargest if descending else heapq.nsmallest)(limit + 1, paths)
    found = []
    for path in chosen[:limit]:
        try:
            found.append(stat_file(root, path.split("/")))
        except OSError:
            continue  # gone meanwhile
    return found, len(chosen) > limit


def stat_file(root: int, parts: Iterable[str]) -> Entry:
    """The regular file that the path names. Raises as `open_file`, without opening it."""
    wanted = list(parts)
    parent, name = resolve(root, wanted)
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)
    _check_regular(status)
    return entry_of("/".join(wanted), status)


def entry_of(path: str, status: os.stat_result) -> Entry:
    """The entry of a file whose status is known."""
    return Entry(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def used_bytes(root: int, *, max_entries: int) -> int:
    """The sum of all files, hidden ones too; sparse ones count with what they take on the disk.

    It is `UNCOUNTED` when there are more: what is beyond them may be of any size.
    """
    total = 0
    walk = Walk(root, max_entries=max_entries, hidden=True, max_depth=2 * MAX_DEPTH)
    for _, entry in walk:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            total += min(status.st_size, status.st_blocks * 512)
    return total if walk.complete else UNCOUNTED


def _link_target(parent: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):  # no link, or nothing there yet
            return None
        raise


def _enter(parent: int, name: str, make: bool) -> int:
    try:
        return _open_folder(parent, name)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # the code, or another upload, made it just now
        os.mkdir(name, 0o755, dir_fd=parent)
    child = _open_folder(parent, name)
    try:
        _give_to_owner_of(parent, child)
    except OSError:
        os.close(child)
        raise
    return child


def _open_folder(parent: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ELOOP:  # it became a link after we looked
            raise LeavesFolderError(errno.ELOOP, "the path changed to a link") from error
        raise


def _open_prefix(root: int, prefix: str) -> int:
    """The folder of a path that ends with a slash (or is empty); no link is followed on the way."""
    current = os.dup(root)
    for part in prefix.split("/")[:-1]:
        try:
            child = os.open(part, _FOLDER, dir_fd=current)
        finally:
            os.close(current)
        current = child
    return current


def _give_to_owner_of(parent: int, descriptor: int) -> None:
    """As root, give what we made to whom the folder belongs, so that its code may change it."""
    if os.geteuid() != 0:
        return
    owner, own = os.fstat(parent), os.fstat(descriptor)
    if (owner.st_uid, owner.st_gid) != (own.st_uid, own.st_gid):
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _check_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder")
    if stat.S_ISLNK(status.st_mode):
        raise LeavesFolderError(errno.ELOOP, "the path changed to a link")
    if not stat.S_ISREG(status.st_mode):
        raise NotAFileError(errno.EINVAL, "no regular file")


def _has_place_in_url(name: str) -> bool:
    if "\\" in name:
        return False
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name in SKIPPED_FOLDERS
