"""The only writer of the record, for the event loop: what it has acknowledged is on disk.

Files are touched in a few threads of its own, one operation per session at a time and in order; other
sessions never wait for it.
"""

import asyncio
import hmac
import logging
import os
from collections.abc import Callable, Container
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO

from interpreter.errors import RecordUnavailableError, SettingsError
from interpreter.jsontext import is_light
from interpreter.models import JSON, Run, SessionInfo, parse_run_id, run_id_of
from interpreter.record.disk import Disk
from interpreter.record.index import SessionRecord
from interpreter.record.journal import DamagedError
from interpreter.record.layout import Layout
from interpreter.record.live import LiveSession
from interpreter.record.outcomes import RecordedRun, accepted_data
from interpreter.record.reader import newest_first, search_sessions, verify_missing
from interpreter.record.recovery import recover
from interpreter.record.retention import export_sessions, prune_sessions
from interpreter.record.sessions import OpenSession, Sessions
from interpreter.record.verify import Verification, verify_session

_log = logging.getLogger(__name__)

_SMALL_CODE = 64 * 1024  # characters; to write more takes too long for the event loop
_SMALL_TEXT = 4096  # characters of each in a run's outputs; the same
_FEW_FILES = 16
_SHOW_RUNNING_DELAY = 0.25  # a run that takes longer is shown in the notebook before it has ended


class Recorder:
    """Writes and reads the record. ``start`` before anything else, ``aclose`` at the end.

    ``clock`` gives the present as an aware UTC datetime.
    """

    def __init__(self, record_dir: Path, state_dir: Path, *, clock: Callable[[], datetime]) -> None:
        self._layout = Layout(record_dir, state_dir)
        self._clock = clock
        self._disk = Disk(record_dir, self._flush_unwritten)
        self._sessions = Sessions(self._layout, self._disk, clock)
        self._lock_file: int | None = None

    def unguessable(self, text: str) -> bytes:
        """32 bytes that follow from ``text``, and that nobody can compute who has not the record's key."""
        key = hmac.digest(self._sessions.key, b"unguessable", "sha256")  # apart from the journals' macs
        return hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256")

    @property
    def problem(self) -> str | None:
        """One sentence on why the record can't be written now; None when it can, as far as is known."""
        return self._disk.problem

    async def start(self) -> None:
        """Become the record's writer and mend what a crash left.

        Raises SettingsError when another service writes this record or its folders can't be made.
        """
        try:
            self._sessions.key = await self._disk.touch(self._layout.prepare)
            self._lock_file = await self._disk.touch(self._layout.lock)
            found = await self._disk.read(recover, self._layout, self._sessions.key, self._clock())
        except OSError as error:
            await self.aclose()
            raise SettingsError(f"The folder of record_dir can't be read: {error.strerror}.") from error
        except SettingsError:
            await self.aclose()
            raise
        self._sessions.closed = found.records
        for session_id, live in found.live.items():
            self._sessions.open[session_id] = OpenSession(live)
            self._sessions.schedule(self._sessions.open[session_id], 0)
        if found.error is not None:
            self._disk.failed(found.error)
        await self.probe()

    async def aclose(self) -> None:
        """Bring every notebook up to date and give up the record. Open sessions stay open in it."""
        await self._disk.stop()
        await self._sessions.aclose()
        self._disk.close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    async def probe(self) -> str | None:
        """Try whether the record can be written; returns (and sets) `problem`."""
        return await self._disk.probe()

    async def _flush_unwritten(self) -> None:
        await self._sessions.flush_unwritten()

    def _unavailable(self) -> RecordUnavailableError:
        problem = self._disk.problem or "The record can't be written."
        return RecordUnavailableError(problem, code="record_not_writable")

    # Writing

    async def begin_session(self, info: SessionInfo) -> None:
        """Begin a session's record. Raises RecordUnavailableError."""
        try:
            await self._disk.write(self._begin, info)
        except OSError as error:
            raise self._unavailable() from error

    def _begin(self, info: SessionInfo) -> None:
        """In a thread, so that a caller that is cancelled meanwhile leaves no session without an owner."""
        self._sessions.open[info.id] = OpenSession(
            LiveSession.create(self._layout, self._sessions.key, info, self._clock())
        )

    async def accept_run(
        self, run: Run, *, idempotency_key: str | None, request_hash: str | None, early: bool = False
    ) -> None:
        """Put a run on disk before its code runs. Raises RecordUnavailableError, ValueError for a second time.

        If ``early``, return when it is written; it is synced with the run's end, or in `SYNC_DELAY` seconds. For a
        run that nobody is told of before its end.
        """
        async with self._sessions.writing(run.session_id) as opened:
            if opened is None and self._disk.problem is not None:
                raise self._unavailable()
            if opened is None or opened.live.is_ending:
                raise RecordUnavailableError(
                    "The record of this session is closed.", code="record_not_writable"
                )
            data = accepted_data(run, idempotency_key=idempotency_key, request_hash=request_hash)
            try:
                if early and self._may_be_early(opened, run):
                    self._accept_early(opened, run, data)
                else:
                    await self._disk.write(opened.live.accept, run, self._clock(), data)
            except OSError as error:
                raise self._unavailable() from error
            self._sessions.schedule(opened, _SHOW_RUNNING_DELAY)

    def accept_at_once(self, run: Run, *, request_hash: str) -> bool:
        """`accept_run`, early and without a wait; False if something has to be waited for: then nothing was done."""
        opened = self._sessions.open.get(run.session_id)
        if opened is None or opened.lock.locked() or opened.live.is_ending:
            return False
        if not self._may_be_early(opened, run):
            return False
        try:
            self._accept_early(
                opened, run, accepted_data(run, idempotency_key=None, request_hash=request_hash)
            )
        except OSError as error:
            raise self._unavailable() from error
        self._sessions.schedule(opened, _SHOW_RUNNING_DELAY)
        return True

    def _may_be_early(self, opened: OpenSession, run: Run) -> bool:
        return self._disk.is_quick and not opened.live.unwritten and len(run.code) <= _SMALL_CODE

    def _accept_early(self, opened: OpenSession, run: Run, data: JSON) -> None:
        self._disk.write_now(opened.live.begin, run, self._clock(), data)
        self._sessions.sync_later(opened)

    async def finish_run(
        self, run: Run, *, late: tuple[int, ...] = (), on_disk: Callable[[], None] = lambda: None
    ) -> bool:
        """Put a run's end on disk; False when it could not be (it is tried again later).

        ``on_disk`` is called when it is, which is before the notebook shows it.
        """
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(on_disk)

        async with self._sessions.writing(run.session_id) as opened:
            if opened is None:
                return False
            if opened.amendments:  # of displays that this run has updated
                await self._sessions.flush_amendments(opened)
            self._sessions.synced(opened)
            turn = self._sessions.render_turn(opened)
            finish = partial(opened.live.finish, run, self._clock(), late)
            small = _is_small(run)
            try:
                if turn and small and self._disk.syncs_quickly and not opened.live.unwritten:
                    self._disk.sync_now(finish, on_disk, renders=False)
                    await asyncio.sleep(0)  # who was told goes on first
                else:
                    await self._disk.write(finish, tell, renders=small and not turn)
            except OSError:
                return False
            except ValueError:
                _log.exception("the end of a run came that the record does not expect")
                return False
            if turn:
                self._sessions.schedule_turn(opened, turn)
            elif opened.live.is_behind:
                # A large answer is sent before the notebook is made of as much text.
                self._sessions.schedule(opened, 0 if small else _SHOW_RUNNING_DELAY)
            elif not opened.amendments:
                self._sessions.cancel_timer(opened)  # which would find the next run just begun
            return True

    async def amend_run(self, run: Run, *, late: tuple[int, ...], reason: str) -> None:
        """Record that an ended run's outputs changed. Best effort: many changes become one entry."""
        async with self._sessions.writing(run.session_id) as opened:
            if opened is None:
                return
            opened.amendments[run.number] = (run, late, reason)
            self._sessions.schedule(opened, self._sessions.amendment_wait(opened))

    async def note_kernel(self, session_id: str, event: str, detail: str) -> None:
        """Record what happened to a session's kernel. Best effort."""
        async with self._sessions.writing(session_id) as opened:
            if opened is None:
                return
            try:
                await self._disk.write(opened.live.note_kernel, event, detail, self._clock())
            except OSError:
                return
            self._sessions.schedule(opened, _SHOW_RUNNING_DELAY)

    async def end_session(self, session_id: str, reason: str) -> None:
        """Record a session's end and close its record. If it can't be written it is tried again later."""
        async with self._sessions.writing(session_id) as opened:
            if opened is None or opened.live.is_ending:
                return
            await self._sessions.flush_amendments(opened)
            try:
                await self._disk.write(opened.live.end, reason, self._clock())
            except OSError:
                _log.warning("the end of a session could not be recorded")

    # Reading

    async def find_session(self, session_id: str) -> SessionRecord | None:
        """A session, also one that ended long ago; None when it is unknown."""
        opened = self._sessions.open.get(session_id)
        return opened.live.record if opened else self._sessions.closed.get(session_id)

    async def list_sessions(self) -> list[SessionRecord]:
        """All sessions, newest first."""
        live = [opened.live.record for opened in list(self._sessions.open.values())]
        return newest_first([*live, *self._closed()])

    async def get_run(self, run_id: str) -> Run | None:
        """A run, None when it is unknown."""
        recorded = await self.get_recorded(run_id)
        return recorded.run if recorded else None

    async def get_recorded(self, run_id: str) -> RecordedRun | None:
        """A run and which of its outputs came late, None when it is unknown."""
        session_id, number = parse_run_id(run_id) or ("", 0)
        async with self._sessions.reading(session_id) as session:
            return await self._disk.read(session.run, number) if session else None

    async def get_program(self, run_id: str) -> Run | None:
        """A run without its outputs if it succeeded, else None; None too when it is unknown."""
        session_id, number = parse_run_id(run_id) or ("", 0)
        async with self._sessions.reading(session_id) as session:
            return await self._disk.read(session.program, number) if session else None

    async def list_run_ids(self, session_id: str) -> list[str]:
        """Ids of the runs of a session in order; none when it is unknown."""
        async with self._sessions.reading(session_id) as session:
            return [run_id_of(session_id, number) for number in session.index.order] if session else []

    async def list_runs(self, session_id: str) -> list[Run]:
        """The runs of a session in order; none when it is unknown."""
        async with self._sessions.reading(session_id) as session:
            return [recorded.run for recorded in await self._disk.read(session.runs)] if session else []

    async def find_idempotency_key(self, session_id: str, key: str) -> tuple[str, str | None] | None:
        """Id and request hash of the run that was accepted with a key, None when none was."""
        async with self._sessions.reading(session_id) as session:
            found = session.index.idempotency.get(key) if session else None
            return (run_id_of(session_id, found[0]), found[1]) if found else None

    async def notebook(self, session_id: str) -> bytes | None:
        """The ``.ipynb`` as the journal tells it now, None when the session is unknown."""
        file = await self.open_notebook(session_id)
        if file is None:
            return None
        with file:
            return await self._disk.read(file.read)

    async def open_notebook(self, session_id: str) -> BinaryIO | None:
        """The same as a file, which the caller closes."""
        async with self._sessions.reading(session_id) as session:
            return await self._disk.read(session.open_notebook) if session else None

    async def verify(self, session_id: str) -> Verification | None:
        """Check a session's record; None when nothing of it is known."""
        opened = self._sessions.open.get(session_id)
        if opened is None:
            return await self._disk.read(self._verify, session_id, False)
        async with opened.lock:
            return await self._disk.read(self._verify, session_id, opened.live.is_behind)

    def _verify(self, session_id: str, pending: bool) -> Verification | None:
        path = self._layout.find_journal(session_id)
        if path is None:
            return verify_missing(self._layout, session_id)
        return verify_session(self._layout, self._sessions.key, path, pending=pending)

    async def search(self, text: str, *, limit: int | None = None) -> list[str]:
        """Ids of the sessions whose code or outputs hold ``text`` (case does not matter), newest first."""
        return await self._disk.read(partial(search_sessions, limit=limit), await self.list_sessions(), text)

    async def export(self, target: Path, session_ids: Container[str] | None = None) -> int:
        """Write the sessions (all by default) as a new zip file; returns their number. Raises OSError."""
        wanted = [r for r in await self.list_sessions() if session_ids is None or r.info.id in session_ids]
        return await self._disk.read(export_sessions, self._layout, wanted, target)

    async def prune(self, before: datetime) -> list[str]:
        """Remove the sessions that ended before a time; returns their ids. Raises RecordUnavailableError."""
        prune = partial(prune_sessions, before=before, at=self._clock())
        try:
            removed = await self._disk.write(prune, self._layout, self._sessions.key, self._closed())
        except OSError as error:
            raise self._unavailable() from error
        except DamagedError as error:
            raise RecordUnavailableError(
                "The journal of removed sessions was changed, so no more are removed: see the record's verification."
            ) from error
        for session_id in removed:
            self._sessions.forget(session_id)
        return removed

    def _closed(self) -> list[SessionRecord]:
        opened = self._sessions.open
        return [record for session_id, record in self._sessions.closed.items() if session_id not in opened]


def _is_small(run: Run) -> bool:
    """Whether the run's end is written in little time."""
    return len(run.files) <= _FEW_FILES and is_light([*run.folded.outputs], _SMALL_TEXT)
