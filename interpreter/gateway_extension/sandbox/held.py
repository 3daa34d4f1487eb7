"""What one process of a sandbox holds by its descriptors and mappings, seen from the host through /proc."""

import contextlib
import functools
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from interpreter.gateway_extension.sandbox.processes import is_ending, living, read

MAX_WATCHES = 65_536  # of epoll, in all processes; a user has 4 % of the memory for them
MAX_LINES = 8 * MAX_WATCHES  # of one process: each number of the same epoll, or locked file, tells all again
_MAX_MAPS_BYTES = (
    32 * 1024**2
)  # as many mappings as Linux allows have a fifth of it, unless paths are very long
_UNNAMED = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ...(.) ([0-9a-f]+) \S+ (\d+) +(/.*) \(deleted\)$", re.MULTILINE
)
_SHARED_MEMORY = b"/dev/zero"  # what anonymous shared memory is called
_MEMORY_FILE = b"/memfd:"
_SHARED = b"s"

File = tuple[int, int]  # device and inode
Place = tuple[int, int]  # an address, and where in a file it is
FindFolder = Callable[[bytes], int | None]
"""The device of the folder, of those where a sandbox may write, that a path is in."""


@dataclass(slots=True)
class Held:
    """By one process."""

    files: dict[File, int] = field(default_factory=dict)  # those without a name, and their bytes
    mapped: dict[File, Place] = field(default_factory=dict)  # those that are only mapped, and where
    pipes: set[int] = field(default_factory=set)
    epolls: list[tuple[int, int]] = field(default_factory=list)  # descriptor and watches
    descriptors: int = 0
    on_their_way: int = 0  # descriptors in messages that nobody has received yet
    mappings: int = 0
    locks: int = 0  # of files
    lines: int = 0  # in which the system tells of its descriptors, more for each watch and lock
    closed: bool = False  # we may not look


def look_at(pid: int, find_folder: FindFolder) -> Held:
    """What the process holds now. Raises OSError (it has ended, say), TooLongError."""
    held = Held()
    folder = living(pid)
    try:
        maps = read(f"{folder}/maps", _MAX_MAPS_BYTES)
        held.mappings = maps.count(b"\n")
        if b" (deleted)\n" in maps:
            _note_mapped(folder, maps, held, find_folder)
        _note_open(folder, held)
    except PermissionError:  # so it is, too, with a child that ended and that nobody has waited for
        held.closed = os.geteuid() != 0 and not is_ending(pid)
    return held


def _note_mapped(folder: str, maps: bytes, held: Held, find_folder: FindFolder) -> None:
    for start, end, kind, offset, inode, path in _UNNAMED.findall(maps):
        device = _device(path, find_folder)
        if device is None:
            continue
        file = device, int(inode)
        with contextlib.suppress(OSError):  # only root may, and is told exactly
            _note_unnamed(os.stat(f"{folder}/map_files/{start.decode()}-{end.decode()}"), file, held)
            continue
        with contextlib.suppress(OSError):  # it may be its name that ends so
            status = os.lstat(b"%s/root%s (deleted)" % (folder.encode(), path))
            if (status.st_dev, status.st_ino) == file:
                continue
        if kind == _SHARED or file not in held.mapped:  # no other can be mapped once more
            held.mapped[file] = int(start, 16), int(offset, 16)


def _device(path: bytes, find_folder: FindFolder) -> int | None:
    """Where a file is that the sandbox may have made. (A system's file goes when it is upgraded.)"""
    if path == _SHARED_MEMORY or path.startswith(_MEMORY_FILE):
        return memory_device()
    return find_folder(path)


def _note_open(folder: str, held: Held) -> None:
    # Its program, which is mapped, and its folder: bubblewrap's may be a copy in memory, a large one may be deleted.
    for name in ("exe", "cwd"):
        with contextlib.suppress(OSError):
            _note_unnamed_file(os.stat(f"{folder}/{name}"), held)
    fds = os.open(f"{folder}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(fds):
            held.descriptors += 1
            if held.lines > MAX_LINES:
                continue
            with contextlib.suppress(OSError):
                _note(folder, name, os.stat(name, dir_fd=fds), held)
    finally:
        os.close(fds)


def _note(folder: str, name: str, status: os.stat_result, held: Held) -> None:
    told = read(f"{folder}/fdinfo/{name}")
    held.lines += told.count(b"\n")
    held.locks += told.count(b"\nlock:")  # anything that is open can be locked, with any number of locks
    if stat.S_ISFIFO(status.st_mode):
        held.pipes.add(status.st_ino)
    elif stat.S_ISSOCK(status.st_mode):
        _, found, count = told.partition(b"scm_fds:")
        held.on_their_way += int(count.split()[0]) if found else 0
    elif status.st_dev == _anonymous_device():
        if watches := told.count(b"\ntfd:"):
            held.epolls.append((int(name), watches))
    else:
        _note_unnamed_file(status, held)


def _note_unnamed_file(status: os.stat_result, held: Held) -> None:
    _note_unnamed(status, (status.st_dev, status.st_ino), held)


def _note_unnamed(status: os.stat_result, file: File, held: Held) -> None:
    if status.st_nlink == 0:
        held.files[file] = status.st_blocks * 512


@functools.cache
def memory_device() -> int:
    """The file system that the system keeps memfd_create's files, and shared memory, on."""
    return _device_of(os.memfd_create("probe"))


@functools.cache
def _anonymous_device() -> int:
    """The one that epolls are on, and others."""
    return _device_of(os.eventfd(0))


def _device_of(fd: int) -> int:
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)
