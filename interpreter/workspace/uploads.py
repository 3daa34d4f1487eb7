"""Uploads on their way: collected in a folder of the service's own, moved in place when they are whole."""

import asyncio
import logging
import os
import secrets
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from interpreter import disposal
from interpreter.errors import TooLargeError
from interpreter.workspace.files import FileInfo, Files, file_error
from interpreter.workspace.paths import parse_path

log = logging.getLogger(__name__)

_WRITE_SIZE = 1024**2  # bytes collected before they go to the disk
_MAX_WAITING = 32 * 1024**2  # bytes of all uploads that are collected at once
_LARGE = 4 * 1024**2  # bytes from which on a file may take long to remove
_FULL = (
    "The session's files would be over max_workspace_bytes ({}), or are too many to be counted; "
    "delete some or send less."
)


@dataclass(eq=False)
class _Account:
    """What files (a session's, mostly) and the open uploads to them come to."""

    files: Files
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    stored: int | None = None
    """Bytes, once they were measured. What code writes or deletes meanwhile is seen when it matters."""
    uploads: set["Upload"] = field(default_factory=set)

    async def measure(self) -> None:
        self.stored = await self.files.used_bytes()

    def total_with(self, upload: "Upload") -> int:
        return (self.stored or 0) + sum(other.size for other in self.uploads) - upload.replaced


class Uploads:
    """All uploads that are open.

    ``folder`` is on the file system of the workspaces, out of reach of the code that runs in them.
    Limits in bytes; ``full`` says what to do when the second is passed.
    """

    def __init__(
        self, folder: Path, *, max_file_bytes: int, max_workspace_bytes: int, full: str | None = None
    ) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._max_workspace_bytes = max_workspace_bytes
        self._full = full or _FULL.format(max_workspace_bytes)
        self._accounts: dict[str, _Account] = {}

    def prepare(self) -> None:
        """Make the folder, and delete what an earlier process left in it. Blocks."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._folder.iterdir():
            left.unlink(missing_ok=True)

    async def begin(self, session_id: str, files: Files, all_files: Files | None = None) -> "Upload":
        """An upload of one file to a session. End it with `Upload.commit` or `Upload.discard`.

        ``all_files`` are those that count together, if they are more than the session's own; then ``session_id``
        is the id of them all. Raises TooLargeError if they are too many already.
        """
        account = self._accounts.setdefault(session_id, _Account(all_files or files))
        upload = Upload(self, account, session_id, files, self._folder / secrets.token_hex(16))
        account.uploads.add(upload)  # before anything is awaited, so that the account stays
        try:
            upload.create()
            async with account.lock:
                if account.stored is None:  # once for all uploads of a body: there may be very many files
                    await account.measure()
                await self.check(account, upload)
        except BaseException:
            upload.discard()
            raise
        return upload

    def is_over(self, account: _Account, upload: "Upload") -> bool:
        """Whether a limit seems to be passed."""
        return upload.size > self._max_file_bytes or account.total_with(upload) > self._max_workspace_bytes

    async def check(self, account: _Account, upload: "Upload") -> None:
        """TooLargeError when a limit is passed. Only under the account's lock."""
        if upload.size > self._max_file_bytes:
            raise TooLargeError(
                f"The file is over max_file_bytes ({self._max_file_bytes}); send a smaller one."
            )
        if self.is_over(account, upload):
            await account.measure()  # some may have been deleted
        if self.is_over(account, upload):
            raise TooLargeError(self._full)

    def forget(self, session_id: str, upload: "Upload") -> None:
        """The upload is over."""
        account = self._accounts.get(session_id)
        if account is not None:
            account.uploads.discard(upload)
            if not account.uploads:
                del self._accounts[session_id]


class Upload:
    """One file on its way; a megabyte of it at most is in memory, and little when there are very many."""

    all_waiting: ClassVar[int] = 0
    """Bytes of all uploads that are not on the disk yet."""

    def __init__(
        self, uploads: Uploads, account: _Account, session_id: str, files: Files, source: Path
    ) -> None:
        self.size = 0
        self.replaced = 0
        """Bytes of the file that this one will replace."""
        self._uploads = uploads
        self._account = account
        self._session_id = session_id
        self._files = files
        self._source = source
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._written = 0  # bytes that are on the disk, or on their way
        self._file_lock = threading.Lock()

    def create(self) -> None:
        """Make the file that collects it, readable by nobody else."""
        try:
            os.close(os.open(self._source, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise file_error(error, making=True) from error

    async def replace(self, path: str) -> None:
        """Count on the room of the file that is there now."""
        parse_path(path)
        old = await self._files.find(path)
        self.replaced = old.size if old is not None else 0

    async def write(self, chunk: bytes) -> None:
        """Add the next bytes. Raises TooLargeError, UnavailableError (disk full); then discard it."""
        self.size += len(chunk)
        if self._uploads.is_over(self._account, self):
            async with self._account.lock:
                await self._uploads.check(self._account, self)
        self._waiting.append(chunk)
        self._waiting_bytes += len(chunk)
        Upload.all_waiting += len(chunk)
        if self._waiting_bytes >= _WRITE_SIZE or Upload.all_waiting > _MAX_WAITING:
            await self._flush()

    async def commit(self, path: str) -> FileInfo:
        """Put the whole file in its place; what was there is replaced. Raises as `Files.put`, TooLargeError."""
        try:
            await self._flush()
            async with self._account.lock:
                await self.replace(path)
                await self._uploads.check(self._account, self)
                info = await self._files.put(path, self._source)
                self._account.stored = (self._account.stored or 0) + self.size - self.replaced
        finally:
            self.discard()
        return info

    def discard(self) -> None:
        """Leave nothing behind. Once is enough, more does no harm; nothing after a commit.

        The room of what is large is given back in a thread, once no write has it open that is under way; later ones
        find no file and end.
        """
        self._waiting.clear()
        Upload.all_waiting -= self._waiting_bytes
        self._waiting_bytes = 0
        self._uploads.forget(self._session_id, self)
        if self._written < _LARGE:
            self._source.unlink(missing_ok=True)
        else:
            disposal.free_soon(self._unlink)

    async def _flush(self) -> None:
        self._written += self._waiting_bytes
        chunks, size = self._waiting, self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0
        try:
            if chunks:
                await asyncio.to_thread(self._append, chunks)
        finally:
            Upload.all_waiting -= size

    def _append(self, chunks: list[bytes]) -> None:
        try:
            with self._file_lock:
                descriptor = os.open(self._source, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                with os.fdopen(descriptor, "wb", buffering=0) as file:
                    for chunk in chunks:
                        view = memoryview(chunk)
                        while view:
                            view = view[file.write(view) :]
        except OSError as error:
            raise file_error(error, making=True) from error

    def _unlink(self) -> None:
        try:
            with self._file_lock:  # or its last reference would be the write's
                self._source.unlink(missing_ok=True)
        except OSError as error:
            log.error("An upload could not be deleted (%s).", error.strerror)
