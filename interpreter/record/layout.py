"""Where the record's files are, its key, and the lock that makes one service its only writer.

::

    record_dir/YYYY/MM/DD/<session_id>.jsonl   the journal: the truth
                          <session_id>.ipynb   the notebook, rendered from it
    record_dir/retention.jsonl                 journal of the sessions that an admin removed
    state_dir/record.key                       32 random bytes, mode 0600
    state_dir/heads/<journal id>               how far a journal has come: see `journal.Head`

The day is that of the session's creation, in UTC.
"""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from interpreter.errors import SettingsError
from interpreter.models import SessionInfo, is_id
from interpreter.record.entries import MAC_BYTES

RETENTION_ID = "retention"
_DAYS = "[0-9][0-9][0-9][0-9]/[0-9][0-9]/[0-9][0-9]"
_NO_DIRECTORY_LOCKS = (errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of one record."""

    record_dir: Path
    state_dir: Path

    def journal_path(self, info: SessionInfo) -> Path:
        """Where the journal of a session belongs."""
        return self.record_dir / info.created_at.strftime("%Y/%m/%d") / f"{info.id}.jsonl"

    def head_path(self, journal_id: str) -> Path:
        """Where the head of a journal is."""
        return self.state_dir / "heads" / journal_id

    @property
    def retention_path(self) -> Path:
        """The journal of removed sessions."""
        return self.record_dir / "retention.jsonl"

    def find_journal(self, session_id: str) -> Path | None:
        """The journal of a session, None when there is none."""
        if not is_id(session_id):
            return None
        found = self.record_dir.glob(f"{_DAYS}/{session_id}.jsonl")
        return next((path for path in found if path.is_file()), None)

    def journals(self) -> Iterator[Path]:
        """All journals of sessions, oldest day first."""
        for day in sorted(self.record_dir.glob(_DAYS)):
            for path in sorted(day.glob("*.jsonl")):
                if is_id(path.stem) and path.is_file():
                    yield path

    def notebooks(self) -> Iterator[Path]:
        """All notebooks of sessions, oldest day first."""
        for day in sorted(self.record_dir.glob(_DAYS)):
            yield from sorted(path for path in day.glob("*.ipynb") if is_id(path.stem))

    def heads(self) -> Iterator[str]:
        """The ids of all sessions whose head is known."""
        folder = self.state_dir / "heads"
        if folder.is_dir():
            yield from sorted(name for name in os.listdir(folder) if is_id(name))

    def load_key(self) -> bytes | None:
        """The key, None when there is none yet. Raises SettingsError when it is not one."""
        try:
            key = (self.state_dir / "record.key").read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SettingsError(f"The record's key in state_dir can't be read: {error.strerror}.") from error
        if len(key) != MAC_BYTES:
            raise SettingsError("The record's key in state_dir is damaged: put it back from a backup.")
        return key

    def prepare(self) -> bytes:
        """Make the folders and, once, the key; returns the key.

        Raises SettingsError when they can't be made.
        """
        self._make("record_dir", self.record_dir, 0o700)
        self._make("state_dir", self.state_dir, 0o700)
        self._make("state_dir", self.state_dir / "heads", 0o700)
        key = self.load_key()
        if key is None:
            try:
                create_file(self.state_dir / "record.key", secrets.token_bytes(MAC_BYTES), 0o600)
            except FileExistsError:
                pass  # another start was first; its key counts
            except OSError as error:
                raise SettingsError(
                    f"The record's key can't be made in state_dir: {error.strerror}."
                ) from error
            key = self.load_key()
        if key is None:
            raise SettingsError("The record's key vanished from state_dir.")
        return key

    @staticmethod
    def _make(setting: str, path: Path, mode: int) -> None:
        try:
            path.mkdir(mode=mode, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"The folder of {setting} can't be made: {error.strerror}.") from error

    def lock(self) -> int:
        """Become the record's only writer; returns the descriptor that holds the lock until it is closed.

        Raises SettingsError when another process is.
        """
        descriptor = self._try_lock()
        if descriptor is None:
            raise SettingsError(
                "Another service writes this record; stop it, or set record_dir to another folder."
            )
        return descriptor

    def _try_lock(self) -> int | None:
        """Lock the folder itself, which a read-only disk allows too; where folders have no locks, a file."""
        try:
            descriptor = os.open(self.record_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return descriptor if _flock(descriptor) else None
            except OSError as error:
                os.close(descriptor)
                if error.errno not in _NO_DIRECTORY_LOCKS:
                    raise
            descriptor = os.open(self.record_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            return descriptor if _flock(descriptor) else None
        except OSError as error:
            raise SettingsError(f"The folder of record_dir can't be locked: {error.strerror}.") from error


def _flock(descriptor: int) -> bool:
    """Whether the exclusive lock was got; closes the descriptor when another has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


def create_file(path: Path, content: bytes, mode: int) -> None:
    """Make a new file that survives a loss of power. Raises OSError, and leaves nothing then."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        write_at(descriptor, content, 0)
        os.fsync(descriptor)
        sync_folder(path.parent)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def open_file(path: Path) -> BinaryIO:
    """A file for reading. Raises OSError; FileNotFoundError too when a folder, or a pipe, has its name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return os.fdopen(descriptor, "rb")


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of ``content`` at ``offset``; raises OSError."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
