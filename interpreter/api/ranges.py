"""Conditional and partial requests for one file (RFC 9110, sections 13 and 14). Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

from interpreter.errors import RangeNotSatisfiableError


def http_date(at: datetime) -> str:
    """The form of ``Last-Modified``; it has whole seconds."""
    return format_datetime(at.astimezone(UTC).replace(microsecond=0), usegmt=True)


def is_unchanged(headers: Mapping[str, str], etag: str, modified_at: datetime) -> bool:
    """Whether the client has the file already (304). ``etag`` with its quotes."""
    if "If-None-Match" in headers:
        known = [mark.strip().removeprefix("W/") for mark in headers["If-None-Match"].split(",")]
        return "*" in known or etag in known
    since = _date(headers.get("If-Modified-Since", ""))
    return since is not None and modified_at.replace(microsecond=0) <= since


def find_range(headers: Mapping[str, str], size: int, etag: str, modified_at: datetime) -> range | None:
    """The bytes that are asked for; None for all of them.

    Several ranges, other units and nonsense count as if nothing had been said, as the RFC allows.
    Raises RangeNotSatisfiableError when none of the bytes exist.
    """
    condition = headers.get("If-Range")
    if condition is not None and condition.strip() not in (etag, http_date(modified_at)):
        return None
    unit, _, wanted = headers.get("Range", "").partition("=")
    first, dash, last = (text.strip() for text in wanted.partition("-"))
    if unit.strip().lower() != "bytes" or not dash or not all(map(_is_number, filter(None, (first, last)))):
        return None
    if first:
        if last and int(last) < int(first):
            return None
        found = range(int(first), min(int(last) + 1 if last else size, size))
    elif last:
        found = range(max(0, size - int(last)), size)
    else:
        return None
    if not found:
        raise RangeNotSatisfiableError(f"The file has {size} bytes; ask for a range of them.", param="Range")
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _date(text: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
