"""Large JSON, read and written in little memory. Pure.

A value of two bytes of JSON takes a hundred of memory: a text of ten megabytes may need half a
gigabyte, and seconds. So members of an object that hold too many are found by their text alone.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from interpreter import smalljson
from interpreter.jsonreading import read_in_pieces

MAX_VALUES = 400_000
"""Of one message, and of all displays of a run. An object or a list counts as 4 beside what it holds, as it takes so much more memory."""

MAX_MEMBERS = 1000
"""Of a bundle of MIME types: each is looked at by itself, again and again."""

_CONTAINER = 4
_PIECE_ITEMS = 20_000
_PIECE_CHARS = 1 << 16  # of a text whose values are counted
_FEW = 5000  # so many may be counted too high
_AT_ONCE = 500  # values that are written at once; each may be an integer of thousands of digits
_DEPTH = 30  # levels of a member that is measured; plotly's and Vega's have about six
_LARGE_TEXT = 1 << 18  # characters
_BEGINNING = 1 << 22  # characters; what has too many values mostly shows it soon
_MANY = 10_000
_MAX_MEASURED = 10_000  # members of an object that are measured one by one
_STRING = r'"(?:[^"\\]++|\\.)*+"'


def _nested(depth: int) -> str:
    """The pattern of what an object or a list holds. It never backtracks, so its time is that of reading."""
    inside = rf'(?:[^\[\]{{}}"]++|{_STRING})*+'
    for _ in range(depth):
        inside = rf'(?:[^\[\]{{}}"]++|{_STRING}|[\[{{]{inside}[\]}}])*+'
    return inside


@cache  # seldom needed, and slow to compile
def _items() -> "re.Pattern[str]":
    """A part of what an object or a list holds: so short that other threads need not wait for long."""
    item = rf'[^\[\]{{}}"]++|{_STRING}|[\[{{]{_nested(_DEPTH)}[\]}}]'
    return re.compile(rf"(?:{item}){{1,{_PIECE_ITEMS}}}+", re.DOTALL)


_SCALAR = re.compile(rf'{_STRING}|[^\s,\[\]{{}}":]++', re.DOTALL)
_OPEN = re.compile(r"[\[{]")
_CLOSE = re.compile(r"[\]}]")
_BEGIN = re.compile(r"\s*+\{\s*+")
_NAME = re.compile(rf"\s*+({_STRING})\s*+:\s*+", re.DOTALL)
_NEXT = re.compile(r"\s*+([,}])")
_WIDE_ESCAPE = re.compile(r"\\u(?!00[0-7])")  # a character beyond ASCII, as an escape


@dataclass(frozen=True, slots=True)
class Unread:
    """Stands for a value that was not parsed, as it holds too many. ``size``: bytes of its JSON."""

    size: int


class Utf8(str):
    """A large text as its bytes: each character stands for one. Only `dump` knows what it means."""

    __slots__ = ()


def count_values(text: str) -> int:
    """About how many values JSON holds, from its punctuation; not fewer than it does.

    If they are more than `MAX_VALUES`, any number above.
    """
    count = _count(text)
    if count <= _FEW or '"' not in text:
        return count
    if "\\" in text:
        text = text.replace(r"\\", "").replace(r"\"", "")  # each quote that is left begins or ends a string
    count, within = 1, 0
    for start in range(0, len(text), _PIECE_CHARS):
        parts = text[start : start + _PIECE_CHARS].split('"')
        count += _count("".join(parts[within::2])) - 1  # every other part is of a string
        within = (within + len(parts) - 1) % 2
        if count > MAX_VALUES:
            break
    return count


def has_too_many(text: str) -> bool:
    """Whether JSON holds more than `MAX_VALUES`; sooner known than their number."""
    if len(text) > _BEGINNING and count_values(text[:_BEGINNING]) > MAX_VALUES:
        return True
    return _count(text) > MAX_VALUES and count_values(text) > MAX_VALUES


def _count(text: str) -> int:
    return 1 + text.count(",") + _CONTAINER * (text.count("[") + text.count("{"))


def load_utf8(
    data: bytes | memoryview, bundle: Sequence[str] = ("data",), *, errors: str = "strict"
) -> tuple[Any, int]:
    """`load` for the UTF-8 of JSON text; raises UnicodeDecodeError, unless ``errors`` says otherwise."""
    if len(data) <= smalljson.SMALL:
        with suppress(smalljson.RefusedError):
            return smalljson.read(data), 0
    text, is_bytes = _readable(data, errors)
    value, lost = _load(text, bundle, is_bytes=is_bytes)
    del text
    return (_restored(value, errors) if is_bytes else value), lost


def read_utf8(data: bytes | memoryview, *, raw_levels: int = 0) -> Any:
    """``json.loads`` for the UTF-8 of JSON text. In the first levels of containers, so many, a large text is a `Utf8`.

    Raises ValueError, RecursionError.
    """
    text, is_bytes = _readable(data, "strict")
    del data
    value = _read(text)
    del text
    return _restored(value, "strict", raw_levels) if is_bytes else value


def _read(text: str) -> Any:
    few = len(text) < _LARGE_TEXT or _count(text) < _AT_ONCE
    return json.loads(text) if few else read_in_pieces(text)


def _readable(data: bytes | memoryview, errors: str) -> tuple[str, bool]:
    """The text, and whether each of its characters stands for a byte.

    One emoji makes Python keep four bytes for each character of a text. So what is large is parsed as bytes,
    which JSON's syntax allows, and only its strings become what they are.
    """
    if len(data) >= _LARGE_TEXT:
        text = str(data, "latin-1")
        if text.isascii() or not _WIDE_ESCAPE.search(text):
            return text, not text.isascii()
    return str(data, "utf-8", errors), False


def _restored(value: Any, errors: str, raw_levels: int = 0) -> Any:
    """The value, changed in place, with its strings read as the UTF-8 that their characters stand for."""

    def restore(text: str, *, raw: bool = False) -> str:
        if text.isascii():
            return text
        return (
            Utf8(text) if raw and len(text) >= _LARGE_TEXT else text.encode("latin-1").decode("utf-8", errors)
        )

    whole = [value]
    left: list[tuple[Any, int]] = [(whole, 0)]
    while left:
        holder, level = left.pop()
        if isinstance(holder, dict) and not all(map(str.isascii, holder)):
            members = [(restore(name), item) for name, item in holder.items()]
            holder.clear()
            holder.update(members)
            del members
        if len(holder) > _MANY:  # mostly small ones
            level = raw_levels + 1
        raw = 0 < level <= raw_levels
        for place in list(holder) if isinstance(holder, dict) else range(len(holder)):
            if isinstance(holder[place], str):
                holder[place] = restore(holder[place], raw=raw)
            elif isinstance(holder[place], dict | list):
                left.append((holder[place], level + 1))
    return whole[0]


def load(text: str, bundle: Sequence[str] = ("data",)) -> tuple[Any, int]:
    """The value of JSON text, and the bytes of it that were left out.

    When an object holds too many values, the members for which there is no room are left out. Inside the
    object at the path ``bundle`` an `Unread` takes the place of such a member, and after `MAX_MEMBERS` of it the
    others are left out. All is left out of what holds too many values and is no object, or one that is nested
    deeply or has very many members. Raises ValueError for what is no
    JSON; RecursionError.
    """
    return _load(text, bundle, is_bytes=False)


def _load(text: str, bundle: Sequence[str], *, is_bytes: bool) -> tuple[Any, int]:
    if not has_too_many(text):
        value = _read(text)
        return value, _leave_out(value, bundle) if text.count('":') > MAX_MEMBERS else 0
    members = _Members(text, is_bytes=is_bytes)
    try:
        return members.read(bundle), members.lost
    except ValueError:
        return {}, members.size(text)


def _leave_out(value: Any, bundle: Sequence[str]) -> int:
    """Takes from the object at the path ``bundle`` all members but the first; the bytes of these."""
    for name in bundle:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, dict) or len(value) <= MAX_MEMBERS:
        return 0
    rest = {name: value.pop(name) for name in list(value)[MAX_MEMBERS:]}
    return len(json.dumps(rest))


def dump(value: Any, **options: Any) -> bytes:
    """The UTF-8 of ``json.dumps(value, ensure_ascii=False, **options)``; raises what that raises, and UnicodeEncodeError.

    What is large is encoded piece by piece, so that no piece holds up other threads for long. As a part of the
    whole text, large ones would be in memory several times, and with up to four bytes for each character.
    """
    options.setdefault("ensure_ascii", False)
    if is_light(value):
        return json.dumps(value, **options).encode()
    return b"".join(_Pieces(options).of(value))


def dump_compact(value: Any, *, allow_nan: bool = True) -> bytes:
    """`dump` without spaces. Numbers that are not finite may be null, whatever ``allow_nan`` says."""
    if is_light(value):
        with suppress(smalljson.RefusedError):
            return smalljson.write(value)
    return dump(value, allow_nan=allow_nan, separators=(",", ":"))


def is_light(value: Any, large_text: int = _LARGE_TEXT) -> bool:
    """Whether the value has so few others, and no large text, that its JSON is written in no time."""
    if isinstance(value, str):
        return len(value) < large_text
    left, count = [value] if isinstance(value, dict | list) else [], 0
    for holder in left:
        count += len(holder)
        if count > _AT_ONCE:
            return False
        for item in holder.values() if isinstance(holder, dict) else holder:
            kind = type(item)
            if kind is str or kind is Utf8:
                if len(item) >= large_text:
                    return False
            elif (kind is dict or kind is list) and item:
                left.append(item)
    return True


def has_few_values(value: Any) -> bool:
    """Whether no more than texts make its JSON large, which take a hundredth of a second for ten megabytes."""
    return is_light(value, sys.maxsize)


_RAW, _VALUE, _MEMBERS, _PARTS = range(4)
"""Bytes as they are; a value; what a dict or a list holds, without its brackets; more such parts of one."""


class _Pieces:
    """JSON of values in pieces, none of which takes long."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._comma = (options.get("separators") or (", ",))[0].encode()
        self._texts: dict[int, list[bytes]] = {}  # a run holds some large ones twice

    def of(self, value: Any) -> Iterator[bytes]:
        """The JSON of the value. Not by recursion, as that would end before the JSON module's does."""
        left = [(_VALUE, value)]
        while left:
            kind, value = left.pop()
            if kind == _RAW:
                yield value
            elif kind == _PARTS:
                if (part := next(value, None)) is not None:
                    yield self._comma
                    left += (_PARTS, value), (_MEMBERS, part)
            elif is_light(value):
                yield self._whole(value) if kind == _VALUE else self._whole(value)[1:-1]
            elif isinstance(value, str):
                yield from self._text(value)
            elif kind == _VALUE:
                brackets = b"{}" if isinstance(value, dict) else b"[]"
                yield brackets[:1]
                left += (_RAW, brackets[1:]), (_MEMBERS, value)
            elif len(value) > 1:
                parts = self._divided(value)
                left += (_PARTS, parts), (_MEMBERS, next(parts))
            elif isinstance(value, dict):
                [(name, member)] = value.items()
                yield self._whole({name: 0})[1:-2]
                left.append((_VALUE, member))
            else:
                left.append((_VALUE, value[0]))

    def _divided(self, holder: Any) -> Iterator[Any]:
        """A dict or a list of more than one member as two or more."""
        step = min(_AT_ONCE, (len(holder) + 1) // 2)
        starts = range(0, len(holder), step)
        if isinstance(holder, dict):
            names = sorted(holder) if self._options.get("sort_keys") else list(holder)
            return ({name: holder[name] for name in names[start : start + step]} for start in starts)
        return (holder[start : start + step] for start in starts)

    def _whole(self, value: Any) -> bytes:
        return json.dumps(value, **self._options).encode()

    def _text(self, text: str) -> list[bytes]:
        if id(text) not in self._texts:
            encoding = "latin-1" if isinstance(text, Utf8) else "utf-8"
            pieces = (text[start : start + _LARGE_TEXT] for start in range(0, len(text), _LARGE_TEXT))
            escaped = (json.dumps(piece, **self._options)[1:-1].encode(encoding) for piece in pieces)
            self._texts[id(text)] = [b'"', *escaped, b'"']
        return self._texts[id(text)]


class _Members:
    """Reads an object member by member, up to `MAX_VALUES` values."""

    def __init__(self, text: str, *, is_bytes: bool = False) -> None:
        self.lost = 0
        self._text = text
        self._is_bytes = is_bytes
        self._position = 0
        self._room = MAX_VALUES

    def read(self, path: Sequence[str]) -> dict[str, Any]:
        """The object at the present position. Raises ValueError."""
        kept: dict[str, Any] = {}
        self._take(_BEGIN)
        end = ""
        most = _MAX_MEASURED if path else MAX_MEMBERS
        if self._text.startswith("}", self._position):
            self._position += 1
            return kept
        while end != "}":
            most -= 1
            if most < 0:
                raise ValueError("an object of very many members")
            name = json.loads(self._take(_NAME)[1])
            if path and name == path[0] and self._text.startswith("{", self._position):
                kept[name] = self.read(path[1:])
            else:
                self._read_value(kept, name, within=not path)
            end = self._take(_NEXT)[1]
        return kept

    def size(self, text: str) -> int:
        """Bytes of a part of the text."""
        return len(text) if self._is_bytes or text.isascii() else len(text.encode("utf-8", "replace"))

    def _read_value(self, kept: dict[str, Any], name: str, *, within: bool) -> None:
        value = self._take_value()
        values = count_values(value)
        if values <= self._room:
            self._room -= values
            kept[name] = json.loads(value)
        elif within:
            kept[name] = Unread(self.size(value))
        else:
            self.lost += self.size(value)

    def _take_value(self) -> str:
        begin = self._position
        if self._text[begin : begin + 1] not in "[{":
            return self._take(_SCALAR)[0]
        self._take(_OPEN)
        while part := _items().match(self._text, self._position):
            self._position = part.end()
        self._take(_CLOSE)
        return self._text[begin : self._position]

    def _take(self, pattern: "re.Pattern[str]") -> "re.Match[str]":
        found = pattern.match(self._text, self._position)
        if found is None:
            raise ValueError("no JSON object, or one that is nested too deeply")
        self._position = found.end()
        return found
