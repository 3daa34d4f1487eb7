"""Sessions: who owns which kernel, how many there may be, and when they end.

A session outlives its kernel: when the kernel dies or the service restarts, the next run gets a
fresh one and is told so. What a session is stands in the record; this module holds the live part.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from interpreter.errors import (
    InterpreterError,
    InvalidRequestError,
    NotFoundError,
    SessionGoneError,
    TooManySessionsError,
    UnavailableError,
)
from interpreter.kernels.kernel import Kernel, KernelDeath
from interpreter.models import JSON, Principal, SessionInfo, SessionStatus, SessionView, new_id
from interpreter.record import Recorder
from interpreter.settings import Settings
from interpreter.workspace import Workspaces

log = logging.getLogger(__name__)

KERNEL_LOST_AT_RESTART = (
    "The service was restarted, so the kernel is a fresh one: earlier variables are gone."
)

_KERNEL_LIVES = ("kernel_started", "kernel_restarted")  # notes of the record whose detail is a kernel id

EndHook = Callable[["Session", str], Awaitable[None]]


class Launcher(Protocol):
    """Where kernels come from: the gateway, or a pool in front of it."""

    async def launch(self, info: SessionInfo) -> Kernel: ...
    async def attach(self, info: SessionInfo, kernel_id: str) -> Kernel | None: ...
    async def kernelspecs(self) -> JSON: ...
    @property
    def outlives_service(self) -> bool: ...


class Session:
    """One conversation's live state. Only `SessionManager` and `runs.RunManager` change it."""

    def __init__(self, info: SessionInfo, now: datetime, *, run_count: int = 0) -> None:
        self.info = info
        self.kernel: Kernel | None = None
        self.starting = False
        self.ended: str | None = None
        self.active_runs = 0
        self.run_count = run_count
        self.last_activity_at = now
        self.fresh_kernel_reason: str | None = None
        """Why the kernel is not the one that the client knew; told by the next run."""
        self.kernel_lock = asyncio.Lock()
        self.gone = asyncio.Event()

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def expires_at(self) -> datetime:
        return self.last_activity_at + timedelta(seconds=self.info.idle_timeout)

    def is_expired(self, now: datetime) -> bool:
        return not self.active_runs and now >= self.expires_at

    @property
    def status(self) -> SessionStatus:
        if self.ended:
            return SessionStatus.EXPIRED
        if self.starting:
            return SessionStatus.STARTING
        if self.active_runs:
            return SessionStatus.BUSY
        return SessionStatus.IDLE if self.kernel is not None else SessionStatus.DEAD

    def view(self) -> SessionView:
        return SessionView(self.info, self.status, self.last_activity_at, self.expires_at, self.run_count)


class SessionManager:
    """All live sessions of the service."""

    def __init__(
        self,
        settings: Settings,
        launcher: Launcher,
        recorder: Recorder,
        workspaces: Workspaces,
        *,
        clock: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._launcher = launcher
        self._recorder = recorder
        self._workspaces = workspaces
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._gone: dict[str, tuple[str, str]] = {}  # session id → (owner id, reason)
        self._reserved: dict[str, int] = {}  # token id → slots, starting ones and live ones
        self._end_hooks: list[EndHook] = []
        self._tasks: set[asyncio.Task[Any]] = set()
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
    ) -> Session:
        """Start a session and its kernel.

        Raises TooManySessionsError, InvalidRequestError, GatewayError, KernelStartTimeoutError,
        UnavailableError.
        """
        self._reserve(principal)
        try:
            self._refuse_if_unavailable()
            name = kernel_name or self._settings.kernel_name
            info = SessionInfo(
                id=new_id(),
                owner_id=principal.token_id,
                owner_name=principal.name,
                kernel_name=name,
                language=await self._language_of(name),
                created_at=self._clock(),
                timeout=timeout or self._settings.execute_timeout,
                idle_timeout=idle_timeout or self._settings.cull_idle_timeout,
                network=network,
                one_off=one_off,
                metadata=dict(metadata or {}),
            )
            return await self._open(info)
        except BaseException:
            self._release(principal.token_id)
            raise

    def get(self, principal: Principal, session_id: str) -> Session:
        """A live session of the principal's. Raises NotFoundError, SessionGoneError."""
        session = self._sessions.get(session_id)
        if session is not None and session.is_expired(self._clock()):
            self._spawn(self._end(session, "expired"))
        elif session is not None and principal.owns(session.info.owner_id):
            return session
        owner_id, reason = self._gone.get(session_id, ("", ""))
        if reason and principal.owns(owner_id):
            raise SessionGoneError(
                f"The session has ended ({reason}); make a new one. Its record can still be read.",
                code="session_deleted" if reason == "deleted" else "session_expired",
            )
        raise NotFoundError("There is no session with this id.")

    def list(self, principal: Principal) -> list[Session]:
        """The principal's live sessions, newest first; all of them for an admin."""
        now = self._clock()
        mine = [
            s for s in self._sessions.values() if principal.owns(s.info.owner_id) and not s.is_expired(now)
        ]
        return sorted(mine, key=lambda s: s.info.created_at, reverse=True)

    def count(self) -> int:
        """How many sessions are alive."""
        return len(self._sessions)

    async def delete(self, principal: Principal, session_id: str) -> None:
        """End a session; its kernel is gone when this returns, its record stays."""
        await self.end(self.get(principal, session_id), "deleted")

    async def end(self, session: Session, reason: str) -> None:
        """End a session. It goes on to its end even when the caller is cancelled."""
        await asyncio.shield(self._spawn(self._end(session, reason)))

    async def kernelspecs(self) -> JSON:
        """The kernelspecs that sessions may name, and the default one."""
        specs = await self._launcher.kernelspecs()
        return {**specs, "default": self._settings.kernel_name}

    async def ensure_kernel(self, session: Session) -> Kernel:
        """The session's kernel, started when there is none.

        Raises GatewayError, KernelStartTimeoutError.
        """
        async with session.kernel_lock:
            if session.kernel is not None and not session.kernel.dead:
                return session.kernel
            session.starting = True
            try:
                kernel = await self._launcher.launch(session.info)
            finally:
                session.starting = False
            if session.ended:
                await kernel.shutdown()
                raise UnavailableError("The session has ended.")
            await self._adopt(session, kernel)
            return kernel

    async def restart_kernel(self, session: Session, reason: str) -> Kernel:
        """Give the session a clean kernel: a restart, or a new one where that fails."""
        kernel = session.kernel
        if kernel is not None and not kernel.dead:
            async with session.kernel_lock:
                session.starting = True
                try:
                    async with asyncio.timeout(self._settings.kernel_start_timeout):
                        await kernel.restart()
                    await self._recorder.note_kernel(session.id, "kernel_restarted", kernel.id)
                    return kernel
                except (InterpreterError, TimeoutError):
                    log.warning("A kernel could not be restarted; it is replaced.", exc_info=True)
                finally:
                    session.starting = False
        self.discard_kernel(session, reason)
        return await self.ensure_kernel(session)

    def discard_kernel(self, session: Session, reason: str) -> None:
        """Let go of a dead or useless kernel; it is shut down in the background."""
        kernel, session.kernel = session.kernel, None
        session.fresh_kernel_reason = reason
        if kernel is not None:
            self._spawn(kernel.shutdown())
            self._spawn(self._recorder.note_kernel(session.id, "kernel_died", reason))

    def prepare_kernel(self, session: Session) -> None:
        """Start the next kernel in the background, so that the next run need not wait for it."""
        self._spawn(self._prepare(session))

    async def _prepare(self, session: Session) -> None:
        try:
            await self.ensure_kernel(session)
        except InterpreterError as error:
            log.warning("No new kernel for a session: %s", error.message)

    async def cull(self) -> None:
        """End the sessions that were idle for longer than they may be."""
        now = self._clock()
        expired = [s for s in self._sessions.values() if s.is_expired(now)]
        await asyncio.gather(*(self.end(session, "expired") for session in expired))

    async def recover(self) -> None:
        """Take up the sessions that the record says are open.

        Where the gateway outlived the service and still has the kernel, the session goes on with it.
        """
        now = self._clock()
        for record in await self._recorder.list_sessions():
            info = record.info
            if record.ended_reason is not None:
                self._gone[info.id] = (info.owner_id, record.ended_reason)
                continue
            session = Session(info, record.last_activity_at, run_count=record.run_count)
            session.fresh_kernel_reason = KERNEL_LOST_AT_RESTART if record.run_count else None
            self._sessions[info.id] = session
            self._reserved[info.owner_id] = self._reserved.get(info.owner_id, 0) + 1
            kernel = None
            note = record.kernel_note
            if note is not None and note.event in _KERNEL_LIVES and self._launcher.outlives_service:
                kernel = await self._launcher.attach(info, note.detail)
            if info.one_off or session.is_expired(now):
                session.kernel = kernel
                await self._end(session, "expired")
            elif kernel is not None:
                session.fresh_kernel_reason = None
                await self._adopt(session, kernel)

    async def aclose(self) -> None:
        """Let go of all sessions; they stay open in the record and go on after the next start."""
        self._closing = True
        await asyncio.gather(*(self._close(session) for session in list(self._sessions.values())))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _close(self, session: Session) -> None:
        for hook in self._end_hooks:
            await hook(session, "shutdown")
        kernel, session.kernel = session.kernel, None
        if kernel is not None:
            await (kernel.detach() if self._launcher.outlives_service else kernel.shutdown())

    def _reserve(self, principal: Principal) -> None:
        """Take a slot, before anything is awaited."""
        settings, owner_id = self._settings, principal.token_id
        mine, total = self._reserved.get(owner_id, 0), sum(self._reserved.values())
        if total >= settings.max_sessions:
            limit = f"max_sessions ({settings.max_sessions})"
        elif settings.max_sessions_per_token and mine >= settings.max_sessions_per_token:
            limit = f"max_sessions_per_token ({settings.max_sessions_per_token})"
        else:
            self._reserved[owner_id] = mine + 1
            return
        raise TooManySessionsError(
            f"All session slots are taken: {limit} is reached; delete a session or try again later.",
            retry_after=settings.cull_interval,
        )

    def _release(self, owner_id: str) -> None:
        left = self._reserved.pop(owner_id) - 1
        if left:
            self._reserved[owner_id] = left

    def _refuse_if_unavailable(self) -> None:
        if self._closing:
            raise UnavailableError(
                "The service is shutting down.", retry_after=self._settings.shutdown_timeout
            )

    async def _language_of(self, kernel_name: str) -> str:
        specs = (await self._launcher.kernelspecs())["kernelspecs"]
        if kernel_name not in specs:
            raise InvalidRequestError(
                f"There is no kernelspec '{kernel_name}'; use one of: {', '.join(specs) or 'none'}.",
                param="kernel_name",
                code="no_such_kernelspec",
            )
        language: str = specs[kernel_name]["language"]
        return language

    async def _open(self, info: SessionInfo) -> Session:
        session = Session(info, info.created_at)
        await asyncio.to_thread(self._workspaces.create, info.id)
        try:
            kernel = await self._launcher.launch(info)
            try:
                self._refuse_if_unavailable()
                await self._recorder.begin_session(info)
            except BaseException:
                await asyncio.shield(kernel.shutdown())
                raise
            await self._adopt(session, kernel)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(self._workspaces.remove, info.id))
            raise
        session.last_activity_at = self._clock()
        self._sessions[info.id] = session
        return session

    async def _adopt(self, session: Session, kernel: Kernel) -> None:
        session.kernel = kernel
        kernel.on_death(lambda death: self._kernel_died(session, kernel, death))
        await self._recorder.note_kernel(session.id, "kernel_started", kernel.id)

    def _kernel_died(self, session: Session, kernel: Kernel, death: KernelDeath) -> None:
        if session.kernel is kernel:
            log.warning("A kernel died: %s", death.sentence)
            self.discard_kernel(
                session, f"{death.sentence} The kernel is a fresh one: earlier variables are gone."
            )

    async def _end(self, session: Session, reason: str) -> None:
        if session.ended:
            await session.gone.wait()
            return
        session.ended = reason
        self._gone[session.id] = (session.info.owner_id, reason)
        try:
            for hook in self._end_hooks:
                await hook(session, reason)
            async with session.kernel_lock:
                kernel, session.kernel = session.kernel, None
            if kernel is not None:
                await kernel.shutdown()
            await self._recorder.end_session(session.id, reason)
            await asyncio.to_thread(self._workspaces.remove, session.id)
        finally:
            self._sessions.pop(session.id, None)
            self._release(session.info.owner_id)
            session.gone.set()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run in the background; `aclose` waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("Background work of a session failed.", exc_info=error)
