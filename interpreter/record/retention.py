"""Take sessions out of the record: as copies (export), or for good (prune). Blocking.

A session that was removed on purpose leaves an entry in ``retention.jsonl``, itself a journal, so that
`verify` can tell retention from tampering.
"""

import contextlib
import logging
import zipfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from interpreter.models import JSON, to_iso
from interpreter.record.entries import SESSION_REMOVED, BadEntryError, decode
from interpreter.record.index import SessionRecord
from interpreter.record.journal import Journal, read_head, read_lines
from interpreter.record.layout import RETENTION_ID, Layout
from interpreter.record.stored import StoredSession
from interpreter.record.verify import edited_path

_log = logging.getLogger(__name__)
_STARTED = "retention_started"


def export_sessions(layout: Layout, records: Iterable[SessionRecord], target: Path) -> int:
    """Write journals and notebooks as a new zip file; returns the number of sessions. Raises OSError.

    Notebooks are rendered from the journals, so that they are complete even while a session goes on.
    """
    count = 0
    with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
        for record in records:
            name = record.path.relative_to(layout.record_dir)
            try:
                stored = StoredSession.load(record.path)
            except (BadEntryError, FileNotFoundError):
                _log.warning("a session whose journal can't be read was left out of the export")
                continue
            with archive.open(str(name), "w", force_zip64=True) as journal:
                for _, line in read_lines(record.path):
                    if line.endswith(b"\n"):  # the last one may be just being written
                        journal.write(line)
            with archive.open(str(name.with_suffix(".ipynb")), "w", force_zip64=True) as notebook:
                for _, part in stored.notebook():
                    notebook.write(part)
            count += 1
    return count


def prune_sessions(
    layout: Layout, key: bytes, records: Iterable[SessionRecord], *, before: datetime, at: datetime
) -> list[str]:
    """Remove the sessions that ended before a time; returns their ids. Raises OSError, DamagedError.

    The caller holds the record's lock. Damaged sessions stay: they are evidence.
    """
    old = [record for record in records if record.ended_at is not None and record.ended_at < before]
    if not old:
        return []
    journal = _open_journal(layout, key, at)
    try:
        for record in old:
            journal.append(SESSION_REMOVED, _tombstone(layout, record, before), at)
            _remove(layout, record, today=at)
    finally:
        journal.close()
    return [record.info.id for record in old]


def removed_sessions(layout: Layout) -> set[str]:
    """The ids of the sessions that retention removed."""
    removed: set[str] = set()
    if not layout.retention_path.exists():
        return removed
    for _, line in read_lines(layout.retention_path):
        try:
            entry = decode(line)
        except BadEntryError:
            continue
        if entry.kind == SESSION_REMOVED and isinstance(entry.data.get("session"), str):
            removed.add(entry.data["session"])
    return removed


def _open_journal(layout: Layout, key: bytes, at: datetime) -> Journal:
    path = layout.retention_path
    if not path.exists() and read_head(layout, RETENTION_ID) is None:
        return Journal.create(layout, RETENTION_ID, path, key, (at, _STARTED, {}))
    journal, _ = Journal.resume(layout, RETENTION_ID, path, key, lambda entry, offset: None)
    return journal


def _tombstone(layout: Layout, record: SessionRecord, before: datetime) -> JSON:
    head = read_head(layout, record.info.id)
    return {
        "session": record.info.id,
        "owner_id": record.info.owner_id,
        "created_at": to_iso(record.info.created_at),
        "ended_at": to_iso(record.ended_at),
        "ended_reason": record.ended_reason,
        "runs": record.run_count,
        "entries": head.entries if head else None,
        "mac": head.mac.hex() if head else None,
        "before": to_iso(before),
    }


def _remove(layout: Layout, record: SessionRecord, *, today: datetime) -> None:
    """Remove the files of a session, and the folders that are empty then, but today's: it is in use."""
    path = record.path
    for file in (path.with_suffix(".ipynb"), edited_path(path), path, layout.head_path(record.info.id)):
        file.unlink(missing_ok=True)
    if record.info.created_at.date() < today.date():
        with contextlib.suppress(OSError):  # another session's files are still in one of them
            for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
                folder.rmdir()
