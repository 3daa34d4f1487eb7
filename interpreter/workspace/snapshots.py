"""What files there were before a run and after it, and so what the run did to them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from interpreter.models import FileChange
from interpreter.workspace.folder import Entry
from interpreter.workspace.paths import file_url, mime_type_of

MAX_SCANNED_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The regular files at one moment (ns since the epoch), by path.

    Not ``complete``: there were too many to see all.
    """

    files: Mapping[str, Entry] = field(default_factory=dict)
    complete: bool = True
    taken_at: int = 0
    unnamed: int = 0
    """Files and folders that were left out because no path can name them."""


UNKNOWN = Snapshot(complete=False, taken_at=2**63)
"""Nobody could look: nothing follows from it."""


def changes(session_id: str, before: Snapshot, after: Snapshot) -> tuple[FileChange, ...]:
    """What happened between two snapshots, in the order of the paths.

    Of files that a snapshot which is not complete left out nothing is known: they don't count as
    deleted, and as created only when they changed after the first snapshot.
    """
    if before.files == after.files:
        return ()
    complete = before.complete and after.complete
    found = []
    for path in sorted(before.files.keys() | after.files.keys()):
        old, new = before.files.get(path), after.files.get(path)
        if new is None:
            change = "deleted" if complete else ""
        elif old is None:
            change = "created" if complete or new.changed > before.taken_at else ""
        else:
            change = "modified" if _signature(old) != _signature(new) else ""
        if change:
            size = new.size if new else 0
            found.append(FileChange(path, size, mime_type_of(path), change, file_url(session_id, path)))
    return tuple(found)


def unlisted(before: Snapshot, after: Snapshot) -> tuple[str, ...]:
    """What to tell of new files that nobody can ask for: one sentence, or none."""
    count = after.unnamed - before.unnamed
    if count <= 0 or before is UNKNOWN:
        return ()
    files = "1 new file or folder is" if count == 1 else f"{count} new files or folders are"
    return (f"{files} not listed: rename what has a backslash in its name, or bytes that are not UTF-8.",)


def _signature(entry: Entry) -> tuple[int, int, int]:
    return entry.modified, entry.size, entry.inode
