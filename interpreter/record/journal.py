"""The append-only file of entries and its head. Blocking: called in threads.

An append is on disk (`os.fdatasync`) when it returns, unless it leaves that to `Journal.sync`. If it fails,
the file is cut back to where it was, at once or, when even that fails, before the next append: nothing is left
half written.
"""

import errno
import logging
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from interpreter.models import JSON
from interpreter.record.entries import (
    FORMAT,
    JOURNAL_MENDED,
    MAC_BYTES,
    BadEntryError,
    Entry,
    decode,
    encode,
    genesis,
    key_id,
    proves,
)
from interpreter.record.layout import Layout, create_file, open_file, sync_folder, write_at

_log = logging.getLogger(__name__)
_HEAD = re.compile(rb"([0-9]{12}) ([0-9]{16}) ([0-9a-f]{64}) (open |ended)\n")
_NO_MAC = bytes(MAC_BYTES)
_BLOCK = 1 << 20


class DamagedError(Exception):
    """A journal that can't be continued, because it is not what was written."""


class NeverBegunError(Exception):
    """A journal whose first entry a crash cut short: its session was never promised to anyone."""


@dataclass(frozen=True, slots=True)
class Head:
    """How far a journal has come: the number of its entries, its length in bytes, its newest mac.

    It is kept apart from the journal, in a line of fixed length that one write replaces, so that a
    journal that was cut at the border of an entry is found out. ``ended``: nothing follows, and the
    notebook shows it all.
    """

    entries: int
    size: int
    mac: bytes
    ended: bool

    def encode(self) -> bytes:
        """The line of the head's file."""
        state = "ended" if self.ended else "open "
        return f"{self.entries:012d} {self.size:016d} {self.mac.hex()} {state}\n".encode()


def read_head(layout: Layout, journal_id: str) -> Head | None:
    """The head of a journal; None when it is missing or is not one."""
    try:
        match = _HEAD.fullmatch(layout.head_path(journal_id).read_bytes())
    except FileNotFoundError:
        return None
    if match is None:
        return None
    return Head(int(match[1]), int(match[2]), bytes.fromhex(match[3].decode()), match[4] == b"ended")


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each line, newline included; the last may lack it."""
    offset = 0
    with open_file(path) as file:
        for line in file:
            yield offset, line
            offset += len(line)


def read_entry(descriptor: int, offset: int, *, raw: bool = False) -> Entry:
    """The entry at an offset of an open journal; ``raw`` as in `decode`. Raises BadEntryError."""
    blocks: list[bytes] = []
    step = 16 * 1024
    while not blocks or not blocks[-1].endswith(b"\n"):
        block = os.pread(descriptor, step, offset)
        if not block:
            raise BadEntryError("the journal ends within an entry")
        end = block.find(b"\n") + 1
        blocks.append(block[:end] if end else block)
        offset, step = offset + len(block), min(2 * step, 1 << 22)
    return decode(_joined(blocks), raw=raw)


def _joined(blocks: list[bytes]) -> bytes:
    """The blocks as one; they are given up, so that a large entry is in memory once."""
    line = b"".join(blocks)
    blocks.clear()
    return line


def read_ends(path: Path) -> tuple[Entry, Entry]:
    """First and last entry of a journal, without reading what is between. Raises BadEntryError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size, tail = os.fstat(descriptor).st_size, b""
        while tail.count(b"\n") < 2 and len(tail) < size:
            length = min(size, max(1024, 2 * len(tail)))
            tail = os.pread(descriptor, length, size - length)
        return read_entry(descriptor, 0), decode(tail[tail.rfind(b"\n", 0, -1) + 1 :])
    finally:
        os.close(descriptor)


class Journal:
    """One journal, open for appending. One thread at a time; others wait for one that still syncs."""

    def __init__(self, layout: Layout, journal_id: str, path: Path, key: bytes, head: Head) -> None:
        self.path = path
        self.head = head
        self._id = journal_id
        self._key = key
        self._dirty = False
        self._unsynced = b""  # the last of what was written, when nothing tells yet that it is on disk
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        status = os.fstat(self._file)
        self._place = status.st_dev, status.st_ino  # which file it is
        try:
            self._head_file = os.open(
                layout.head_path(journal_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError:
            os.close(self._file)
            raise

    @classmethod
    def create(
        cls, layout: Layout, journal_id: str, path: Path, key: bytes, first: tuple[datetime, str, JSON]
    ) -> "Journal":
        """Begin a journal with a first entry (time, kind, data). Raises OSError, and leaves nothing then."""
        at, kind, data = first
        make_folders(layout.record_dir, path.parent)
        data = {**data, "format": FORMAT, "key": key_id(key)}
        line, mac = encode(1, at, kind, data, previous=genesis(key, journal_id), key=key)
        # The head comes first: a journal without a head is a trace of tampering, not of a crash.
        made = [layout.head_path(journal_id)]
        create_file(made[0], Head(0, 0, _NO_MAC, False).encode(), 0o600)
        try:
            create_file(path, line, 0o600)
            made.insert(0, path)
            journal = cls(layout, journal_id, path, key, Head(1, len(line), mac, False))
        except OSError:
            for file in made:
                file.unlink(missing_ok=True)
            raise
        journal._write_head()
        return journal

    @classmethod
    def resume(
        cls, layout: Layout, journal_id: str, path: Path, key: bytes, visit: Callable[[Entry, int], None]
    ) -> tuple["Journal", int]:
        """Open a journal that a service has left; ``visit`` gets each proven entry and its offset.

        Returns the journal and the number of bytes that were cut off: an entry that a crash left half
        written, which nobody was told of. Raises DamagedError when it was changed, NeverBegunError when
        not even its first entry was finished, OSError, and what ``visit`` raises.
        """
        head, state = read_head(layout, journal_id), Head(0, 0, genesis(key, journal_id), False)
        if head is None:
            raise DamagedError("the head of the journal is missing")
        for offset, line in read_lines(path):
            entry = _next_entry(line, state, key)
            if entry is None:
                break
            visit(entry, offset)
            state = Head(entry.seq, offset + len(line), entry.mac, ended=False)
            if head.entries == entry.seq and (head.size, head.mac) != (state.size, state.mac):
                raise DamagedError("the journal is not the one that its head knows")
        if not state.entries and not head.entries:
            raise NeverBegunError
        if state.entries < head.entries:
            raise DamagedError(f"entry {state.entries + 1} of the journal was changed or is missing")
        journal = cls(layout, journal_id, path, key, state)
        cut = os.fstat(journal._file).st_size - state.size
        if cut:
            os.ftruncate(journal._file, state.size)
            os.fdatasync(journal._file)
        journal._write_head()
        return journal, cut

    def note_cut(self, cut: int, at: datetime) -> tuple[Entry, int]:
        """Append that ``cut`` bytes of an unfinished entry were removed."""
        return self.append(JOURNAL_MENDED, {"bytes": cut}, at)

    def append(self, kind: str, data: JSON, at: datetime, *, synced: bool = True) -> tuple[Entry, int]:
        """Append an entry; it is on disk when this returns it and its offset. Raises OSError.

        Unless ``synced`` it is only written, which outlives this process but no loss of power: call `sync` next.
        """
        with self._lock:
            head = self.head
            line, mac = encode(head.entries + 1, at, kind, data, previous=head.mac, key=self._key)
            status = os.stat(self.path)
            if (status.st_dev, status.st_ino) != self._place:
                self._take_copy()
            elif status.st_size < head.size:  # somebody has cut it: to go on would leave a hole
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            self._mend()
            try:
                write_at(self._file, line, head.size)
                if synced:
                    os.fdatasync(self._file)
            except OSError:
                self._dirty = True
                try:
                    self._mend()
                except OSError as error:
                    _log.warning("a half-written entry stays until the next append: %s", error.strerror)
                raise
            self.head = Head(head.entries + 1, head.size + len(line), mac, ended=False)
            self._unsynced = b"" if synced else self._unsynced + line
            if synced:
                self._write_head()
            return Entry(self.head.entries, at, kind, data, mac), head.size

    def sync(self) -> None:
        """Bring to disk what `append` has only written. Raises OSError; the next append then writes it again."""
        with self._lock:
            if self._unsynced:
                os.fdatasync(self._file)
                self._unsynced = b""
                self._write_head()  # not before: a head that is ahead of its journal looks like a cut

    def read(self, offset: int) -> Entry:
        """The entry at ``offset``. Raises BadEntryError, OSError."""
        return read_entry(self._file, offset)

    def read_raw(self, offset: int) -> Entry:
        """The same, of which large texts may be `Utf8`: for what only writes them again."""
        return read_entry(self._file, offset, raw=True)

    def seal(self) -> None:
        """Say in the head that nothing will follow, so that a start need not read this journal."""
        with self._lock:
            self.head = replace(self.head, ended=True)
            self._write_head()

    def close(self) -> None:
        """Give the files back."""
        try:
            self.sync()
        except OSError as error:
            _log.error("the last entries of a journal may not be on disk: %s", error.strerror)
        with self._lock:
            os.close(self._file)
            os.close(self._head_file)

    def _take_copy(self) -> None:
        """Go on in a copy that has taken the file's place (a backup was restored), if nothing differs.

        Raises FileNotFoundError if something does.
        """
        copy = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(copy)
            if not stat.S_ISREG(status.st_mode) or not self._is_same(copy, status.st_size):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            sync_folder(self.path.parent)
            os.dup2(copy, self._file, inheritable=False)
        finally:
            os.close(copy)
        self._place = status.st_dev, status.st_ino

    def _is_same(self, copy: int, size: int) -> bool:
        blocks = range(0, self.head.size, _BLOCK)
        return size == self.head.size and all(
            os.pread(copy, _BLOCK, offset) == os.pread(self._file, _BLOCK, offset) for offset in blocks
        )

    def _mend(self) -> None:
        """Write again what may not have come to disk, cut off what was half written. Raises OSError."""
        if self._unsynced:
            write_at(self._file, self._unsynced, self.head.size - len(self._unsynced))
        if self._dirty:
            os.ftruncate(self._file, self.head.size)
            os.fdatasync(self._file)
            self._unsynced, self._dirty = b"", False

    def _write_head(self) -> None:
        """A head that lags is only a weaker guard of the tail, so the entry stands when this fails."""
        try:
            write_at(self._head_file, self.head.encode(), 0)
        except OSError as error:
            _log.warning("the head of a journal could not be written: %s", error.strerror)


def _next_entry(line: bytes, state: Head, key: bytes) -> Entry | None:
    """The entry of a line if it is the one that follows ``state``."""
    try:
        entry = decode(line)
    except BadEntryError:
        return None
    follows = entry.seq == state.entries + 1 and proves(line, entry, previous=state.mac, key=key)
    return entry if follows else None


def make_folders(root: Path, path: Path) -> None:
    """Make the folders between ``root`` and ``path`` so that they survive a loss of power."""
    if path == root or path.is_dir():
        return
    make_folders(root, path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_folder(path.parent)
