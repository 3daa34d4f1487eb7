"""The sessions that the recorder knows: open ones with their lock and timer, closed ones as summaries."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from interpreter.models import Run
from interpreter.record.disk import Disk
from interpreter.record.entries import BadEntryError
from interpreter.record.index import SessionRecord
from interpreter.record.journal import DamagedError, NeverBegunError
from interpreter.record.layout import Layout
from interpreter.record.live import LiveSession
from interpreter.record.recovery import DAMAGED
from interpreter.record.stored import StoredSession

_log = logging.getLogger(__name__)

_AMEND_INTERVAL = 1.0  # at most one amendment per session is written in this time; the newest wins
_RETRY_DELAY = 1.0
_MAX_STORED = 64
SYNC_DELAY = (
    0.25  # seconds in which an entry that nobody was told of may be synced together with the next one
)
RENDER_INTERVAL = 0.1  # seconds between two notebooks of the service, when runs end faster than that
RENDERED_AT_ONCE = 10  # notebooks, after as many intervals without one


@dataclass(eq=False, slots=True)
class OpenSession:
    """An open session; who holds ``lock`` may use ``live``. ``amendments`` wait to be written, by run number."""

    live: LiveSession
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    amendments: dict[int, tuple[Run, tuple[int, ...], str]] = field(default_factory=dict)
    amended_at: float = float("-inf")
    timer: asyncio.Handle | None = None
    due: float = 0.0
    """When ``timer`` fires, on the loop's clock. uvloop's own does not tell when its delay was 0."""
    takes_turn: bool = False
    """Whether ``timer`` is for the session's turn among those whose notebooks wait."""
    sync_timer: asyncio.TimerHandle | None = None


class Sessions:
    """One operation per session at a time, and the rendering that follows by itself."""

    def __init__(self, layout: Layout, disk: Disk, clock: Callable[[], datetime]) -> None:
        self.open: dict[str, OpenSession] = {}
        self.closed: dict[str, SessionRecord] = {}
        self.key = b""
        self._layout = layout
        self._disk = disk
        self._clock = clock
        self._stored: OrderedDict[str, StoredSession] = OrderedDict()
        self._reopening = asyncio.Lock()
        self._next_turn = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @asynccontextmanager
    async def writing(self, session_id: str) -> AsyncIterator[OpenSession | None]:
        """The session, locked; None when it can't be written. A session that has ended is opened for it."""
        while (opened := self.open.get(session_id) or await self._reopen(session_id)) is not None:
            async with opened.lock:
                if self.open.get(session_id) is not opened:
                    continue  # it was closed while we waited
                try:
                    yield opened
                finally:
                    if opened.live.is_complete:
                        await self.flush_amendments(opened)
                        await self._close_when_shown(session_id, opened)
                return
        yield None

    @asynccontextmanager
    async def reading(self, session_id: str) -> AsyncIterator[LiveSession | StoredSession | None]:
        """The session for reading, with all that waits to be written; None when it is unknown."""
        opened = self.open.get(session_id)
        if opened is not None:
            async with opened.lock:
                if self.open.get(session_id) is opened:
                    await self.flush_amendments(opened)
                    if opened.sync_timer is not None:  # a reader is told only what no loss of power undoes
                        self.synced(opened)
                        with suppress(OSError):
                            await self._disk.write(opened.live.sync)
                    yield opened.live
                    return
        yield await self._load(session_id)

    async def _load(self, session_id: str) -> StoredSession | None:
        record = self.closed.get(session_id)
        if record is None:
            return None
        stored = self._stored.get(session_id)
        if stored is None:
            try:
                stored = await self._disk.read(StoredSession.load, record.path)
            except (OSError, BadEntryError):
                return None
        self._remember(session_id, stored)
        return stored

    def _remember(self, session_id: str, stored: StoredSession) -> None:
        self._stored[session_id] = stored
        self._stored.move_to_end(session_id)
        while len(self._stored) > _MAX_STORED:
            self._stored.popitem(last=False)

    def forget(self, session_id: str) -> None:
        """A closed session was removed."""
        self.closed.pop(session_id, None)
        self._stored.pop(session_id, None)

    async def _reopen(self, session_id: str) -> OpenSession | None:
        async with self._reopening:
            record = self.closed.get(session_id)
            if session_id in self.open or record is None:
                return self.open.get(session_id)
            if record.ended_reason == DAMAGED or self._closing:
                return None
            try:
                live = await self._disk.touch(
                    LiveSession.load, self._layout, self.key, record.path, self._clock()
                )
            except OSError as error:
                self._disk.failed(error)
                return None
            except (DamagedError, NeverBegunError):
                _log.exception("a journal can't be continued")
                return None
            self._stored.pop(session_id, None)
            return self.open.setdefault(session_id, OpenSession(live))

    async def _close_when_shown(self, session_id: str, opened: OpenSession) -> None:
        """Close the session; not before its notebook shows all of it, which a full disk may not take yet."""
        self.schedule(opened, _RETRY_DELAY)
        await self._disk.touch(opened.live.render_now, sync=True)
        if not opened.live.is_behind:
            await self._close(session_id, opened)

    async def _close(self, session_id: str, opened: OpenSession) -> None:
        self.cancel_timer(opened)
        self.synced(opened)
        self.closed[session_id] = opened.live.record
        self._remember(session_id, opened.live.stored())
        self.open.pop(session_id, None)
        await self._disk.touch(_finish, opened.live, self._clock())

    async def flush_amendments(self, opened: OpenSession) -> None:
        """Write the amendments that wait. The caller holds the lock. What can't be written is dropped."""
        amendments, opened.amendments = opened.amendments, {}
        for run, late, reason in amendments.values():
            try:
                await self._disk.write(opened.live.amend, run, self._clock(), late, reason)
            except OSError:
                _log.warning("a late change of a run could not be recorded")
        if amendments:
            opened.amended_at = asyncio.get_running_loop().time()

    def amendment_wait(self, opened: OpenSession) -> float:
        """Seconds until the next amendment of a session may be written."""
        return max(0.0, opened.amended_at + _AMEND_INTERVAL - asyncio.get_running_loop().time())

    async def flush_unwritten(self) -> None:
        """Write the outcomes that could not be written when they came, now that the disk takes them."""
        for session_id in [session_id for session_id, o in self.open.items() if o.live.unwritten]:
            async with self.writing(session_id) as opened:
                if opened is not None:
                    try:
                        await self._disk.write(opened.live.flush_unwritten, self._clock())
                    except OSError:
                        return
                    self.schedule(opened, 0)

    def sync_later(self, opened: OpenSession) -> None:
        """Sync what was only written, unless an entry that follows soon does it."""
        if opened.sync_timer is None:
            opened.sync_timer = asyncio.get_running_loop().call_later(SYNC_DELAY, self._sync, opened)

    @staticmethod
    def synced(opened: OpenSession) -> None:
        """An entry is being synced, and all before it."""
        if opened.sync_timer is not None:
            opened.sync_timer.cancel()
            opened.sync_timer = None

    def _sync(self, opened: OpenSession) -> None:
        opened.sync_timer = None
        self._disk.write_soon(opened.live.sync)

    def schedule(self, opened: OpenSession, delay: float) -> None:
        """Render in ``delay`` seconds, or when it was asked for already, if that is sooner."""
        loop = asyncio.get_running_loop()
        if (
            self._closing
            or opened.takes_turn
            or (opened.timer is not None and opened.due <= loop.time() + delay)
        ):
            return
        self.cancel_timer(opened)
        opened.due = loop.time() + delay
        opened.timer = loop.call_later(delay, self._begin_rendering, opened)

    def render_turn(self, opened: OpenSession) -> float:
        """Seconds until the notebook of a run that ends is rendered: 0 unless many runs end.

        The journal is what counts; with many runs at once their notebooks took as much of the processor as the journal.
        """
        if opened.takes_turn and opened.timer is not None:
            return max(0.0, opened.due - asyncio.get_running_loop().time())
        now = asyncio.get_running_loop().time()
        self._next_turn = max(self._next_turn + RENDER_INTERVAL, now - RENDERED_AT_ONCE * RENDER_INTERVAL)
        return max(0.0, self._next_turn - now)

    def schedule_turn(self, opened: OpenSession, delay: float) -> None:
        """Render in ``delay`` seconds, which `render_turn` gave: what comes until then is rendered with it."""
        if not opened.takes_turn:
            self.cancel_timer(opened)
            self.schedule(opened, delay)
            opened.takes_turn = opened.timer is not None

    @staticmethod
    def cancel_timer(opened: OpenSession) -> None:
        """Nothing is to be rendered any more."""
        if opened.timer is not None:
            opened.timer.cancel()
            opened.timer = None
        opened.takes_turn = False

    def _begin_rendering(self, opened: OpenSession) -> None:
        opened.timer, opened.takes_turn = None, False
        task = asyncio.get_running_loop().create_task(self._render(opened))
        self._tasks.add(task)
        task.add_done_callback(self._rendered)

    def _rendered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a notebook could not be rendered", exc_info=task.exception())

    async def _render(self, opened: OpenSession) -> None:
        session_id = opened.live.index.info.id
        async with opened.lock:
            if self.open.get(session_id) is not opened:
                return
            if opened.amendments and not self.amendment_wait(opened):
                await self.flush_amendments(opened)
            wait = await self._disk.touch(opened.live.render_if_due) if opened.live.is_behind else None
            waits = [wait] if wait is not None else []
            if opened.amendments:
                waits.append(self.amendment_wait(opened))
            if waits:
                self.schedule(opened, min(waits))
            elif opened.live.is_complete:
                await self._close(session_id, opened)

    async def aclose(self) -> None:
        """Write all that waits, bring every notebook up to date, close every file."""
        self._closing = True
        for opened in self.open.values():
            self.cancel_timer(opened)
        while self._tasks:
            await asyncio.wait(self._tasks)
        for session_id, opened in list(self.open.items()):
            async with opened.lock:
                if self.open.get(session_id) is opened:
                    await self.flush_amendments(opened)
                    await self._close(session_id, opened)


def _finish(live: LiveSession, at: datetime) -> None:
    try:
        live.flush_unwritten(at)
    except OSError:
        _log.error("the outcome of a run could not be recorded before the stop")
    live.close()
