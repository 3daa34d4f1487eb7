"""The one place where the command line writes to the terminal."""

import re
import sys
from typing import TextIO

from interpreter.outputs import strip_ansi

_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_STEERING = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r\b"},
    **{code: f"\\u{code:04x}" for code in _BIDI},
}
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def say(text: str = "") -> None:
    """A line on standard output, at once."""
    write(sys.stdout, f"{text}\n")


def note(text: str) -> None:
    """A line on standard error: what is not a result."""
    write(sys.stderr, f"{text}\n")


def write(stream: TextIO, text: str) -> None:
    """Text as it is, at once; what the terminal's encoding lacks is escaped.

    Raises BrokenPipeError when nobody reads any more.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def can_write(stream: TextIO, text: str) -> bool:
    """Whether the terminal's encoding has these characters."""
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def coloured(text: str) -> str:
    """Text for a terminal that keeps its colours and what progress bars need, and steers nothing else.

    Other escape sequences would set the terminal's title or clipboard, or hide what was printed before.
    """
    parts = _COLOUR.split(text)
    parts[::2] = [strip_ansi(part).translate(_STEERING) for part in parts[::2]]
    return "".join(parts)


def harmless(text: str) -> str:
    """Text with its control characters shown, for what others wrote: none may steer the terminal."""
    return text.translate(_CONTROLS)


def counted(number: int, noun: str) -> str:
    """``1 session``, ``2 sessions``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows (the first is the header) as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
