"""One plain uid per sandbox, out of a range, for gateways that run as root.

A uid is taken by locking a file named after it: the system drops the lock when the process ends however
that happens, so nothing stale is left, and several gateways on a host never share one.
"""

import fcntl
import os
import random
from collections.abc import Iterator
from pathlib import Path


class NoUidLeftError(RuntimeError):
    """Every uid of the range is in use."""


class UidLease:
    """A uid that is ours until `release`."""

    def __init__(self, uid: int, fd: int, path: Path) -> None:
        self.uid = uid
        self._fd: int | None = fd
        self._path = path

    def release(self) -> None:
        """Give the uid back; further calls do nothing."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        self._path.unlink(missing_ok=True)  # while locked: see `_lock`
        os.close(fd)


class UidPool:
    """The uids ``first`` to ``last``, shared with every process that uses the same folder."""

    def __init__(self, folder: Path, first: int, last: int) -> None:
        if not 1000 <= first <= last < 2**31:
            raise ValueError("uid_range must be two plain uids (>= 1000), the lower one first")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid() or folder.is_symlink():
            raise PermissionError("the folder of uid locks belongs to somebody else")
        self._folder, self._first, self._last = folder, first, last

    def __contains__(self, uid: int) -> bool:
        return self._first <= uid <= self._last

    def find(self, uid: int) -> UidLease | None:
        """That very uid, or None while somebody has it."""
        return self._lock(uid) if uid in self else None

    def is_taken(self, uid: int) -> bool:
        """Whether somebody has that uid now."""
        lease = self.find(uid)
        if lease is not None:
            lease.release()
        return lease is None

    def acquire(self) -> UidLease:
        """Any free uid. Raises `NoUidLeftError`."""
        for uid in self._candidates():
            lease = self._lock(uid)
            if lease is not None:
                return lease
        raise NoUidLeftError(f"all uids from {self._first} to {self._last} are in use")

    def sweep(self) -> None:
        """Remove the files of processes that were killed before they could release their uid."""
        for name in os.listdir(self._folder):
            lease = self._lock(int(name)) if name.isdigit() else None
            if lease is not None:
                lease.release()

    def _candidates(self) -> Iterator[int]:
        # A random start keeps a uid from being used again soon after its last sandbox.
        count = self._last - self._first + 1
        start = random.randrange(count)  # noqa: S311
        return (self._first + (start + step) % count for step in range(count))

    def _lock(self, uid: int) -> UidLease | None:
        path = self._folder / str(uid)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last owner may have removed the file between our open and our lock.
            if os.fstat(fd).st_ino == path.stat().st_ino:
                return UidLease(uid, fd, path)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(fd)
        return None
