"""A notebook as a page shows it: its runs in order, as far as a page goes. Blocking: call it in a thread.

The record has one cell per line, after a line that opens the list of them, so that a large notebook is
read a cell at a time, and only up to where the page is full.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

from interpreter.api.shown import MAX_PLAIN_BYTES, Shown, highlight, joined, rich_size, show_output
from interpreter.models import SessionInfo, in_seconds, parse_run_id

MAX_PAGE_BYTES = 2 * 1024**2
"""Of markup, without what is in frames."""

MAX_PAGE_CELLS = 300

_MAX_READ_BYTES = 32 * 1024**2
"""Of the notebook that are parsed for one page: some tenths of a second."""

_MAX_RICH_CHARS = 256 * 1024
"""Of HTML that are sanitised for one page: some seconds. What is above gets frames."""

_BEGIN = 16 * 1024
_OUTPUTS = b', "outputs": ['
_SOURCE = b'], "source": '
_MARKS = {
    "ok": "✓",
    "error": "✗",
    "timeout": "✗",
    "interrupted": "■",
    "cancelled": "■",
    "aborted": "■",
    "kernel_died": "✗",
}
_SENTENCES = {
    "queued": "waits for its turn",
    "running": "is running",
    "ok": "succeeded",
    "error": "raised an exception",
    "timeout": "timed out",
    "interrupted": "was interrupted",
    "aborted": "was aborted",
    "kernel_died": "lost its kernel",
    "cancelled": "was cancelled",
}


@dataclass(frozen=True, slots=True)
class ShownRun:
    """One cell of the page. ``facts`` and ``notices`` are sentences; ``outputs`` go with their frames' URLs."""

    number: int
    status: str
    mark: str
    sentence: str
    at: str | None
    facts: tuple[str, ...]
    notices: tuple[str, ...]
    source: str
    outputs: tuple[tuple[Shown, str], ...]
    late: frozenset[int]
    files: tuple[tuple[str, str, str], ...]


class _Room:
    """How much may still be sanitised."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, size: int) -> bool:
        """Whether ``size`` fits; it is then used up."""
        fits = size <= min(self.left, MAX_PLAIN_BYTES * 2)
        self.left -= size if fits else 0
        return fits


@dataclass(frozen=True, slots=True)
class NotebookPage:
    """The runs that are on the page; ``is_cut`` when there are more in the notebook."""

    runs: tuple[ShownRun, ...]
    is_cut: bool = False


def read_page(notebook: BinaryIO, info: SessionInfo) -> NotebookPage:
    """The page of a notebook that is open at its begin; ValueError when it is none of the record's."""
    runs: list[ShownRun] = []
    room, rich_room = MAX_PAGE_BYTES, _Room(_MAX_RICH_CHARS)
    for cell in _cells(notebook):
        run = _show(cell, info, rich_room)
        size = len(run.source) + sum(len(shown.html) + len(shown.note) + 200 for shown, _ in run.outputs)
        if size > room or len(runs) >= MAX_PAGE_CELLS:
            return NotebookPage(tuple(runs), is_cut=True)
        room -= size
        runs.append(run)
    return NotebookPage(tuple(runs))


def when(at: datetime | str | None) -> str:
    """A time for people: UTC, to the second."""
    return str(at or "")[:19].replace("T", " ")


def _cells(notebook: BinaryIO) -> Iterator[Mapping[str, Any]]:
    notebook.readline()
    room = _MAX_READ_BYTES
    for line in notebook:
        cell = line.rstrip().removesuffix(b",")
        if cell == b"]":
            return
        if len(cell) > room:
            cell = _without_outputs(cell)
        room = max(0, room - len(cell))
        yield json.loads(cell)


def _without_outputs(cell: bytes) -> bytes:
    """The line of a cell with a note in place of its outputs, without parsing them."""
    begin, end = cell.find(_OUTPUTS, 0, _BEGIN), cell.rfind(_SOURCE)
    if begin < 0 or end < begin:
        return cell
    output = {"output_type": "stream", "name": "stdout", "text": _left_out(end - begin)}
    return b"".join((cell[:begin], _OUTPUTS, json.dumps(output).encode(), cell[end:]))


def _left_out(size: int) -> str:
    return f"{size:,} bytes of outputs are not shown on this page; they are in the notebook file."


def _show(cell: Mapping[str, Any], info: SessionInfo, rich_room: _Room) -> ShownRun:
    about = cell.get("metadata", {}).get("interpreter", {})
    _, number = parse_run_id(str(about.get("run_id"))) or ("", 0)
    status = str(about.get("status", ""))
    return ShownRun(
        number=number,
        status=status,
        mark=_MARKS.get(status, "…"),
        sentence=_SENTENCES.get(status, status),
        at=about.get("started_at") or about.get("created_at"),
        facts=tuple(_facts(about, status, info)),
        notices=tuple(map(str, about.get("notices", ()))),
        source=highlight(joined(cell.get("source", "")), info.language or "python"),
        outputs=tuple(_outputs(cell, f"/v1/notebooks/{info.id}/frames/{number}", rich_room)),
        late=frozenset(about.get("late_outputs", ())),
        files=tuple(_files(about.get("files", ()))),
    )


def _outputs(cell: Mapping[str, Any], frames_url: str, rich_room: _Room) -> Iterator[tuple[Shown, str]]:
    for index, output in enumerate(cell.get("outputs", ())):
        shown = show_output(output, rich=rich_room.take(rich_size(output)))
        if len(shown.html) > MAX_PAGE_BYTES // 4:
            shown = Shown(note=_left_out(len(shown.html)), kind=shown.kind)
        yield shown, f"{frames_url}/{index}"


def _facts(about: Mapping[str, Any], status: str, info: SessionInfo) -> Iterator[str]:
    duration = about.get("duration_ms")
    if duration is not None:
        yield in_seconds(round(duration / 1000, 3))
    if status == "timeout" and about.get("timeout"):
        yield f"limit {in_seconds(about['timeout'])}"
    owner = about.get("owner", {})
    if owner.get("id") not in (None, info.owner_id):
        yield f"by {owner.get('name') or owner['id']}"
    if about.get("kernel_restarted"):
        yield "on a fresh kernel"
    if about.get("truncated"):
        yield f"{about.get('dropped_bytes', 0):,} bytes of output over the limits were left out"


def _files(files: Any) -> Iterator[tuple[str, str, str]]:
    """Path, what happened and size of each file that the run changed."""
    for file in files:
        yield str(file.get("path")), str(file.get("change")), f"{file.get('size', 0):,} bytes"
