"""What the last service left: found at start, mended where a crash cut it short. Blocking."""

import logging
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from interpreter.record.entries import BadEntryError
from interpreter.record.index import SessionRecord
from interpreter.record.journal import DamagedError, NeverBegunError, read_head
from interpreter.record.layout import Layout
from interpreter.record.live import LiveSession
from interpreter.record.stored import StoredSession, ended_quickly

_log = logging.getLogger(__name__)

STOPPED_NOTICE = "The service stopped while this code ran."
NEVER_RAN_NOTICE = "The service stopped before this code ran: it waited for the run before it."
DAMAGED = "damaged"


@dataclass(slots=True)
class Recovered:
    """Sessions that are open, records of all others by session id, and why something could not be written."""

    live: dict[str, LiveSession] = field(default_factory=dict)
    records: dict[str, SessionRecord] = field(default_factory=dict)
    error: OSError | None = None


def recover(layout: Layout, key: bytes, at: datetime) -> Recovered:
    """Look through the record. Only journals that were left open are read as a whole.

    Runs that have no end are given one (``aborted``). A journal that was changed is left as it is.
    """
    found = Recovered()
    for path in layout.journals():
        record = ended_quickly(layout, path)
        if record is not None:
            found.records[path.stem] = record
        else:
            _recover_session(layout, key, path, at, found)
    for session_id in layout.heads():
        if session_id in found.records or session_id in found.live:
            continue
        head = read_head(layout, session_id)
        if head is not None and not head.entries and layout.find_journal(session_id) is None:
            layout.head_path(session_id).unlink(missing_ok=True)  # a crash came before the first entry
    return found


def _recover_session(layout: Layout, key: bytes, path: Path, at: datetime, found: Recovered) -> None:
    session_id = path.stem
    try:
        live = LiveSession.load(layout, key, path, at)
    except NeverBegunError:
        path.unlink(missing_ok=True)
        layout.head_path(session_id).unlink(missing_ok=True)
        return
    except DamagedError as error:
        _log.error("the journal of session %s… can't be continued: %s", session_id[:6], error)
        _keep_readable(path, found, reason=DAMAGED)
        return
    except OSError as error:
        found.error = error
        _keep_readable(path, found, reason=None)
        return
    try:
        live.abort_unended(at, STOPPED_NOTICE, NEVER_RAN_NOTICE)
    except OSError as error:
        found.error = error
    if live.is_complete:
        found.records[session_id] = live.record
        live.close()
    else:
        found.live[session_id] = live


def _keep_readable(path: Path, found: Recovered, *, reason: str | None) -> None:
    try:
        record = StoredSession.load(path).index.record(path)
    except (OSError, BadEntryError):
        return
    found.records[path.stem] = replace(record, ended_reason=reason or record.ended_reason)
