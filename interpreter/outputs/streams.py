"""The text of a stream under a limit: head and tail kept, the middle counted. Pure.

The text is folded as front ends show it. In each line, all up to the last carriage return that
another character follows is gone (as in nbclient's ``_RGX_CARRIAGERETURN``); then each backspace
removes the character before it, or nothing at the start of the line.
"""

import re

from interpreter.outputs.text import beginning, clean_text, end, utf8_length, utf8_pieces

# Bytes that a tail may overrun before it is trimmed, which makes trimming O(1) amortised. As a piece of
# text is never longer, a line within a piece folds alike whether it comes whole or in parts.
_SLACK = 1 << 18

_UNDO = 1 << 17  # bytes before the tail that stay when it is trimmed, for backspaces to uncover

_OVERWRITTEN = re.compile(rb"^[^\n]*\r(?=[^\n])", re.MULTILINE)
_RUBBED = re.compile("(?:[^\b\n]\b)++")  # characters that are removed at once
_AT_START = re.compile("\n\b++")  # of a line, where nothing is to be removed
_TYPED = re.compile("([^\b]*+)(\b*+)")  # text, and the backspaces after it


def marker(dropped: int) -> str:
    """The line that stands where ``dropped`` bytes were cut."""
    return f"\n[… {dropped:,} bytes not shown …]\n"


def _border(data: bytes | bytearray, at: int) -> int:
    """The first character border of UTF-8 ``data`` at or after ``at``."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at


def _border_before(data: bytes | bytearray, at: int) -> int:
    """The last character border of UTF-8 ``data`` at or before ``at``."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _pop(data: bytearray, count: int) -> int:
    """Remove up to ``count`` characters from the end of UTF-8 ``data``; how many there were."""
    if not count:
        return 0
    removed = data[_border(data, max(len(data) - 4 * count, 0)) :].decode()[-count:]
    del data[len(data) - utf8_length(removed) :]
    return len(removed)


def _erase(text: str) -> tuple[str, int]:
    """``text`` with its backspaces applied in each line, and how many were at the start with nothing to remove.

    Those that remove one character each are most, and too many for a loop.
    """
    text = _AT_START.sub("\n", _RUBBED.sub("", text))
    kept: list[str] = []
    begin = left = 0  # of the line in ``kept``
    for typed in _TYPED.finditer(text) if "\b" in text else ():
        if end := typed[1].rfind("\n") + 1:
            begin = len(kept) + end
        kept += typed[1]
        if (count := len(typed[2])) > len(kept) - begin:
            left += 0 if begin else count - len(kept)
            del kept[begin:]
        elif count:
            del kept[-count:]
    return "".join(kept) if "\b" in text else text, left


class Clip:
    """UTF-8 of which the first 3/4 of ``limit`` bytes and the last 1/4 are kept.

    The head is the longest prefix, on a character border, that fits; the tail takes what is left of
    ``limit``. How the text was divided into calls makes no difference, as text is dropped where its
    length says so. The head is open while all text is in it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head_limit = limit * 3 // 4
        self._head_open = True
        self.head = bytearray()
        self.tail = bytearray()
        self.dropped = 0

    @property
    def head_space(self) -> int:
        """Bytes that the head still takes."""
        return self._head_limit - len(self.head) if self._head_open else 0

    @property
    def size(self) -> int:
        """Bytes of head and tail; call `trim` before."""
        return len(self.head) + len(self.tail)

    def branch(self) -> "Clip":
        """An empty clip for text that may follow, or may be taken back; see `merge`."""
        branch = Clip(self._limit - len(self.head))
        branch._head_limit = self.head_space
        return branch

    def type(self, data: bytes) -> None:
        """Add ``data`` and apply its backspaces, which remove nothing from before this clip."""
        if b"\b" not in data:
            self.append(data)
            return
        text, left = _erase(data.decode())
        self.pop(left)
        self.append(text.encode())

    def append(self, data: bytes) -> None:
        """Add ``data``, whole characters of UTF-8."""
        if self._head_open:
            space = self._head_limit - len(self.head)
            if len(data) <= space:
                self.head += data
                return
            cut = _border_before(data, space)
            self.head += data[:cut]
            data = data[cut:]
            self._head_open = False
        most = 2 * (self._limit - len(self.head)) + _SLACK
        while len(self.tail) + len(data) > most:
            cut = _border_before(data, most - len(self.tail))
            self.tail += data[:cut]
            data = data[cut:]
            self.trim(_UNDO)
        self.tail += data

    def gap(self, lost: int) -> None:
        """``lost`` bytes are missing here, cut before they came: the head ends, and a new tail begins."""
        self.dropped += len(self.tail) + lost
        self.tail.clear()
        self._head_open = False

    def pop(self, count: int) -> None:
        """Remove the last ``count`` characters; what was dropped before the tail cannot be removed."""
        count -= _pop(self.tail, count)
        if not self.tail and not self.dropped:
            _pop(self.head, count)
            self._head_open = True

    def trim(self, undo: int = 0) -> None:
        """Drop what is more than ``undo`` bytes before the tail."""
        excess = len(self.tail) - (self._limit - len(self.head)) - undo
        if excess > 0:
            excess = _border(self.tail, excess)
            self.dropped += excess
            del self.tail[:excess]

    def merge(self, branch: "Clip") -> None:
        """Add what was gathered in a `branch` of this clip as it is now."""
        self.head += branch.head
        self._head_open = self._head_open and branch._head_open
        if branch.dropped:
            self.dropped += len(self.tail) + branch.dropped
            self.tail = bytearray(branch.tail)
        else:
            self.tail += branch.tail
        self.trim()

    def copy(self) -> "Clip":
        """A clip of its own with the same text."""
        copy = Clip(self._limit)
        copy._head_limit, copy._head_open = self._head_limit, self._head_open
        copy.head, copy.tail, copy.dropped = bytearray(self.head), bytearray(self.tail), self.dropped
        return copy

    def text(self) -> str:
        """Head and tail, with a `marker` between them if something was dropped."""
        self.trim()
        middle = marker(self.dropped) if self.dropped else ""
        return "".join((self.head.decode(), middle, self.tail.decode()))  # a sum would copy the head twice


def cut_text(text: str, limit: int) -> tuple[str, int]:
    """Clean ``text`` cut to ``limit`` bytes of head and tail, and the bytes that were dropped."""
    text = clean_text(text)  # the same one, mostly: it may be large
    return cut_clean(text, utf8_length(text), limit)


def cut_clean(text: str, size: int, limit: int) -> tuple[str, int]:
    """The same of a text that is clean already, and of so many bytes."""
    if size <= limit:
        return text, 0
    head, head_size = beginning(text, limit * 3 // 4)
    tail, tail_size = end(text, limit - head_size)
    dropped = size - head_size - tail_size
    return "".join((head, marker(dropped), tail)), dropped


def _fold_lines(data: bytes) -> bytes:
    """Whole lines with their carriage returns and backspaces applied."""
    if b"\r" in data:
        data = _OVERWRITTEN.sub(b"", data)
    if b"\b" in data:
        data = _erase(data.decode())[0].encode()
    return data


class StreamText:
    """The text of one stream output, folded and clipped while it comes.

    Memory is a few times ``limit`` and, until `settle`, up to 512 KiB. The first ``live`` bytes of the
    head, all of it by default, are for live events.
    """

    def __init__(self, limit: int, live: int | None = None) -> None:
        self._kept = Clip(limit)  # the lines that ended
        self._line: Clip | None = None  # the open line, which a carriage return can take back
        self._returned = False  # the open line ends with a carriage return
        self._not_live = 0 if live is None else self._kept.head_space - live

    @property
    def live_space(self) -> int:
        """Bytes of the head that are left for live events."""
        clip = self._kept if self._line is None else self._line
        return max(clip.head_space - max(self._not_live, 0), 0)

    def append(self, text: str) -> None:
        """Add printed text."""
        for data in utf8_pieces(text):
            self._append(data)

    def _append(self, data: bytes) -> None:
        first = data.find(b"\n") + 1
        if not first:
            self._extend_line(data)
            return
        last = data.rfind(b"\n") + 1
        if self._line is None:
            first = 0
        else:
            self._extend_line(data[: first - 1])
            self._line.append(b"\n")
            self._end_line()
        if first < last:
            self._kept.append(_fold_lines(data[first:last]))
        self._extend_line(data[last:])

    def _extend_line(self, data: bytes) -> None:
        if not data:
            return
        start = data.rfind(b"\r", 0, len(data) - 1) + 1
        if self._line is None or self._returned or start:
            self._line = self._kept.branch()
        self._line.type(data[start:] if start else data)
        self._returned = data.endswith(b"\r")

    def gap(self, lost: int) -> None:
        """``lost`` bytes of printed text are missing here; what is before them can't be taken back."""
        self._end_line()
        self._kept.gap(lost)

    def _end_line(self) -> None:
        if self._line is not None:
            self._kept.merge(self._line)
            self._line, self._returned = None, False

    def settle(self) -> int:
        """End the open line, as no text will follow, and return the bytes that are shown."""
        self._end_line()
        self._kept.trim()
        self._kept = self._kept.copy()  # with no room to grow
        return self._kept.size

    def snapshot(self) -> tuple[str, int, int]:
        """The folded text, the bytes of it that are shown, and the bytes that were dropped."""
        clip = self._kept.copy()
        if self._line is not None:
            clip.merge(self._line)
        text = clip.text()
        return text, clip.size, clip.dropped
