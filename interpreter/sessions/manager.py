"""All live sessions: made, found, listed, ended, taken up again after a restart."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime

from interpreter import disposal
from interpreter.errors import (
    GatewayError,
    InvalidRequestError,
    NotFoundError,
    SessionGoneError,
    UnavailableError,
)
from interpreter.kernels.background import Background
from interpreter.kernels.isolation import EXTERNAL, Isolation
from interpreter.models import JSON, Principal, SessionInfo, new_id
from interpreter.record import Recorder, SessionRecord
from interpreter.sessions.kernels import Launcher, SessionKernels
from interpreter.sessions.session import Session
from interpreter.sessions.slots import Slots
from interpreter.settings import Settings
from interpreter.workspace import Workspaces

log = logging.getLogger(__name__)

KERNEL_LOST_AT_RESTART = (
    "The service was restarted, so the kernel is a fresh one: earlier variables are gone."
)
KEPT_ENDINGS = 50_000  # ended sessions of which is still told why they are gone
RECOVERED_AT_ONCE = 20
END_PATIENCE = 4.0  # seconds: stubborn processes and a million files take longer to remove

_KERNEL_LIVES = ("kernel_started", "kernel_restarted")  # notes of the record whose detail is a kernel id

EndHook = Callable[[Session, str], Awaitable[None]]


class SessionManager:
    """All live sessions of the service. ``clock`` gives aware UTC datetimes."""

    def __init__(
        self,
        settings: Settings,
        launcher: Launcher,
        recorder: Recorder,
        workspaces: Workspaces,
        *,
        clock: Callable[[], datetime],
        isolation: Isolation = EXTERNAL,
    ) -> None:
        self._isolation = isolation
        self.kernels = SessionKernels(launcher, recorder, start_timeout=settings.kernel_start_timeout)
        self._settings = settings
        self._launcher = launcher
        self._recorder = recorder
        self._workspaces = workspaces
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._opening: set[Session] = set()
        self._gone: OrderedDict[str, tuple[str, str]] = OrderedDict()  # session id → (owner id, reason)
        self._slots = Slots(settings)
        self._languages: dict[str, str] = {}  # of kernelspecs that were seen; the gateway refuses lost ones
        self._end_hooks: list[EndHook] = []
        self._background = Background()
        self._closing = False

    def add_end_hook(self, hook: EndHook) -> None:
        """``hook(session, reason)`` is awaited before a session's kernel goes."""
        self._end_hooks.append(hook)

    async def create(
        self,
        principal: Principal,
        *,
        kernel_name: str | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        network: str | None = None,
        one_off: bool = False,
        session_id: str | None = None,
    ) -> Session:
        """Start a session and its kernel; ``session_id`` is a new id unless it is given.

        Raises TooManySessionsError, InvalidRequestError, GatewayError, KernelStartTimeoutError,
        UnavailableError. When the caller is cancelled meanwhile, nothing stays.
        """
        self._refuse_if_closing()
        now = self._clock()
        kernel_name = kernel_name or self._settings.kernel_name
        network = self._isolation.choose_network(network, self._settings)
        self._slots.reserve(principal.token_id)
        info = SessionInfo(
            id=session_id or self._launcher.reserve(kernel_name, network) or new_id(),
            owner_id=principal.token_id,
            owner_name=principal.name,
            kernel_name=kernel_name,
            language="",
            created_at=now,
            timeout=timeout or self._settings.execute_timeout,
            idle_timeout=idle_timeout or self._settings.cull_idle_timeout,
            network=network,
            one_off=one_off,
            metadata=dict(metadata or {}),
        )
        session = Session(info, now, sandboxed=self._isolation.sandboxed)
        self._opening.add(session)
        await self._opened(session)
        return session

    async def _opened(self, session: Session) -> None:
        """Open the session; when the caller is cancelled meanwhile, it is ended again."""
        opening = self._background.spawn(self._open(session))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            session.close()  # `_open` ends it, however far it has come
            if opening.done() and opening.exception() is None and not session.ended:
                self._start_ending(session, "cancelled")
            raise

    def get(self, principal: Principal, session_id: str) -> Session:
        """A live session of the principal's. Raises NotFoundError, SessionGoneError."""
        return self._find(session_id, principal.owns)

    def _find(self, session_id: str, may: Callable[[str], bool]) -> Session:
        """``may`` tells of an owner's id whether the asking one may know of the owner's sessions."""
        session = self._sessions.get(session_id)
        if session is not None and not session.ended and session.is_expired(self._clock()):
            self._start_ending(session, "expired")
        if session is not None and not session.ended and may(session.info.owner_id):
            return session
        owner_id, reason = self._gone.get(session_id, ("", ""))
        if reason and may(owner_id):
            raise SessionGoneError(
                f"The session has ended ({reason}); make a new one. Its record can still be read.",
                code="session_deleted" if reason == "deleted" else "session_expired",
            )
        raise NotFoundError("There is no session with this id.")

    def read(self, principal: Principal, session_id: str) -> Session:
        """A live session that the principal may read, if not use. Raises as `get`."""
        return self._find(session_id, principal.reads)

    def touch(self, session: Session) -> None:
        """Count a use that is no run: the session's idle time begins anew."""
        session.last_activity_at = self._clock()

    def list(self, principal: Principal) -> list[Session]:
        """The principal's live sessions, newest first; all of them for an admin."""
        now = self._clock()
        mine = [
            session
            for session in self._sessions.values()
            if principal.owns(session.info.owner_id) and not session.ended and not session.is_expired(now)
        ]
        return sorted(mine, key=lambda s: s.info.created_at, reverse=True)

    def count(self) -> int:
        """How many sessions are alive."""
        return len(self._sessions)

    async def delete(self, principal: Principal, session_id: str) -> None:
        """End a session; its record stays. Returns as `end`."""
        await self.end(self.get(principal, session_id), "deleted")

    async def end(self, session: Session, reason: str) -> None:
        """End a session: its kernel and files are gone when this returns, unless that takes long.

        After `END_PATIENCE` seconds the rest is done in the background, as it is when the caller is cancelled.
        """
        ending = self._start_ending(session, reason)
        await asyncio.wait({ending}, timeout=END_PATIENCE)
        if ending.done():
            ending.result()

    async def kernelspecs(self) -> JSON:
        """The kernelspecs that sessions may name, and the default one."""
        specs = await self._launcher.kernelspecs()
        return {**specs, "default": self._settings.kernel_name}

    async def cull(self) -> None:
        """End the sessions that were idle for longer than they may be."""
        now = self._clock()
        expired = [s for s in self._sessions.values() if not s.ended and s.is_expired(now)]
        await asyncio.gather(*(self.end(session, "expired") for session in expired))

    async def recover(self) -> None:
        """Take up the sessions that the record says are open.

        Where the gateway outlived the service and still has the kernel, the session goes on with it.
        """
        limit = asyncio.Semaphore(RECOVERED_AT_ONCE)

        async def bounded(record: SessionRecord) -> None:
            async with limit:
                await self._recover(record)

        found = await self._recorder.list_sessions()
        for record in reversed(found):
            if record.ended_reason is not None:
                self._remember_end(record.info, record.ended_reason)
        await asyncio.gather(*(bounded(record) for record in found if record.ended_reason is None))
        mine = {kernel_id for session in self._sessions.values() if (kernel_id := session.kernel_id)}
        self._background.spawn(self._launcher.end_others(mine))

    async def aclose(self) -> None:
        """Let go of all sessions; they stay open in the record and go on after the next start."""
        self._closing = True
        for session in self._opening:
            session.close()
        await asyncio.gather(*(self._close(s) for s in list(self._sessions.values()) if not s.ended))
        await self._background.settle()
        await self.kernels.settle()
        await self._launcher.aclose()

    async def _close(self, session: Session) -> None:
        if session.info.one_off:
            await self.end(session, "shutdown")
            return
        await self._call_hooks(session, "shutdown")
        if self._launcher.outlives_service:
            await self.kernels.detach(session)
        else:
            await self.kernels.release(session)

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise UnavailableError(
                "The service is shutting down.", retry_after=self._settings.shutdown_timeout
            )

    async def _language_of(self, kernel_name: str) -> str:
        if kernel_name in self._languages:
            return self._languages[kernel_name]
        specs = (await self._launcher.kernelspecs())["kernelspecs"]
        if kernel_name not in specs:
            raise InvalidRequestError(
                f"There is no kernelspec '{kernel_name}'; use one of: {', '.join(specs) or 'none'}.",
                param="kernel_name",
                code="no_such_kernelspec",
            )
        self._languages[kernel_name] = str(specs[kernel_name]["language"])
        return self._languages[kernel_name]

    async def _open(self, session: Session) -> None:
        """Runs in a task of its own, so that no cancellation leaves a half-made session behind."""
        try:
            language = await self._language_of(session.info.kernel_name)
            session.info = replace(session.info, language=language)
            await self._begin(session)
            self._sessions[session.id] = session
        except BaseException:
            await self._launcher.forget(session.id)
            self._slots.release(session.info.owner_id)
            raise
        finally:
            self._opening.discard(session)
        session.last_activity_at = self._clock()
        if session.closed:
            await self._start_ending(session, "shutdown" if self._closing else "cancelled")
            self._refuse_if_closing()

    async def _begin(self, session: Session) -> None:
        """Workspace, kernel and record of a new session, or none of them."""
        try:
            await asyncio.to_thread(self._workspaces.create, session.id)
        except OSError as error:
            raise UnavailableError(
                "The session's folder can't be made: the disk of state_dir is full or not writable."
            ) from error
        try:
            kernel = await self.kernels.launch(session)
            await self._recorder.begin_session(session.info)
        except BaseException:
            await self.kernels.release(session)
            await disposal.remove(self._workspaces.remove, session.id)
            raise
        await self.kernels.note_start(session, kernel)

    async def _recover(self, record: SessionRecord) -> None:
        info, note = record.info, record.kernel_note
        session = Session(
            info,
            record.last_activity_at,
            run_count=record.run_count,
            sandboxed=self._isolation.sandboxed,
        )
        session.fresh_kernel_reason = KERNEL_LOST_AT_RESTART if record.run_count else None
        self._sessions[info.id] = session
        self._slots.take(info.owner_id)
        if note is not None and note.event in _KERNEL_LIVES and self._launcher.outlives_service:
            session.lost_kernel_id = note.detail
        if info.one_off or session.is_expired(self._clock()):
            await self.end(session, "finished" if info.one_off else "expired")
        elif session.lost_kernel_id is not None:
            try:
                await self.kernels.attach(session)
            except GatewayError as error:
                log.warning("A session's kernel can't be looked for yet: %s", error.message)

    def _start_ending(self, session: Session, reason: str) -> "asyncio.Task[None]":
        """From now on the session is gone for clients; the task ends when its kernel is gone, too."""
        if session.ending is None:
            session.ended = reason
            self._remember_end(session.info, reason)
            session.ending = self._background.spawn(self._end(session, reason))
        return session.ending

    async def _end(self, session: Session, reason: str) -> None:
        try:
            await self._call_hooks(session, reason)
            await self.kernels.release(session)
            await self._recorder.end_session(session.id, reason)
            await disposal.remove(self._workspaces.remove, session.id)
        finally:
            if self._sessions.pop(session.id, None) is not None:
                self._slots.release(session.info.owner_id)

    async def _call_hooks(self, session: Session, reason: str) -> None:
        session.close()
        for hook in self._end_hooks:
            await hook(session, reason)

    def _remember_end(self, info: SessionInfo, reason: str) -> None:
        self._gone[info.id] = (info.owner_id, reason)
        while len(self._gone) > KEPT_ENDINGS:
            self._gone.popitem(last=False)
