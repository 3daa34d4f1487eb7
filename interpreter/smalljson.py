"""Small JSON, read and written by a fast library. Pure.

The standard one takes most of its time for small texts to set itself up. What the fast one refuses (`NaN`,
half of a surrogate pair, an unknown object) is left to it; whatever both take is the same value to both.
"""

from collections.abc import Callable
from typing import Any

import msgspec

SMALL = 4096
"""Bytes: as many hold neither too many values nor too many members, wherever these are limited."""

_read: Callable[[bytes | memoryview], Any] = msgspec.json.Decoder().decode
_write: Callable[[Any], bytes] = msgspec.json.Encoder().encode


class RefusedError(ValueError):
    """The standard library may take it."""


def read(data: bytes | memoryview) -> Any:
    """The value of JSON in UTF-8. RefusedError for what is none, and for some that the standard library takes."""
    try:
        return _read(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedError("no JSON, or none that is strict") from error


def write(value: Any) -> bytes:
    """Compact strict JSON, in which numbers that are not finite are null. RefusedError for what JSON does not know."""
    try:
        return _write(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RefusedError("the standard library may know what to do") from error
