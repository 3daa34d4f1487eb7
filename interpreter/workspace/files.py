"""The one interface to the files of a session, wherever they lie."""

import errno
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from interpreter.errors import (
    InterpreterError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from interpreter.models import JSON, to_iso
from interpreter.workspace.folder import Entry, LeavesFolderError, NotAFileError
from interpreter.workspace.paths import file_url, mime_type_of
from interpreter.workspace.snapshots import Snapshot

MAX_LISTED = 1_000_000  # entries looked at for a page; later ones are not listed
MAX_SUMMED = 200_000  # entries looked at for a sum; a folder with more counts as full


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A regular file of a session. ``size`` in bytes; ``etag`` changes with every change, without quotes."""

    path: str
    size: int
    modified_at: datetime
    etag: str

    @classmethod
    def of(cls, entry: Entry) -> "FileInfo":
        """The file of an entry."""
        mark = f"{entry.inode}-{entry.size}-{entry.modified}-{entry.changed}"
        return cls(
            entry.path,
            entry.size,
            datetime.fromtimestamp(max(0, min(entry.modified // 10**9, 253402300799)), UTC),
            hashlib.sha256(mark.encode()).hexdigest()[:32],
        )

    @property
    def mime_type(self) -> str:
        """What the name tells of the content."""
        return mime_type_of(self.path)

    def as_json(self, session_id: str) -> JSON:
        """The file of the REST contract."""
        return {
            "path": self.path,
            "size": self.size,
            "mime_type": self.mime_type,
            "modified_at": to_iso(self.modified_at),
            "url": file_url(session_id, self.path),
        }


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of files in the order of their paths."""

    files: tuple[FileInfo, ...]
    has_more: bool


class OpenFile(Protocol):
    """A file that is being read: always the one that was opened, also when its path gets another."""

    @property
    def info(self) -> FileInfo:
        """The file as it was when it was opened."""

    async def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset`` on; none at the end. Raises InterpreterError."""

    async def aclose(self) -> None:
        """Let go of it."""


class Files(Protocol):
    """The files of one session.

    Every method raises InvalidRequestError (``param="path"``: no path of a file, or one that leaves the
    folder), NotFoundError, UnavailableError.
    """

    async def list(self, *, limit: int, after: str | None = None, descending: bool = False) -> Listing:
        """The files after the path ``after``; those in hidden folders and links are not listed."""

    async def open(self, path: str) -> OpenFile:
        """Open a file to read; the caller closes it."""

    async def put(self, path: str, source: Path) -> FileInfo:
        """Give the finished local file ``source`` that path, all at once; missing folders are made.

        ``source`` is moved or read; the caller deletes what is left of it.
        """

    async def find(self, path: str) -> FileInfo | None:
        """The file with that path, None when there is none."""

    async def delete(self, path: str) -> None:
        """Delete a file, a link or an empty folder."""

    async def used_bytes(self) -> int:
        """The sum of all files; more than any limit when they are too many."""

    def glance(self) -> Snapshot | None:
        """The files as they are now if that costs next to nothing, else None: `snapshot` has to be asked."""

    async def snapshot(self) -> Snapshot:
        """The files as they are now."""


_FULL = (errno.ENOSPC, errno.EDQUOT)


def file_error(error: OSError, *, making: bool = False) -> InterpreterError:
    """What to tell a client of an OSError about its path; ``making``: while the path was written."""
    if isinstance(error, LeavesFolderError) or error.errno == errno.ELOOP:
        return _invalid("`path` leaves the session's folder by a link; name a file below it.")
    if isinstance(error, NotAFileError) or error.errno == errno.ENXIO:
        return _invalid("`path` is no regular file but a pipe, socket or device.")
    if isinstance(error, IsADirectoryError):
        return _invalid("`path` is a folder; name a file.")
    if isinstance(error, NotADirectoryError) and making:
        return _invalid("A part of `path` is a file; only folders can hold files.")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFoundError("There is no such file; list them with GET /v1/sessions/{id}/files.")
    if error.errno == errno.ENAMETOOLONG:
        return _invalid("`path` is too long for the session's folder.")
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return _invalid("`path` is a folder that is not empty; delete its files first.")
    if isinstance(error, PermissionError):
        return _invalid("The session's code has closed `path`; change its mode there.")
    if error.errno in _FULL:
        return UnavailableError("The disk of the session's files is full.", code="disk_full")
    return UnavailableError("The session's files can't be reached now; try again later.")


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="path")
