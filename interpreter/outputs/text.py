"""Text and JSON from a kernel made safe for strict JSON and notebooks. Pure."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from interpreter.jsontext import count_values, dump

_PIECE_CHARS = 1 << 16  # so that a 100 MB message is never encoded in one go
_MANY_SEQUENCES = 100_000  # of one text, up to four that follow each other counted as one
_MAX_DEPTH = 100  # nbformat copies recursively, several Python frames per level
_MAX_INT_BITS = 10_000  # Python refuses to write longer integers as decimal text

_SURROGATE = re.compile("[\ud800-\udfff]")
_ANSI = re.compile(
    r"(?:\x1b(?:"
    r"\[[0-?]*+[ -/]*+[@-~]"  # CSI: colours, cursor
    r"|\][^\x07\x1b]*+(?:\x07|\x1b\\)"  # OSC: window titles, hyperlinks
    r"|[ -/]*+[0-~]?"  # two-character escapes, and what is left of broken ones
    r")){1,4}+"
)


def strip_ansi(text: str) -> str:
    """``text`` without ANSI escape sequences; of what has very many, the rest loses only their first characters."""
    if "\x1b" not in text:
        return text
    text, count = _ANSI.subn("", text, _MANY_SEQUENCES)
    return text if count < _MANY_SEQUENCES else text.replace("\x1b", "")


def clean_text(text: str) -> str:
    """``text`` with each lone surrogate replaced by U+FFFD, so that it can be written as UTF-8.

    In a text that holds very many, the rest becomes question marks, which is much faster.
    """
    if text.isascii():
        return text
    text, count = _SURROGATE.subn("\ufffd", text, _PIECE_CHARS)
    return text if count < _PIECE_CHARS else text.encode("utf-8", "replace").decode()


def utf8_pieces(text: str) -> Iterator[bytes]:
    """The cleaned UTF-8 of ``text`` in pieces that each hold whole characters."""
    for start in range(0, len(text), _PIECE_CHARS):
        yield clean_text(text[start : start + _PIECE_CHARS]).encode()


def utf8_length(text: str) -> int:
    """Bytes of ``text`` as UTF-8 when it is clean."""
    if text.isascii():
        return len(text)
    starts = range(0, len(text), _PIECE_CHARS)
    return sum(len(text[start : start + _PIECE_CHARS].encode("utf-8", "surrogatepass")) for start in starts)


def beginning(text: str, limit: int) -> tuple[str, int]:
    """As much of the beginning of a clean ``text`` as fits in ``limit`` bytes, and its bytes."""
    place, room, fits = 0, limit, True
    while fits and (data := text[place : place + _PIECE_CHARS].encode()):
        fits = len(data) <= room
        piece = data[:room].decode(errors="ignore")  # without the part of a character
        place += len(piece)
        room -= len(piece.encode())
    return text[:place], limit - room


def end(text: str, limit: int) -> tuple[str, int]:
    """The same of its end."""
    place, room, fits = len(text), limit, True
    while fits and (data := text[max(place - _PIECE_CHARS, 0) : place].encode()):
        fits = len(data) <= room
        piece = data[max(len(data) - room, 0) :].decode(errors="ignore")
        place -= len(piece)
        room -= len(piece.encode())
    return text[place:], limit - room


def clean_json(value: Any) -> Any:
    """A copy of ``value`` that strict JSON can hold.

    NaN and infinities become None, text is cleaned, keys become text, tuples lists, and what is
    nested more than 100 levels deep None. Values of any other type become their text.
    """
    return _clean(value, 0)


def _clean(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INT_BITS else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping | list | tuple):
        if depth >= _MAX_DEPTH:
            return None
        if isinstance(value, Mapping):
            return {clean_text(str(key)): _clean(item, depth + 1) for key, item in value.items()}
        return [_clean(item, depth + 1) for item in value]
    return clean_text(str(value))


def sized_json(value: Any) -> tuple[Any, int, int]:
    """``value`` or a clean copy of it, its bytes as JSON, and how many values it holds (`count_values`).

    What is clean already, nearly always, costs no more than its encoding: a copy of a large value would
    take much memory for a moment.
    """
    try:
        encoded = str(dump(value, allow_nan=False), "latin-1")
        if encoded.count("[") + encoded.count("{") <= _MAX_DEPTH or not _is_deep(value):
            return value, len(encoded), count_values(encoded)
    except (TypeError, ValueError, RecursionError):
        pass
    copy = clean_json(value)
    encoded = str(dump(copy), "latin-1")
    return copy, len(encoded), count_values(encoded)


def _is_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MAX_DEPTH):
        if not level:
            return False
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
    return bool(level)
