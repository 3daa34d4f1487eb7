"""The rendered notebook on disk: cells are replaced without reading or rendering the others. Blocking.

Each write makes a whole new file beside the old one and renames it over it, so that a reader finds a
complete notebook at every moment. The bytes of unchanged cells are copied from the old file.
"""

import os
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from interpreter.record.notebook import SEPARATOR, START

_BLOCK = 1 << 20


class NotebookFile:
    """One session's ``.ipynb``. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts = array("Q")  # where each cell's separator begins; the end of the last cell comes last
        self._stamp: tuple[int, int, int] | None = None

    @property
    def size(self) -> int:
        """Length in bytes as written last, 0 before."""
        return self._stamp[1] if self._stamp else 0

    def is_ours(self) -> bool:
        """Whether the file is still the one that was written last."""
        return self._stamp is not None and self._stamp == _stamp(self.path)

    def forget(self) -> None:
        """Render every cell at the next write."""
        self._stamp = None
        self._starts = array("Q")

    def write(
        self,
        count: int,
        changed: Iterable[int],
        cell: Callable[[int], Iterable[bytes]],
        end: bytes,
        *,
        sync: bool,
    ) -> None:
        """Write ``count`` cells. ``cell(i)`` renders those in ``changed`` and those that are new.

        Raises OSError, and what ``cell`` raises; the old file then stays.
        """
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        try:
            with os.fdopen(_create_private(temporary), "wb", buffering=_BLOCK) as new:
                starts = self._write_cells(new, count, changed, cell)
                new.write(end)
                new.flush()
                if sync:
                    os.fsync(new.fileno())
                stamp = _stamp_of(os.fstat(new.fileno()))
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._starts, self._stamp = starts, stamp

    def _write_cells(
        self, new: BinaryIO, count: int, changed: Iterable[int], cell: Callable[[int], Iterable[bytes]]
    ) -> "array[int]":
        known = max(0, len(self._starts) - 1)
        starts = array("Q")
        new.write(START)
        if known:
            done = 0
            with self.path.open("rb") as old:
                for position in sorted(i for i in changed if i < known):
                    self._copy(old, new, done, position, starts)
                    _write_cell(new, position, cell, starts)
                    done = position + 1
                self._copy(old, new, done, known, starts)
        for position in range(known, count):
            _write_cell(new, position, cell, starts)
        starts.append(new.tell())
        return starts

    def _copy(self, old: BinaryIO, new: BinaryIO, first: int, last: int, starts: "array[int]") -> None:
        """Copy the cells from ``first`` to before ``last`` and note where they begin now."""
        if first == last:
            return
        begin, end = self._starts[first], self._starts[last]
        shift = new.tell() - begin
        kept = self._starts[first:last]
        starts.extend(array("Q", (start + shift for start in kept)) if shift else kept)
        old.seek(begin)
        while begin < end:
            block = old.read(min(_BLOCK, end - begin))
            if not block:
                raise OSError("the notebook was cut while it was copied")
            new.write(block)
            begin += len(block)


def _write_cell(
    new: BinaryIO, position: int, cell: Callable[[int], Iterable[bytes]], starts: "array[int]"
) -> None:
    starts.append(new.tell())
    if position:
        new.write(SEPARATOR)
    for part in cell(position):
        new.write(part)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        return _stamp_of(path.stat())
    except OSError:
        return None


def _stamp_of(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _create_private(path: Path) -> int:
    """A descriptor of a new file that only the service's user can read, as journals are."""
    path.unlink(missing_ok=True)  # of a service that was killed
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
