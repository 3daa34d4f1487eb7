"""The sessions' folders on a disk that the kernels share with the service."""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from interpreter import disposal
from interpreter.quickness import Quickness
from interpreter.workspace import folder
from interpreter.workspace.files import MAX_LISTED, MAX_SUMMED, FileInfo, Listing, file_error
from interpreter.workspace.paths import parse_path
from interpreter.workspace.removal import open_closed, remove_tree
from interpreter.workspace.snapshots import MAX_SCANNED_FILES, UNKNOWN, Snapshot
from interpreter.workspace.uploads import Upload, Uploads

log = logging.getLogger(__name__)
T = TypeVar("T")

GLANCE_FILES = 16  # and ten times as many names
_UPLOADS = ".uploads"  # no session id has a dot
_REMOVED = ".removed"


class HasId(Protocol):
    """A session, as far as local files need to know it."""

    @property
    def id(self) -> str: ...


class Workspaces:
    """One folder per session, below one root; it is the working directory of the session's kernel."""

    def __init__(
        self,
        root: Path,
        *,
        max_file_bytes: int = 1024**3,
        max_workspace_bytes: int = 4 * 1024**3,
        full: str | None = None,
    ) -> None:
        self.root = root
        self._quick = Quickness()
        self.uploads = Uploads(
            root / _UPLOADS,
            max_file_bytes=max_file_bytes,
            max_workspace_bytes=max_workspace_bytes,
            full=full,
        )

    def prepare(self) -> None:
        """Make the root, and delete what an earlier process left half done. Blocks."""
        self.root.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.uploads.prepare()
        self._remove(_REMOVED)

    def create(self, session_id: str) -> Path:
        """Make the session's folder, readable by nobody else. Blocks."""
        path = self.root / session_id
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path

    def remove(self, session_id: str) -> None:
        """Delete the session's folder with all that is in it. Links are not followed. Blocks.

        It is out of sight at once; what can't be deleted is tried again at the next start.
        """
        removed = self.root / _REMOVED
        name = f"{Path(session_id).name}-{secrets.token_hex(4)}"
        root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            removed.mkdir(mode=0o700, exist_ok=True)
            os.close(open_closed(root, session_id))  # one that is closed to us can't be moved
            os.rename(session_id, removed / name, src_dir_fd=root)
        except FileNotFoundError:
            return
        except OSError as error:
            log.error("A session's folder could not be removed (%s).", error.strerror)
            return
        finally:
            os.close(root)
        self._remove(name, below=removed)

    def glance(self, session_id: str) -> Snapshot | None:
        """`snapshot` of a small folder, for the event loop: a thread would cost more than the look itself."""
        if not self._quick:
            return None
        with self._quick:
            found = self.snapshot(session_id, max_files=GLANCE_FILES)
        return found if found.complete else None

    def snapshot(self, session_id: str, *, max_files: int | None = None) -> Snapshot:
        """What regular files there are; hidden folders and links are left out. Blocks."""
        try:
            root = folder.open_root(f"{self.root}/{session_id}")
        except OSError:
            return Snapshot()  # deleted by the code itself
        try:
            found = folder.scan(root, max_files or MAX_SCANNED_FILES)
        except OSError:
            return UNKNOWN
        finally:
            os.close(root)
        files = {entry.path: entry for entry in found.entries}
        return Snapshot(files, found.complete, found.taken_at, found.unnamed)

    def files(self, session: HasId) -> "LocalFiles":
        """The files of a session."""
        return LocalFiles(self, session.id)

    async def begin_upload(self, session: HasId) -> Upload:
        """An upload of one file to a session. Raises NotFoundError, TooLargeError, UnavailableError."""
        return await self.uploads.begin(session.id, self.files(session))

    def _remove(self, name: str, *, below: Path | None = None) -> None:
        parent = os.open(below or self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_tree(parent, name)
        except OSError as error:
            log.error("A session's folder could not be deleted in full (%s).", error.strerror)
        finally:
            os.close(parent)


class LocalFiles:
    """The files of one session. Implements `Files`."""

    def __init__(self, workspaces: Workspaces, session_id: str) -> None:
        self._workspaces = workspaces
        self._session_id = session_id
        self._path = f"{workspaces.root}/{session_id}"

    async def list(self, *, limit: int, after: str | None = None, descending: bool = False) -> Listing:
        """See `Files.list`."""

        def work(root: int) -> Listing:
            found, more = folder.page(
                root, limit=limit, after=after, descending=descending, max_entries=MAX_LISTED
            )
            return Listing(tuple(map(FileInfo.of, found)), more)

        return await self._do(work)

    async def open(self, path: str) -> "LocalOpenFile":
        """See `Files.open`."""
        parts = parse_path(path)
        opening = asyncio.ensure_future(
            self._do(lambda root: LocalOpenFile(folder.open_file(root, parts), path))
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise

    async def put(self, path: str, source: Path) -> FileInfo:
        """See `Files.put`. The file is moved."""
        parts = parse_path(path)

        def work(root: int) -> FileInfo:
            folder.place(root, parts, str(source))
            return FileInfo.of(folder.stat_file(root, parts))

        return await self._do(work, making=True, frees=True)

    async def find(self, path: str) -> FileInfo | None:
        """See `Files.find`."""
        parts = parse_path(path)

        def work(root: int) -> FileInfo | None:
            try:
                return FileInfo.of(folder.stat_file(root, parts))
            except FileNotFoundError:
                return None

        return await self._do(work, making=True)

    async def delete(self, path: str) -> None:
        """See `Files.delete`."""
        parts = parse_path(path)
        await self._do(lambda root: folder.delete(root, parts), frees=True)

    async def used_bytes(self) -> int:
        """See `Files.used_bytes`."""
        return await self._do(lambda root: folder.used_bytes(root, max_entries=MAX_SUMMED))

    def glance(self) -> Snapshot | None:
        """See `Files.glance`: only few files are looked at, and only on a disk that is quick."""
        return self._workspaces.glance(self._session_id)

    async def snapshot(self) -> Snapshot:
        """See `Files.snapshot`."""
        return await asyncio.to_thread(self._workspaces.snapshot, self._session_id)

    async def _do(self, work: Callable[[int], T], *, making: bool = False, frees: bool = False) -> T:
        def in_thread() -> T:
            with _mapped(making):
                root = folder.open_root(self._path)
                try:
                    return work(root)
                finally:
                    os.close(root)

        return await (disposal.free(in_thread) if frees else asyncio.to_thread(in_thread))


class LocalOpenFile:
    """An open file. Implements `OpenFile`."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        self.info = FileInfo.of(folder.entry_of(path, os.fstat(descriptor)))

    async def read(self, offset: int, size: int) -> bytes:
        """See `OpenFile.read`."""

        def work() -> bytes:
            with _mapped():
                return os.pread(self._file.fileno(), size, offset)

        return await asyncio.to_thread(work)

    async def aclose(self) -> None:
        """See `OpenFile.aclose`."""
        self.discard()

    def discard(self) -> None:
        """Close it, in the background."""
        disposal.free_soon(self._file.close)  # code may have removed the file while it was read


def _close_unwanted(opening: "asyncio.Future[LocalOpenFile]") -> None:
    """Close what was opened for a caller that went away meanwhile."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().discard()


@contextmanager
def _mapped(making: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise file_error(error, making=making) from error
