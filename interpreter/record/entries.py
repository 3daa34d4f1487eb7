"""One line of a journal: encode it, read it, prove it. Pure.

A line is strict JSON in UTF-8 with its keys in this order and no spaces between them::

    {"seq":1,"at":"2026-01-01T00:00:00.000000Z","kind":"run_accepted","data":{…},"mac":"<64 hex digits>"}

``mac`` is HMAC-SHA256, under the record's key, of the 32 bytes of the previous entry's mac followed by
the line's own bytes up to ``,"mac":``. The first entry takes `genesis` for the previous mac, so that a
journal also can't pass for another session's. The mac is over the bytes as they stand in the file, so
nothing depends on how JSON is written by other programs.
"""

import hashlib
import hmac
import json
import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from interpreter.jsontext import dump_compact, read_utf8
from interpreter.models import JSON, from_iso, to_iso

FORMAT = 1
"""Version of the journal's format, in each `SESSION_STARTED` entry."""

MAC_BYTES = 32
SESSION_STARTED = "session_started"
RUN_ACCEPTED = "run_accepted"
RUN_ENDED = "run_ended"
RUN_AMENDED = "run_amended"
KERNEL_NOTED = "kernel_noted"
JOURNAL_MENDED = "journal_mended"
SESSION_ENDED = "session_ended"
SESSION_REMOVED = "session_removed"

_SMALL_BODY = 4096  # bytes
_MAC_PREFIX = b',"mac":"'
_MAC_SUFFIX = b'"}\n'
_TAIL_BYTES = len(_MAC_PREFIX) + 2 * MAC_BYTES + len(_MAC_SUFFIX)
_MAX_DEPTH = 100
_RAW_LEVELS = 8  # three above an output, and less than the levels of it in which `dump` finds large texts


class BadEntryError(ValueError):
    """A line that is not an entry, or whose mac does not prove it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a journal. ``seq`` counts from 1; ``mac`` is the raw 32 bytes."""

    seq: int
    at: datetime
    kind: str
    data: JSON
    mac: bytes

    @property
    def number(self) -> int | None:
        """The number of the run that the entry is about, None when it is about the session."""
        number = self.data.get("run")
        return number if isinstance(number, int) else None


def genesis(key: bytes, journal_id: str) -> bytes:
    """The mac that stands before the first entry of a journal."""
    return hmac.digest(key, b"journal\0" + journal_id.encode(), "sha256")


def key_id(key: bytes) -> str:
    """A public name of a key (16 hex digits), to tell which key a journal was written with."""
    return hashlib.sha256(b"record key\0" + key).hexdigest()[:16]


def encode(
    seq: int, at: datetime, kind: str, data: JSON, *, previous: bytes, key: bytes
) -> tuple[bytes, bytes]:
    """The line of an entry and its mac. Values that JSON does not know are made into ones it does."""
    body = memoryview(_dumps({"seq": seq, "at": to_iso(at), "kind": kind, "data": data}))[:-1]
    mac = _mac(key, previous, body)
    return b"".join((body, _MAC_PREFIX, mac.hex().encode(), _MAC_SUFFIX)), mac


def decode(line: bytes, *, raw: bool = False) -> Entry:
    """The entry that a line (with its newline) says it is; raises BadEntryError. Proves nothing yet.

    With ``raw``, large texts in the outputs of a run may be `Utf8`.
    """
    tail = line[-_TAIL_BYTES:]
    if not (tail.startswith(_MAC_PREFIX) and tail.endswith(_MAC_SUFFIX)):
        raise BadEntryError("the line is not an entry")
    digits = tail[len(_MAC_PREFIX) : -len(_MAC_SUFFIX)]
    try:
        mac = bytes.fromhex(digits.decode("ascii"))
        lines = [line]
        del line  # it may be large, and the caller may have no more use for it
        value = read_utf8(lines.pop(), raw_levels=_RAW_LEVELS if raw else 0)
        at = from_iso(value["at"])
        seq, kind, data = value["seq"], value["kind"], value["data"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadEntryError("the line is not an entry") from error
    if mac.hex().encode() != digits or at is None or at.tzinfo is None:
        raise BadEntryError("the line is not an entry")
    if type(seq) is not int or not isinstance(kind, str) or not isinstance(data, dict):
        raise BadEntryError("the line is not an entry")
    return Entry(seq, at, kind, data, mac)


def proves(line: bytes, entry: Entry, *, previous: bytes, key: bytes) -> bool:
    """Whether ``line`` (which `decode` read as ``entry``) was written with ``key`` after ``previous``."""
    return hmac.compare_digest(mac_of(line, previous=previous, key=key), entry.mac)


def mac_of(line: bytes, *, previous: bytes, key: bytes) -> bytes:
    """The mac that a line should have after ``previous``."""
    return _mac(key, previous, memoryview(line)[:-_TAIL_BYTES])


def _mac(key: bytes, previous: bytes, body: memoryview) -> bytes:
    if len(body) <= _SMALL_BODY:
        return hmac.digest(key, previous + body, "sha256")  # much faster, but of a copy
    mac = hmac.new(key, previous, "sha256")
    mac.update(body)
    return mac.digest()


def _dumps(value: JSON) -> bytes:
    """Compact strict JSON. What UTF-8 can't hold (lone surrogates) stays exact as an escape."""
    try:
        return _exact(value)
    except (ValueError, TypeError, RecursionError):
        return _exact(_strict(value, 0))


def _exact(value: JSON) -> bytes:
    try:
        return dump_compact(value, allow_nan=False)
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _strict(value: Any, depth: int) -> Any:
    """``value`` with NaN and infinities as null, unknown objects as text, and a bounded depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if depth >= _MAX_DEPTH:
        return "(nested too deeply)"
    if isinstance(value, dict):
        return {str(name): _strict(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item, depth + 1) for item in value]
    return str(value)
