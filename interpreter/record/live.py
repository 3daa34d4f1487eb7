"""An open session: its journal, the index of it, and its notebook. Blocking, one thread at a time.

The journal is written at each step. The notebook follows: at once while that is cheap, else so seldom
that rendering takes a bounded share of the time, however long the session grows.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from interpreter.models import JSON, Run, RunStatus, SessionInfo
from interpreter.record.entries import (
    KERNEL_NOTED,
    RUN_ACCEPTED,
    RUN_AMENDED,
    RUN_ENDED,
    SESSION_ENDED,
    SESSION_STARTED,
    BadEntryError,
    Entry,
)
from interpreter.record.index import SessionIndex, SessionRecord, start_index
from interpreter.record.journal import DamagedError, Journal
from interpreter.record.layout import Layout, open_file
from interpreter.record.notebook import render_cell
from interpreter.record.notebookfile import NotebookFile
from interpreter.record.outcomes import (
    RecordedRun,
    aborted_data,
    amended_data,
    ended_data,
    rebuild,
)
from interpreter.record.stored import StoredSession, end_of, read_program, read_run, render, spooled
from interpreter.record.verify import edited_path, find_difference, shown_entries

_log = logging.getLogger(__name__)

SMALL_BYTES = 256 * 1024
"""Notebooks up to this size are rendered after every run, unless many runs end."""

COPY_SHARE = 20
"""Larger ones are rendered when this many times as long has passed as it takes to copy their old cells,
which is the part of the work that grows with the session."""

_MAX_WAIT = 0.02  # seconds of copying that the answer of a run may wait for

_RETRY_DELAY = 1.0
_MAX_KEPT_BYTES = 1 << 20


class LiveSession:
    """What the recorder keeps of a session while it is open."""

    def __init__(self, journal: Journal, index: SessionIndex) -> None:
        self.journal = journal
        self.index = index
        self.unwritten: list[tuple[str, JSON]] = []
        self._notebook = NotebookFile(journal.path.with_suffix(".ipynb"))
        self._changed: set[int] = set()
        self._rendered = 0
        self._copy_cost = 0.0
        self._cell_cost = 0.0
        self._rendered_at = 0.0

    @classmethod
    def create(cls, layout: Layout, key: bytes, info: SessionInfo, at: datetime) -> "LiveSession":
        """Begin the record of a session. Raises OSError, and leaves nothing then."""
        path, data = layout.journal_path(info), {"session": info.as_json()}
        journal = Journal.create(layout, info.id, path, key, (at, SESSION_STARTED, data))
        first = Entry(1, at, SESSION_STARTED, data, journal.head.mac)
        live = cls(journal, start_index(first))
        live.render_if_due()
        return live

    @classmethod
    def load(cls, layout: Layout, key: bytes, path: Path, at: datetime) -> "LiveSession":
        """Go on with a journal that a service left open.

        Raises DamagedError when it was changed, NeverBegunError when nothing of it counts, OSError.
        """
        found: list[SessionIndex] = []

        def visit(entry: Entry, offset: int) -> None:
            if found:
                found[0].apply(entry, offset)
            else:
                found.append(start_index(entry))

        try:
            journal, cut = Journal.resume(layout, path.stem, path, key, visit)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError("the journal holds an entry that is not valid") from error
        live = cls(journal, found[0])
        try:
            if cut:
                _log.warning("a half-written entry of %d bytes was removed from a journal", cut)
                entry, offset = journal.note_cut(cut, at)
                live.index.apply(entry, offset)
            live._set_aside_edited()
        except OSError:
            journal.close()
            raise
        return live

    @property
    def is_behind(self) -> bool:
        """Whether the notebook does not show all of the journal yet."""
        return self._rendered != self.index.entries

    @property
    def is_ending(self) -> bool:
        """Whether the session's end is written, or waits to be."""
        waits = any(kind == SESSION_ENDED for kind, _ in self.unwritten)
        return waits or self.index.ended_reason is not None

    @property
    def is_complete(self) -> bool:
        """Whether the session has ended and so has each of its runs."""
        return self.index.ended_reason is not None and not self.unwritten and not self.index.unended

    @property
    def record(self) -> SessionRecord:
        """The session as others see it."""
        return self.index.record(self.journal.path)

    def stored(self) -> StoredSession:
        """The same session for reading after `close`."""
        return StoredSession(self.journal.path, self.index)

    def accept(self, run: Run, at: datetime, data: JSON) -> None:
        """Write that a run will be run (`accepted_data`). Raises OSError; ValueError when it was accepted before."""
        self._check_new(run)
        self._append(RUN_ACCEPTED, data, at)

    def begin(self, run: Run, at: datetime, data: JSON) -> None:
        """The same in little time: the entry is only written, `sync` comes next."""
        self._check_new(run)
        self._append(RUN_ACCEPTED, data, at, synced=False)

    def sync(self) -> None:
        """Bring to disk what was only written. Raises OSError; the next entry then brings it along."""
        self.journal.sync()

    def _check_new(self, run: Run) -> None:
        if run.number in self.index.accepted or self.is_ending:
            raise ValueError("the run can't be accepted")

    def finish(
        self,
        run: Run,
        at: datetime,
        late: Sequence[int],
        on_disk: Callable[[], None],
        *,
        renders: bool = True,
    ) -> None:
        """Write how a run ended, call ``on_disk``, then render if due. Raises OSError; ValueError when it does not run.

        After OSError the outcome is kept in memory and is written before the next entry.
        """
        if run.number not in self.index.unended:
            raise ValueError("the run does not run")
        data = ended_data(run, late=late)
        self.unwritten = [item for item in self.unwritten if item[1].get("run") != run.number]
        self.unwritten.append((RUN_ENDED, data))
        try:
            self.flush_unwritten(at)
        except OSError:
            self.unwritten[-1] = (RUN_ENDED, _bounded(data))
            raise
        on_disk()
        if renders and self._copy_cost < _MAX_WAIT:
            self.render_if_due()

    def abort_unended(self, at: datetime, ran: str, waited: str) -> None:
        """Write that the runs without an end will never have a true one. Raises OSError.

        ``ran`` is the notice for the one that was executed, ``waited`` that for those in the queue behind it.
        """
        for place, number in enumerate(list(self.index.unended)):
            data = aborted_data(number, ended_at=at, notice=waited if place else ran)
            self.unwritten.append((RUN_ENDED, data))
        self.flush_unwritten(at)

    def amend(self, run: Run, at: datetime, late: Sequence[int], reason: str) -> None:
        """Write what changed in an ended run's outputs. Raises OSError."""
        if run.number not in self.index.ended:
            return
        before = self.run(run.number)
        if before is None or (before.run.folded == run.folded and before.late == tuple(late)):
            return
        self._append(RUN_AMENDED, amended_data(before.run, run, late=late, reason=reason), at)

    def note_kernel(self, event: str, detail: str, at: datetime) -> None:
        """Write what happened to the kernel. Raises OSError."""
        self._append(KERNEL_NOTED, {"event": event, "detail": detail}, at)

    def end(self, reason: str, at: datetime) -> None:
        """Write the session's end. After OSError it is written before the next entry."""
        self.unwritten.append((SESSION_ENDED, {"reason": reason}))
        self.flush_unwritten(at)

    def flush_unwritten(self, at: datetime) -> None:
        """Write the outcomes that could not be written when they came. Raises OSError."""
        while self.unwritten:
            self._append_entry(*self.unwritten[0], at)
            del self.unwritten[0]

    def run(self, number: int) -> RecordedRun | None:
        """A run, None when the session has no such one. ``recorded`` is false while its end is unwritten."""
        if number not in self.index.accepted:
            return None
        for _, data in self.unwritten:
            if data.get("run") == number:
                recorded = rebuild(self.index.info, self.journal.read(self.index.accepted[number]).data, data)
                return replace(recorded, run=replace(recorded.run, recorded=False))
        return read_run(self.index, number, self.journal.read)

    def runs(self) -> list[RecordedRun]:
        """All runs in the order of their acceptance."""
        return [recorded for number in self.index.order if (recorded := self.run(number)) is not None]

    def program(self, number: int) -> Run | None:
        """A run without its outputs if it succeeded, else None."""
        ended = [data["status"] for _, data in self.unwritten if data.get("run") == number]
        if number not in self.index.succeeded and RunStatus.OK not in ended:
            return None
        return read_program(self.index, number, self.journal.read)

    def open_notebook(self) -> BinaryIO:
        """The notebook with all of the journal in it, as a file that later runs don't change."""
        self.render_now(sync=False)
        if not self.is_behind:
            file = open_file(self._notebook.path)
            if self._notebook.is_ours():
                return file
            file.close()
        return spooled(part for _, part in render(self.index, self.journal.read_raw))

    def render_if_due(self) -> float | None:
        """Render if that is cheap or long enough ago; else the seconds until it is, None when all is shown."""
        if not self.is_behind:
            return None
        wait = self._rendered_at + COPY_SHARE * self._copy_cost - time.monotonic()
        if self._notebook.size > SMALL_BYTES and wait > 0:
            return wait
        self.render_now(sync=False)
        return _RETRY_DELAY if self.is_behind else None

    def render_now(self, *, sync: bool) -> None:
        """Bring the notebook up to date. A failure is logged: the journal is what counts."""
        if not self.is_behind:
            return
        begin, self._cell_cost = time.monotonic(), 0.0
        try:
            if self._notebook.size and not self._notebook.is_ours():
                self._set_aside_edited()
                self._notebook.forget()
            self._notebook.write(
                len(self.index.order), self._changed, self._cell, end_of(self.index), sync=sync
            )
            self._changed.clear()
            self._rendered = self.index.entries
        except OSError as error:
            _log.warning("a notebook could not be written: %s", error.strerror)
        self._rendered_at = time.monotonic()
        self._copy_cost = self._rendered_at - begin - self._cell_cost

    def close(self) -> None:
        """Bring the notebook up to date and give the files back."""
        self.render_now(sync=True)
        if self.is_complete and not self.is_behind:
            self.journal.seal()
        self.journal.close()

    def _append(self, kind: str, data: JSON, at: datetime, *, synced: bool = True) -> None:
        self.flush_unwritten(at)
        self._append_entry(kind, data, at, synced=synced)

    def _append_entry(self, kind: str, data: JSON, at: datetime, *, synced: bool = True) -> None:
        if kind == SESSION_ENDED:
            data = {**data, **self.index.summary()}
        entry, offset = self.journal.append(kind, data, at, synced=synced)
        self.index.apply(entry, offset)
        if entry.number is not None:
            self._changed.add(self.index.position[entry.number])
        # What waits looks different once it is its turn, or once it will never be.
        waiting = list(self.index.unended) if kind == SESSION_ENDED else list(self.index.unended)[:1]
        self._changed.update(self.index.position[number] for number in waiting)

    def _cell(self, position: int) -> Iterator[bytes]:
        begin = time.monotonic()
        recorded = read_run(self.index, self.index.order[position], self.journal.read_raw)
        yield from render_cell(recorded, self.index.info)
        self._cell_cost += time.monotonic() - begin

    def _set_aside_edited(self) -> None:
        """Keep a notebook that someone edited as evidence, instead of writing over it."""
        path = self._notebook.path
        try:
            with open_file(path) as notebook:
                if self._is_rendering(notebook):
                    return
        except FileNotFoundError:
            if not os.path.lexists(path):
                return
        _log.error("the notebook of a session was edited; the edited copy is kept")
        path.replace(edited_path(path))

    def _is_rendering(self, notebook: BinaryIO) -> bool:
        """Whether a notebook on disk is what the begin of the journal renders to."""
        if not notebook.read(4096).strip(b"\0"):
            return True  # a loss of power leaves such files; they tell nothing
        shown = shown_entries(notebook)
        if shown is None or not 1 <= shown <= self.index.entries:
            return False
        try:
            parts = StoredSession.load(self.journal.path, entries=shown).notebook()
            return find_difference(notebook, parts) is None
        except BadEntryError:
            return False


def _bounded(data: JSON) -> JSON:
    """An outcome that may be kept in memory: without its outputs when they are large."""
    if len(json.dumps(data["outputs"], default=str)) <= _MAX_KEPT_BYTES:
        return data
    notices = [*data["notices"], "The outputs could not be recorded: the record was not writable."]
    count = data["folded"]["execution_count"]
    folded = {"execution_count": count, "truncated": True, "dropped_bytes": 0, "notices": [], "error": None}
    return {**data, "outputs": [], "late": [], "notices": notices, "folded": folded}
