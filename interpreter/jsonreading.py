"""Large JSON read piece by piece, so that other threads need not wait for long. Pure.

The JSON module lets no other thread go on before it has read all.
"""

import json
import re
from typing import Any

_PIECE = 10_000  # escapes of a string that are read at once
_MEMBERS = 100  # members of an object or a list that are read at once, if they are small
_SMALL = 30  # parts of a small member: at most so many in itself, and in each of these
_DEPTH = 200  # levels of what is large; beyond, all is read at once

_STRING = r'"(?:[^"\\]++|\\.){0,200}+"'
_PART = rf'[^\[\]{{}}"]++|{_STRING}'
_FLAT = rf"[\[{{](?:{_PART}){{0,{_SMALL}}}+[\]}}]"
_VALUE = rf'(?:{_STRING}|[^\s,\[\]{{}}":]++|[\[{{](?:{_PART}|{_FLAT}){{0,{_SMALL}}}+[\]}}])'
_ITEMS = re.compile(rf"(?:\s*+{_VALUE}\s*+,){{1,{_MEMBERS}}}+", re.DOTALL)
_PAIRS = re.compile(rf"(?:\s*+{_STRING}\s*+:\s*+{_VALUE}\s*+,){{1,{_MEMBERS}}}+", re.DOTALL)
_CHARS = re.compile(
    r'(?:[^"\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.)'
    rf"{{1,{_PIECE}}}+",
    re.DOTALL,
)
_SCALAR = re.compile(r'[^\s,\[\]{}":]++')
_SPACE = re.compile(r"[ \t\n\r]*+")


def read_in_pieces(text: str) -> Any:
    """``json.loads(text)``; raises what that raises."""
    reader = _Reader(text)
    try:
        value = reader.value(_DEPTH)
        reader.end()
    except ValueError:
        return json.loads(text)  # nested deeply, or no JSON
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def value(self, levels: int) -> Any:
        """The value at the present position. Raises ValueError."""
        begin = self._next()
        if begin == '"':
            return self._string()
        if begin not in ("[", "{"):
            return json.loads(self._take(_SCALAR))
        if not levels:
            raise ValueError("nested too deeply")
        self._position += 1
        return self._list(levels - 1) if begin == "[" else self._object(levels - 1)

    def end(self) -> None:
        """ValueError unless that was all."""
        if self._next():
            raise ValueError("more than one value")

    def _string(self) -> str:
        parts: list[str] = []
        self._position += 1
        while not self._text.startswith('"', self._position):
            parts.append(json.loads(f'"{self._take(_CHARS)}"'))
        self._position += 1
        return "".join(parts)

    def _list(self, levels: int) -> list[Any]:
        read: list[Any] = []
        if self._next() == "]":
            self._position += 1
            return read
        while True:
            while some := self._small(_ITEMS):
                read += json.loads(f"[{some}]")
            read.append(self.value(levels))
            if self._is_last("]"):
                return read

    def _object(self, levels: int) -> dict[str, Any]:
        read: dict[str, Any] = {}
        if self._next() == "}":
            self._position += 1
            return read
        while True:
            while some := self._small(_PAIRS):
                read.update(json.loads(f"{{{some}}}"))
            if self._next() != '"':
                raise ValueError("no name")
            name = self._string()
            if self._next() != ":":
                raise ValueError("a name without a value")
            self._position += 1
            read[name] = self.value(levels)
            if self._is_last("}"):
                return read

    def _small(self, pattern: "re.Pattern[str]") -> str:
        """A few small members without the comma behind them; none where a large one is next, or the last."""
        found = pattern.match(self._text, self._position)
        if found is None:
            return ""
        self._position = found.end()
        return found[0][:-1]

    def _is_last(self, closing: str) -> bool:
        after = self._next()
        if after not in (",", closing):
            raise ValueError("neither another member nor the end")
        self._position += 1
        return after == closing

    def _next(self) -> str:
        """The character at the next position that is no space; empty at the end."""
        self._take(_SPACE)
        return self._text[self._position : self._position + 1]

    def _take(self, pattern: "re.Pattern[str]") -> str:
        found = pattern.match(self._text, self._position)
        if found is None:
            raise ValueError("no JSON")
        self._position = found.end()
        return found[0]
