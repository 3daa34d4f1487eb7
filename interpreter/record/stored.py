"""Reading a session back from its journal. Blocking, read-only; proves nothing (`verify` does)."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, cast

from interpreter.models import Run, RunStatus
from interpreter.record.entries import BadEntryError, Entry, decode
from interpreter.record.index import SessionIndex, SessionRecord, ended_record, start_index
from interpreter.record.journal import read_ends, read_entry, read_head, read_lines
from interpreter.record.layout import Layout
from interpreter.record.notebook import SEPARATOR, START, render_cell, render_end
from interpreter.record.outcomes import RecordedRun, rebuild

_SPOOL_BYTES = 1 << 20

Read = Callable[[int], Entry]
"""The entry at an offset of the journal."""


def read_run(index: SessionIndex, number: int, read: Read) -> RecordedRun:
    """A run of a session; KeyError when the session has no such run."""
    accepted = read(index.accepted[number])
    ended = read(index.ended[number]) if number in index.ended else None
    return rebuild(
        index.info,
        accepted.data,
        ended.data if ended else None,
        [read(offset).data for offset in index.amended.get(number, ())],
        unended=index.status_of_unended(number),
    )


def read_program(index: SessionIndex, number: int, read: Read) -> Run:
    """A run that succeeded, without what came out of it, which is not even read."""
    return rebuild(index.info, read(index.accepted[number]).data, None, unended=RunStatus.OK).run


def render(index: SessionIndex, read: Read) -> Iterator[tuple[int | None, bytes]]:
    """The whole notebook in parts: each with the number of the run that it shows, if it is a cell's."""
    yield None, START
    for position, number in enumerate(index.order):
        if position:
            yield None, SEPARATOR
        for part in render_cell(read_run(index, number, read), index.info):
            yield number, part
    yield None, end_of(index)


def spooled(parts: Iterable[bytes]) -> BinaryIO:
    """A file that ends with its last user; a large one is on disk."""
    file = SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115  # the caller closes it
    try:
        for part in parts:  # not `writelines`, which looks at the size only at the end
            file.write(part)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return cast(BinaryIO, file)


def end_of(index: SessionIndex) -> bytes:
    """What follows the last cell of the notebook."""
    return render_end(index.info, ended_reason=index.ended_reason, entries=index.entries, mac=index.mac)


def ended_quickly(layout: Layout, path: Path) -> SessionRecord | None:
    """The session of a journal whose head says that it has ended, from its two ends; None for any other."""
    head = read_head(layout, path.stem)
    if head is None or not head.ended:
        return None
    try:
        first, last = read_ends(path)
        return ended_record(first, last, path) if last.mac == head.mac else None
    except (OSError, BadEntryError, KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session's journal on disk and the index of its first entries (all of them, by default)."""

    path: Path
    index: SessionIndex

    @classmethod
    def load(cls, path: Path, *, entries: int | None = None) -> "StoredSession":
        """Index a journal as far as it can be read. Raises BadEntryError when not even its begin can be."""
        index: SessionIndex | None = None
        for offset, line in read_lines(path):
            try:
                entry = decode(line)
                if index is None:
                    index = start_index(entry)
                else:
                    index.apply(entry, offset)
            except (BadEntryError, KeyError, TypeError, ValueError):
                break
            if entries is not None and index.entries >= entries:
                break
        if index is None:
            raise BadEntryError("the journal has no begin")
        return cls(path, index)

    def run(self, number: int) -> RecordedRun | None:
        """A run, None when the session has no such one."""
        with _Reader(self.path) as read:
            return read_run(self.index, number, read) if number in self.index.accepted else None

    def program(self, number: int) -> Run | None:
        """A run without its outputs if it succeeded, else None."""
        with _Reader(self.path) as read:
            return read_program(self.index, number, read) if number in self.index.succeeded else None

    def runs(self) -> list[RecordedRun]:
        """All runs in the order of their acceptance."""
        with _Reader(self.path) as read:
            return [read_run(self.index, number, read) for number in self.index.order]

    def notebook(self) -> Iterator[tuple[int | None, bytes]]:
        """The notebook in parts, as `render` gives them."""
        with _Reader(self.path, raw=True) as read:
            yield from render(self.index, read)

    def open_notebook(self) -> BinaryIO:
        """The notebook as a file, whose bytes are in memory only if they are few."""
        return spooled(part for _, part in self.notebook())


class _Reader:
    """A journal open for reading entries at offsets."""

    def __init__(self, path: Path, *, raw: bool = False) -> None:
        self._path = path
        self._raw = raw
        self._file = -1

    def __enter__(self) -> Read:
        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self._read

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def _read(self, offset: int) -> Entry:
        return read_entry(self._file, offset, raw=self._raw)
