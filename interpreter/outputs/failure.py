"""Errors of user code: bounded outputs, and the line where they happened. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from interpreter.jsontext import is_light
from interpreter.models import JSON, RunError
from interpreter.outputs.streams import cut_text, marker
from interpreter.outputs.text import clean_json, clean_text, strip_ansi, utf8_length

_MAX_ENAME_BYTES = 1024
NO_NAME = "Error"
"""The name of an error that came without one."""

_ENTRY_COST = 64  # bytes that an entry takes besides its text, so that a million empty ones are bounded too
_LOOKED_AT = 1 << 17  # characters at the end of a traceback, where the innermost frame stands

# IPython's frames: "Cell In[3], line 2, in f()" since 8.0, "<ipython-input-3-1f...>" before.
_CELL_LINE = re.compile(r"^[ \t]*(?:Cell |Input )In ?\[(\d+)\], (?:in )?line (\d+)", re.MULTILINE)
_INPUT_LINE = re.compile(r"<ipython-input-(\d+)-\w+>\"?(?:, line |:)(\d+)")
# %%time and %%timeit compile the lines below them on their own, without the blank ones at their beginning.
_TIMED_LINE = re.compile(
    r"^[ \t]*File [\"<]+(?:timed exec|timed eval|magic-timeit)>\"?(?:, line |:)(\d+)", re.MULTILINE
)
# Plain tracebacks name the file that ipykernel makes up for a cell.
_FILE_LINE = re.compile(r"ipykernel_\d+[/\\]\d+\.py\", line (\d+), in <module>")


def read_error(content: Mapping[str, Any], limit: int, value_limit: int) -> tuple[JSON, int]:
    """The nbformat error output of an ``error`` or a reply, and the bytes that were dropped.

    Name, value and traceback are bounded: ``limit`` bytes are kept of the traceback, ``value_limit`` of
    the value, in which some clients carry data (smolagents' final answer, a picture for example).
    """
    ename, dropped_name = cut_text(_text(content.get("ename")) or NO_NAME, _MAX_ENAME_BYTES)
    evalue, dropped_value = cut_text(_text(content.get("evalue")), value_limit)
    lines = content.get("traceback")
    if isinstance(lines, str):
        lines = [lines]
    entries = [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
    traceback, dropped = _cut_traceback(entries, limit)
    output = {"output_type": "error", "ename": ename, "evalue": evalue, "traceback": traceback}
    return output, dropped_name + dropped_value + dropped


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None or not is_light(value) else str(clean_json(value))


def _cut_traceback(entries: list[str], limit: int) -> tuple[list[str], int]:
    """The first and the last entries, each cut to a quarter of the limit when all are too much."""
    if utf8_length("".join(entries)) + len(entries) * _ENTRY_COST <= limit:
        return [clean_text(entry) for entry in entries], 0
    head, head_dropped, start = _take(entries, limit // 4, limit // 4)
    rest = entries[start:]
    tail, tail_dropped, taken = _take(rest[::-1], limit * 3 // 4, limit // 4)
    skipped = rest[: len(rest) - taken]
    dropped = utf8_length("".join(skipped))
    middle = [marker(dropped)] if skipped else []
    return head + middle + tail[::-1], head_dropped + tail_dropped + dropped


def _take(entries: list[str], room: int, longest: int) -> tuple[list[str], int, int]:
    """Entries from the start while there is room: cut entries, bytes dropped, how many."""
    taken: list[str] = []
    dropped = 0
    for entry in entries:
        text, lost = cut_text(entry, longest)
        room -= utf8_length(entry) - lost + _ENTRY_COST
        if room < 0 and (taken or longest < _ENTRY_COST):
            break
        taken.append(text)
        dropped += lost
    return taken, dropped, len(taken)


def choose_error(shown: Sequence[JSON], status: str | None, reply: JSON | None) -> JSON | None:
    """The error that ended a run, of the iopub errors, and the reply's status and error.

    The reply's word counts, and the shown error of that name has the traceback that people saw. A
    reply with IPython's ``NoneType`` (a ``__repr__`` that raised) names nothing: the last shown
    error does. After a good reply there is no error, whatever was shown on the way; without a reply
    (the kernel died, or has not answered yet) it is the last shown one.
    """
    if status is None:
        return shown[-1] if shown else None
    if reply is None:
        return None
    for error in reversed(shown):
        if error["ename"] == reply["ename"]:
            return error
    return shown[-1] if shown and reply["ename"] in (NO_NAME, "NoneType") else reply


def run_error(output: JSON, code: str, count: int | None, stderr: str) -> RunError:
    """The error as a run tells it: without ANSI, with the line of the user's code.

    ``count`` is the run's execution count; ``stderr`` is looked at when there is no traceback, as
    IPython prints some there (exception groups).
    """
    traceback = tuple(strip_ansi(line) for line in output["traceback"])
    return RunError(
        ename=strip_ansi(output["ename"]),
        evalue=strip_ansi(output["evalue"]),
        traceback=traceback,
        line=_find_line("\n".join(traceback)[-_LOOKED_AT:], code, count, stderr[-_LOOKED_AT:]),
    )


def _find_line(text: str, code: str, count: int | None, stderr: str) -> int | None:
    """The 1-based line of ``code`` where the innermost frame within this cell stands."""
    lines = code.split("\n")
    # IPython removes leading blank lines before it counts.
    blank = _count_blank(lines)
    found = _timed_line(text, lines[blank:]) if text else None
    if found is None:
        frames = [*_CELL_LINE.finditer(text), *_INPUT_LINE.finditer(text)]
        frames.sort(key=re.Match.start)
        own = [int(frame[2][:9]) for frame in frames if count is None or frame[1] == str(count)]
        if not own and not text.strip():
            own = [int(frame[1][:9]) for frame in _FILE_LINE.finditer(stderr)]
        found = own[-1] if own else None
    if found is None or not 1 <= found + blank <= len(lines):
        return None
    return found + blank


def _timed_line(text: str, lines: Sequence[str]) -> int | None:
    if not lines[0].startswith("%%time"):
        return None
    frames = _TIMED_LINE.findall(text)
    return int(frames[-1][:9]) + 1 + _count_blank(lines[1:]) if frames else None


def _count_blank(lines: Sequence[str]) -> int:
    """How many blank lines stand before the first other one; none where there is no other."""
    return next((n for n, line in enumerate(lines) if line.strip()), 0)
