"""The text of a stream under a limit: head and tail kept, the middle counted. Pure.

The text is folded as nbclient does with ``coalesce_streams`` (``nbclient/client.py``,
``async_execute_cell``): in each line, all up to the last carriage return that another character
follows is gone. Backspaces stay: the loop of nbclient that should apply them never runs.
"""

from .text import utf8_pieces

_SLACK = 1 << 16  # bytes a tail may overrun before it is trimmed, which makes trimming O(1) amortised


def marker(dropped: int) -> str:
    """The line that stands where ``dropped`` bytes were cut."""
    return f"\n[… {dropped:,} bytes not shown …]\n"


def _border(data: bytes | bytearray, at: int) -> int:
    """The first character border of UTF-8 ``data`` at or after ``at``."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at


def _border_before(data: bytes, at: int) -> int:
    """The last character border of UTF-8 ``data`` at or before ``at``."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


class Clip:
    """UTF-8 of which the first 3/4 of ``limit`` bytes and the last 1/4 are kept.

    The head is the longest prefix, on a character border, that fits; the tail takes what is left of
    ``limit``. How the text was divided into appends makes no difference.
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

    def branch(self) -> "Clip":
        """An empty clip for text that may follow, or may be taken back; see `merge`."""
        branch = Clip(self._limit - len(self.head))
        branch._head_limit = self.head_space
        branch._head_open = self._head_open
        return branch

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
        self.tail += data
        if len(self.tail) > 2 * (self._limit - len(self.head)) + _SLACK:
            self.trim()

    def trim(self) -> None:
        """Drop what is before the tail."""
        excess = len(self.tail) - (self._limit - len(self.head))
        if excess > 0:
            excess = _border(self.tail, excess)
            self.dropped += excess
            del self.tail[:excess]

    def merge(self, branch: "Clip") -> None:
        """Add what was gathered in a `branch` of this clip as it is now."""
        self.head += branch.head
        self._head_open = branch._head_open
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
        return self.head.decode() + middle + self.tail.decode()


def cut_text(text: str, limit: int) -> tuple[str, int]:
    """Clean ``text`` cut to ``limit`` bytes of head and tail, and the bytes that were dropped."""
    clip = Clip(limit)
    for data in utf8_pieces(text):
        clip.append(data)
    return clip.text(), clip.dropped


def _fold_lines(data: bytes) -> bytes:
    """Whole lines with their carriage returns applied."""
    if b"\r" not in data:
        return data
    return b"\n".join(line[line.rfind(b"\r", 0, max(len(line) - 1, 0)) + 1 :] for line in data.split(b"\n"))


class StreamText:
    """The text of one stream, folded and clipped while it comes; memory is a few times ``limit``."""

    def __init__(self, limit: int) -> None:
        self._kept = Clip(limit)  # the lines that ended
        self._line: Clip | None = None  # the open line, which a carriage return can take back
        self._returned = False  # the open line ends with a carriage return

    @property
    def head_space(self) -> int:
        """Bytes until the head is full."""
        return (self._kept if self._line is None else self._line).head_space

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
            self._kept.merge(self._line)
            self._line, self._returned = None, False
        if first < last:
            self._kept.append(_fold_lines(data[first:last]))
        self._extend_line(data[last:])

    def _extend_line(self, data: bytes) -> None:
        if not data:
            return
        start = data.rfind(b"\r", 0, len(data) - 1) + 1
        if self._line is None or self._returned or start:
            self._line = self._kept.branch()
        self._line.append(data[start:] if start else data)
        self._returned = data.endswith(b"\r")

    def snapshot(self) -> tuple[str, int, int]:
        """The folded text, the bytes of it that are shown, and the bytes that were dropped."""
        clip = self._kept.copy()
        if self._line is not None:
            clip.merge(self._line)
        text = clip.text()
        return text, len(clip.head) + len(clip.tail), clip.dropped
