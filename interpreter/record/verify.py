"""Does a session's record still say what was written? Blocking, read-only.

Each problem is a sentence that names the run or the entry it is about. What can't be found: entries
cut off by someone who can also write to ``state_dir``, and what someone forged who has the key.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from interpreter.models import SessionInfo
from interpreter.record.entries import (
    RUN_ACCEPTED,
    RUN_AMENDED,
    RUN_ENDED,
    SESSION_STARTED,
    BadEntryError,
    Entry,
    decode,
    genesis,
    key_id,
    mac_of,
    proves,
)
from interpreter.record.journal import Head, read_head, read_lines
from interpreter.record.layout import Layout, open_file
from interpreter.record.notebook import rendered_entries
from interpreter.record.stored import StoredSession

_MAX_PROBLEMS = 50
_END_BYTES = 1 << 20
_SUBJECTS = {
    RUN_ACCEPTED: "the code of run",
    RUN_ENDED: "the outcome of run",
    RUN_AMENDED: "an amendment of run",
}


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer: ``runs`` counts the runs that the journal holds."""

    valid: bool
    runs: int
    problems: tuple[str, ...]


def verify_session(layout: Layout, key: bytes | None, path: Path, *, pending: bool) -> Verification:
    """Check a journal, its place, its end and its notebook.

    ``pending``: the session goes on, so the notebook may lag (it tells how far it is) and the last line
    may be half written.
    """
    with contextlib.ExitStack() as stack:
        # Opened before the journal is read, so that it can't be newer than what was read of that.
        notebook: BinaryIO | None = None
        try:
            with contextlib.suppress(FileNotFoundError):
                notebook = stack.enter_context(open_file(path.with_suffix(".ipynb")))
            return _verify(layout, key, path, notebook, pending=pending)
        except OSError as error:
            return Verification(False, 0, (f"The record of the session can't be read: {error.strerror}.",))


def _verify(
    layout: Layout, key: bytes | None, path: Path, notebook: BinaryIO | None, *, pending: bool
) -> Verification:
    head = read_head(layout, path.stem)
    chain = _Chain(path.stem, key, head)
    for offset, line in read_lines(path):
        if not line.endswith(b"\n") and pending and head is not None and offset >= head.size:
            break
        chain.take(line, offset + len(line))
    chain.finish()
    problems = chain.problems
    if chain.info is not None and path != layout.journal_path(chain.info):
        problems.append("The journal is not in the folder of the day on which its session began.")
    if not problems:
        problems.extend(_notebook_problems(path, notebook, chain.last, pending=pending))
    if edited_path(path).exists():
        problems.append("The notebook was edited; the edited copy is kept beside the one rendered anew.")
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"There are {len(problems) - _MAX_PROBLEMS} more problems."]
    return Verification(not problems, chain.runs, tuple(problems))


def verify_chain(layout: Layout, key: bytes | None, journal_id: str, path: Path) -> tuple[str, ...]:
    """The problems of a journal that is not a session's: only its entries and its end are checked."""
    chain = _Chain(journal_id, key, read_head(layout, journal_id), is_session=False)
    for offset, line in read_lines(path):
        chain.take(line, offset + len(line))
    chain.finish()
    return tuple(chain.problems)


def edited_path(path: Path) -> Path:
    """Where an edited notebook is kept when it is rendered anew."""
    return path.with_suffix(".edited.ipynb")


@dataclass(slots=True)
class _Chain:
    """Takes the lines of a journal one by one and collects what is wrong with them."""

    journal_id: str
    key: bytes | None
    head: Head | None
    is_session: bool = True
    problems: list[str] = field(default_factory=list)
    info: SessionInfo | None = None
    runs: int = 0
    last: int = 0
    _lines: int = 0
    _expected: int = 1
    _seen: set[int] = field(default_factory=set)
    _previous: tuple[bytes, ...] = ()
    _last_run: int | None = None
    _foreign: bool = False
    _head_end: int | None = None

    def take(self, line: bytes, end: int) -> None:
        """The next line, which ends before byte ``end``."""
        self._lines += 1
        if self._foreign:
            return
        try:
            entry = decode(line)
        except BadEntryError:
            what = "is cut short" if not line.endswith(b"\n") else "was changed"
            self.problems.append(
                f"Line {self._lines} of the journal{self._place()} {what}: it is not an entry."
            )
            self._previous, self._expected = (), self._expected + 1
            return
        if self._lines == 1:
            self._begin(entry)
        if not self._foreign:
            self._follow(entry, line, end)

    def _begin(self, entry: Entry) -> None:
        """The first entry says whose journal this is and with which key it was written."""
        if self.key is None:
            self._stop("The record's key is missing from state_dir, so nothing can be proven.")
            return
        self._previous = (genesis(self.key, self.journal_id),)
        if "key" not in entry.data:
            self.problems.append("The journal does not begin with its first entry.")
            self._previous = ()
        elif entry.data["key"] != key_id(self.key):
            self._stop(f"The journal was written with another key (id {entry.data['key']}).")
        elif self.is_session:
            self._begin_session(entry)

    def _begin_session(self, entry: Entry) -> None:
        try:
            info = SessionInfo.from_json(entry.data["session"])
        except (KeyError, TypeError, ValueError):
            info = None
        if entry.kind != SESSION_STARTED or info is None:
            self.problems.append("The journal does not begin with the start of its session.")
        elif info.id != self.journal_id:
            self._stop("The journal is that of another session.")
        else:
            self.info = info

    def _stop(self, problem: str) -> None:
        self.problems.append(problem)
        self._foreign = True

    def _follow(self, entry: Entry, line: bytes, end: int) -> None:
        number = entry.number
        macs: tuple[bytes, ...] = (entry.mac,)
        if entry.seq in self._seen:
            self.problems.append(f"Entry {entry.seq}{_about(entry)} stands there twice.")
        elif entry.seq < self._expected:
            self.problems.append(f"Entry {entry.seq}{_about(entry)} is out of order.")
        elif entry.seq == self._expected and self._previous and not self._is_proven(entry, line):
            self.problems.append(
                f"Entry {entry.seq}{_about(entry)} was changed, or is not what followed the entry before it."
            )
            # Whether the content or the mac was changed: the next entry is judged by what fits it.
            macs = (entry.mac, *(mac_of(line, previous=p, key=self.key or b"") for p in self._previous))
        if self.head is not None and entry.seq == self.head.entries:
            self._head_end = end
        if self.head is not None and entry.seq == self.head.entries and entry.mac != self.head.mac:
            self.problems.append(f"Entry {entry.seq}{_about(entry)} is not the one that was written there.")
        if entry.kind == RUN_ACCEPTED and entry.seq not in self._seen:
            self.runs += 1
        self._seen.add(entry.seq)
        self._last_run = number if number is not None else self._last_run
        self._previous, self._expected = macs, max(self._expected, entry.seq + 1)
        self.last = max(self.last, entry.seq)

    def _is_proven(self, entry: Entry, line: bytes) -> bool:
        key = self.key or b""
        return any(proves(line, entry, previous=previous, key=key) for previous in self._previous)

    def finish(self) -> None:
        """What only the whole journal shows: entries that are missing within it or at its end."""
        if self._foreign:
            return
        if not self._lines:
            self.problems.append("The journal is empty.")
        missing = sorted(set(range(1, self.last + 1)) - self._seen)
        if missing and not any("is not an entry" in problem for problem in self.problems):
            self.problems.append(f"Of the journal's entries these are missing: {_ranges(missing)}.")
        if self.head is None:
            self.problems.append(
                "What state_dir knows of the journal's end is missing, so a cut can't be ruled out."
            )
        elif self.last < self.head.entries:
            count = self.head.entries - self.last
            noun = "entry is" if count == 1 else "entries are"
            self.problems.append(f"{count} {noun} missing at the end of the journal{self._place()}.")
        elif not self.problems and self._head_end != self.head.size:
            self.problems.append("What state_dir knows of the journal's end was changed.")

    def _place(self) -> str:
        return f" (after run {self._last_run})" if self._last_run is not None else ""


def _about(entry: Entry) -> str:
    subject = _SUBJECTS.get(entry.kind)
    return f" ({subject} {entry.number})" if subject and entry.number is not None else ""


def _ranges(numbers: list[int]) -> str:
    """``[2, 3, 4, 7]`` as ``2-4, 7``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _notebook_problems(path: Path, notebook: BinaryIO | None, entries: int, *, pending: bool) -> list[str]:
    """Compare the notebook with what the (good) journal renders to."""
    if notebook is None:
        return [] if pending else ["The notebook is missing."]
    shown = shown_entries(notebook)
    if shown is None:
        return ["The notebook was edited: it does not say what it was rendered from."]
    if not 1 <= shown <= entries:
        return [f"The notebook was edited: it shows {shown} entries of {entries}."]
    if shown < entries and not pending:
        return [f"The notebook is behind: it shows {shown} of the journal's {entries} entries."]
    try:
        difference = find_difference(notebook, StoredSession.load(path, entries=shown).notebook())
    except (BadEntryError, KeyError, TypeError, ValueError):
        return ["The journal holds an entry that is not valid."]
    return [f"The notebook was edited: {difference}."] if difference else []


def shown_entries(notebook: BinaryIO) -> int | None:
    """How many entries of its journal a notebook on disk says it shows."""
    size = os.fstat(notebook.fileno()).st_size
    notebook.seek(max(0, size - _END_BYTES))
    return rendered_entries(notebook.read())


def find_difference(notebook: BinaryIO, parts: Iterable[tuple[int | None, bytes]]) -> str | None:
    """Where a notebook on disk is not the given parts; None when it is."""
    place = "its begin"
    notebook.seek(0)
    for number, part in parts:
        place = f"the cell of run {number}" if number is not None else place
        if notebook.read(len(part)) != part:
            return f"{place} differs" if number is not None else f"something after {place} differs"
    return "something was added at its end" if notebook.read(1) else None
