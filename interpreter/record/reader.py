"""Reading the record without being its writer: for the command line, beside a running service or not.

Blocking and read-only; needs no lock.
"""

import json
from collections.abc import Container, Iterable
from pathlib import Path

from interpreter.models import Run, is_id, parse_run_id
from interpreter.record.entries import RUN_ACCEPTED, RUN_AMENDED, RUN_ENDED, BadEntryError, decode
from interpreter.record.index import SessionRecord
from interpreter.record.journal import read_head, read_lines
from interpreter.record.layout import RETENTION_ID, Layout
from interpreter.record.retention import export_sessions, removed_sessions
from interpreter.record.stored import StoredSession, ended_quickly
from interpreter.record.verify import Verification, verify_chain, verify_session


class RecordReader:
    """Lists, shows, searches, verifies and exports what is in ``record_dir``."""

    def __init__(self, record_dir: Path, state_dir: Path) -> None:
        self.layout = Layout(record_dir, state_dir)

    def list_sessions(self) -> list[SessionRecord]:
        """All sessions whose journal can be read, newest first."""
        found = (self._record(path) for path in self.layout.journals())
        return newest_first(record for record in found if record is not None)

    def find_session(self, session_id: str) -> SessionRecord | None:
        """A session, None when it is unknown or can't be read."""
        path = self.layout.find_journal(session_id)
        return self._record(path) if path else None

    def list_runs(self, session_id: str) -> list[Run]:
        """The runs of a session in order; none when it is unknown."""
        stored = self._stored(session_id)
        return [recorded.run for recorded in stored.runs()] if stored else []

    def get_run(self, run_id: str) -> Run | None:
        """A run, None when it is unknown."""
        session_id, number = parse_run_id(run_id) or ("", 0)
        stored = self._stored(session_id)
        recorded = stored.run(number) if stored else None
        return recorded.run if recorded else None

    def notebook(self, session_id: str) -> bytes | None:
        """The notebook as the journal tells it now, None when the session is unknown."""
        stored = self._stored(session_id)
        return b"".join(part for _, part in stored.notebook()) if stored else None

    def verify(self, session_id: str) -> Verification | None:
        """Check one session; None when nothing of it is known."""
        path = self.layout.find_journal(session_id)
        if path is None:
            return verify_missing(self.layout, session_id)
        head = read_head(self.layout, session_id)
        pending = head is not None and not head.ended
        return verify_session(self.layout, self.layout.load_key(), path, pending=pending)

    def verify_all(self) -> dict[str, Verification]:
        """Check every session, and that none is missing. ``"retention"`` is the journal of removals."""
        found: dict[str, Verification] = {}
        key = self.layout.load_key()
        for path in self.layout.journals():
            if path.stem in found:
                problems = (*found[path.stem].problems, "The journal is in the record twice.")
                found[path.stem] = Verification(False, found[path.stem].runs, problems)
                continue
            verification = self.verify(path.stem)
            if verification is not None:
                found[path.stem] = verification
        for session_id in self.layout.heads():
            missing = None if session_id in found else verify_missing(self.layout, session_id)
            if missing is not None:
                found[session_id] = missing
        for path in self.layout.notebooks():
            if path.stem not in found:
                found[path.stem] = Verification(False, 0, ("There is no journal for this notebook.",))
        if self.layout.retention_path.exists() or read_head(self.layout, RETENTION_ID) is not None:
            found[RETENTION_ID] = self._verify_retention(key)
        return found

    def search(self, text: str, *, limit: int | None = None) -> list[str]:
        """Ids of the sessions whose code or outputs hold ``text`` (case does not matter), newest first."""
        return search_sessions(self.list_sessions(), text, limit=limit)

    def export(self, target: Path, session_ids: Container[str] | None = None) -> int:
        """Write the sessions (all by default) as a new zip file; returns their number. Raises OSError."""
        wanted = (r for r in self.list_sessions() if session_ids is None or r.info.id in session_ids)
        return export_sessions(self.layout, wanted, target)

    def _verify_retention(self, key: bytes | None) -> Verification:
        if not self.layout.retention_path.exists():
            return Verification(False, 0, ("The journal of removed sessions is missing.",))
        problems = verify_chain(self.layout, key, RETENTION_ID, self.layout.retention_path)
        return Verification(not problems, 0, problems)

    def _stored(self, session_id: str) -> StoredSession | None:
        path = self.layout.find_journal(session_id)
        try:
            return StoredSession.load(path) if path else None
        except (BadEntryError, FileNotFoundError):
            return None

    def _record(self, path: Path) -> SessionRecord | None:
        record = ended_quickly(self.layout, path)
        if record is not None:
            return record
        stored = self._stored(path.stem)
        return stored.index.record(path) if stored else None


def newest_first(records: Iterable[SessionRecord]) -> list[SessionRecord]:
    """Sorted by the time of creation, then by id so that the order is always the same."""
    return sorted(records, key=lambda record: (record.info.created_at, record.info.id), reverse=True)


def verify_missing(layout: Layout, session_id: str) -> Verification | None:
    """The answer for a session without a journal: removed by retention, lost, or never seen (None)."""
    if not is_id(session_id):
        return None
    if session_id in removed_sessions(layout):
        problems = verify_chain(layout, layout.load_key(), RETENTION_ID, layout.retention_path)
        return Verification(not problems, 0, problems)
    head = read_head(layout, session_id)
    if head is None or not head.entries:
        return None
    return Verification(False, 0, (f"The journal is missing; it had {head.entries} entries.",))


def search_sessions(records: Iterable[SessionRecord], text: str, *, limit: int | None = None) -> list[str]:
    """Ids of the sessions whose code or outputs hold ``text``, in the order given, at most ``limit``."""
    found: list[str] = []
    for record in records:
        if limit is not None and len(found) >= limit:
            break
        if _holds(record.path, text):
            found.append(record.info.id)
    return found


def _holds(path: Path, text: str) -> bool:
    needle = text.casefold()
    try:
        return any(_entry_holds(line, needle) for _, line in read_lines(path))
    except FileNotFoundError:
        return False


def _entry_holds(line: bytes, needle: str) -> bool:
    """Whether a run's code or outputs hold the text. A look at the raw line spares most of the parsing."""
    raw = json.dumps(needle, ensure_ascii=False)[1:-1]
    folded = line.decode("utf-8", "replace").casefold()
    if raw not in folded and (raw.isascii() or "\\u" not in folded):
        return False
    try:
        entry = decode(line)
    except BadEntryError:
        return False
    data = entry.data
    if entry.kind == RUN_ACCEPTED:
        return needle in str(data.get("code")).casefold()
    if entry.kind == RUN_ENDED:
        return any(needle in text.casefold() for text in _texts(data.get("outputs")))
    if entry.kind == RUN_AMENDED:
        return any(needle in text.casefold() for text in _texts([c[1] for c in data.get("changes", ())]))
    return False


def _texts(outputs: object) -> Iterable[str]:
    """What a person reads in outputs: streams, text and HTML, errors; not images."""
    for output in outputs if isinstance(outputs, list) else ():
        data = output.get("data") if isinstance(output.get("data"), dict) else {}
        values = [
            output.get("text"),
            output.get("ename"),
            output.get("evalue"),
            *(output.get("traceback") or ()),
        ]
        values += [value for mime, value in data.items() if mime.startswith("text/")]
        yield from (value for value in values if isinstance(value, str))
