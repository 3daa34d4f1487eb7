"""The files of each session: one local folder per session, which is its kernel's working directory."""

import mimetypes
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from interpreter.models import FileChange

MAX_SCANNED_FILES = 10_000
SKIPPED_FOLDERS = ("__pycache__", "node_modules")

Snapshot = Mapping[str, tuple[int, int, int]]
"""Path below the workspace → (modification time in ns, size in bytes, inode)."""


@dataclass(frozen=True, slots=True)
class Workspaces:
    """The workspaces of all sessions, below one root."""

    root: Path

    def create(self, session_id: str) -> Path:
        """Make the session's folder, readable by nobody else."""
        folder = self.root / session_id
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    def remove(self, session_id: str) -> None:
        """Delete the session's folder with all that is in it. Links are not followed."""
        shutil.rmtree(self.root / session_id, ignore_errors=True)

    def snapshot(self, session_id: str) -> Snapshot:
        """What regular files there are, at most `MAX_SCANNED_FILES`; hidden folders are left out."""
        found: dict[str, tuple[int, int, int]] = {}
        for path, status in _walk(self.root / session_id, ""):
            found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
            if len(found) >= MAX_SCANNED_FILES:
                break
        return found


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return  # deleted meanwhile, or made unreadable by the code
    for entry in entries:
        try:
            status = entry.stat(follow_symlinks=False)
            name = entry.name.encode().decode()  # names that are no UTF-8 have no place in a URL
        except (OSError, UnicodeError):
            continue
        if stat.S_ISREG(status.st_mode):
            yield prefix + name, status
        elif stat.S_ISDIR(status.st_mode) and not name.startswith(".") and name not in SKIPPED_FOLDERS:
            yield from _walk(Path(entry.path), f"{prefix}{name}/")


def changes(session_id: str, before: Snapshot, after: Snapshot) -> tuple[FileChange, ...]:
    """What happened between two snapshots, in the order of the paths."""
    found = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        change = "created" if old is None else "deleted" if new is None else "modified"
        size = new[1] if new else 0
        found.append(FileChange(path, size, mime_type_of(path), change, file_url(session_id, path)))
    return tuple(found)


def mime_type_of(path: str) -> str:
    """The MIME type that a file's name tells; ``application/octet-stream`` when it tells none."""
    guessed, encoding = mimetypes.guess_type(path, strict=False)
    if encoding:
        return f"application/{encoding}" if encoding != "gzip" else "application/gzip"
    return guessed or "application/octet-stream"


def file_url(session_id: str, path: str) -> str:
    """The path of a file's content, below the service's base URL."""
    return f"/v1/sessions/{session_id}/files/{quote(path)}"
