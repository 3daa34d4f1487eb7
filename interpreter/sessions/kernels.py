"""The kernel of each session: started, restarted, replaced, let go."""

import asyncio
import logging
from collections.abc import Container, Coroutine
from typing import Any, Protocol

from interpreter.errors import InterpreterError, UnavailableError
from interpreter.kernels.background import Background
from interpreter.kernels.kernel import Kernel, KernelDeath, KernelDiedError
from interpreter.models import JSON, SessionInfo
from interpreter.record import Recorder
from interpreter.sessions.session import Session

log = logging.getLogger(__name__)

LEAVE_TIMEOUT = 5.0  # seconds to wait for a kernel to leave the session's folder
FRESH_KERNEL = "The kernel is a fresh one: earlier variables and imports are gone."


class Launcher(Protocol):
    """Where kernels come from: the gateway, or a pool in front of it."""

    def reserve(self, kernel_name: str, network: str | None) -> str | None: ...
    async def forget(self, session_id: str) -> None: ...
    async def launch(self, info: SessionInfo) -> Kernel: ...
    async def attach(self, info: SessionInfo, kernel_id: str) -> Kernel | None: ...
    async def discard(self, kernel_id: str) -> None: ...
    async def end_others(self, kernel_ids: Container[str]) -> None: ...
    async def gone(self, session_id: str, timeout: float) -> None: ...
    async def kernelspecs(self) -> JSON: ...
    async def aclose(self) -> None: ...
    @property
    def outlives_service(self) -> bool: ...


class SessionKernels:
    """Gives sessions their kernels. At most one is being made per session at a time."""

    def __init__(self, launcher: Launcher, recorder: Recorder, *, start_timeout: float) -> None:
        self._launcher = launcher
        self._recorder = recorder
        self._start_timeout = start_timeout
        self._background = Background()

    @property
    def outlive_service(self) -> bool:
        """Whether kernels go on when the service stops."""
        return self._launcher.outlives_service

    async def ensure(self, session: Session) -> Kernel:
        """The session's kernel, started when there is none.

        Raises GatewayError, KernelStartTimeoutError, InvalidRequestError, UnavailableError (closed).
        """
        async with session.kernel_lock:
            if session.kernel is not None and not session.kernel.dead:
                return session.kernel
            return await self._launch(session)

    def renew(self, session: Session, reason: str) -> "asyncio.Task[Kernel]":
        """Give the session a clean kernel: a restart, or a new one where that fails.

        From now on the old one is out of reach; the task raises as `ensure`.
        """
        kernel, session.kernel = session.kernel, None
        session.fresh_kernel_reason = reason
        session.starting = True
        return self._background.spawn(self._renew(session, kernel))

    def discard(self, session: Session, reason: str) -> None:
        """Let go of a dead or useless kernel; it is shut down in the background."""
        kernel, session.kernel = session.kernel, None
        session.fresh_kernel_reason = reason
        if kernel is not None:
            session.leaving = self._background.spawn(kernel.shutdown())
            self._background.spawn(self._recorder.note_kernel(session.id, "kernel_died", reason))

    def prepare(self, session: Session) -> None:
        """Start the next kernel in the background, so that the next run need not wait for it."""
        self._background.spawn(self._prepare(session))

    async def launch(self, session: Session) -> Kernel:
        """A first kernel for a session that the record does not know yet; `note_start` follows.

        Raises as `ensure`.
        """
        async with session.kernel_lock:
            kernel = await self._make(session, self._start(session))
            self._own(session, kernel)
            return kernel

    async def note_start(self, session: Session, kernel: Kernel) -> None:
        """Note in the record which kernel the session has."""
        await self._recorder.note_kernel(session.id, "kernel_started", kernel.id)

    async def attach(self, session: Session) -> None:
        """Take up the kernel of the last service, if it still lives.

        Raises GatewayError when the gateway does not say; then it is tried again when it is needed.
        """
        async with session.kernel_lock:
            if session.lost_kernel_id is not None and not session.closed:
                kernel = await self._find_lost(session)
                if kernel is not None:
                    self._own(session, kernel)
                    await self.note_start(session, kernel)

    async def release(self, session: Session) -> None:
        """Shut the session's kernel down for good; what makes one is stopped.

        Kernels that were on their way, in or out, are gone as well, unless that takes too long: each of
        them uses the session's folder.
        """
        kernel = await self._take(session)
        if kernel is not None:
            await kernel.shutdown()
        await self._left(session)
        await self._launcher.gone(session.id, LEAVE_TIMEOUT)
        if session.lost_kernel_id is not None:
            await self._launcher.discard(session.lost_kernel_id)

    async def detach(self, session: Session) -> None:
        """Let go of the session's kernel, which goes on living."""
        kernel = await self._take(session)
        if kernel is not None:
            await kernel.detach()

    async def settle(self) -> None:
        """Wait for what goes on in the background."""
        await self._background.settle()

    async def _take(self, session: Session) -> Kernel | None:
        session.close()
        async with session.kernel_lock:
            kernel, session.kernel = session.kernel, None
        return kernel

    async def _launch(self, session: Session) -> Kernel:
        kernel = await self._make(session, self._start(session))
        self._own(session, kernel)
        await self.note_start(session, kernel)
        return kernel

    async def _start(self, session: Session) -> Kernel:
        await self._left(session)  # two kernels must not work in one folder
        return await self._find_lost(session) or await self._launcher.launch(session.info)

    @staticmethod
    async def _left(session: Session) -> None:
        if session.leaving is not None:
            await asyncio.wait({session.leaving}, timeout=LEAVE_TIMEOUT)
            session.leaving = None

    async def _find_lost(self, session: Session) -> Kernel | None:
        if session.lost_kernel_id is None:
            return None
        kernel = await self._launcher.attach(session.info, session.lost_kernel_id)
        session.lost_kernel_id = None
        if kernel is not None:
            session.fresh_kernel_reason = None
        return kernel

    def _own(self, session: Session, kernel: Kernel) -> None:
        session.kernel = kernel
        kernel.on_death(lambda death: self._died(session, kernel, death))

    async def _renew(self, session: Session, kernel: Kernel | None) -> Kernel:
        async with session.kernel_lock:
            if kernel is None and session.kernel is not None and not session.kernel.dead:
                session.starting = False
                return session.kernel  # clean: it was being made when this was asked for
            if kernel is not None and not kernel.dead:
                try:
                    await self._make(session, self._restart(kernel))
                    kernel.raise_if_dead()
                except (InterpreterError, KernelDiedError, TimeoutError) as error:
                    log.warning("A kernel could not be restarted; it is replaced: %s", error)
                else:
                    session.kernel = kernel
                    await self._recorder.note_kernel(session.id, "kernel_restarted", kernel.id)
                    return kernel
            if kernel is not None:
                session.leaving = self._background.spawn(kernel.shutdown())
            return await self._launch(session)

    async def _restart(self, kernel: Kernel) -> Kernel:
        async with asyncio.timeout(self._start_timeout):
            await kernel.restart()
        return kernel

    async def _make(self, session: Session, work: Coroutine[Any, Any, Kernel]) -> Kernel:
        """Do the work unless the session is closed, also meanwhile. The caller holds the lock."""
        if session.closed:
            work.close()
            raise _closed()
        making = session.making = self._background.spawn(work)
        session.starting = True
        try:
            await asyncio.wait({making})
        finally:
            making.cancel()
            session.making, session.starting = None, False
        if making.cancelled():
            raise _closed()
        kernel: Kernel = making.result()
        if session.closed:
            session.leaving = self._background.spawn(kernel.shutdown())
            raise _closed()
        return kernel

    async def _prepare(self, session: Session) -> None:
        try:
            await self.ensure(session)
        except InterpreterError as error:
            log.warning("No new kernel for a session: %s", error.message)

    def _died(self, session: Session, kernel: Kernel, death: KernelDeath) -> None:
        if session.kernel is kernel:
            log.warning("A kernel died: %s", death.sentence)
            self.discard(session, f"{death.sentence} {FRESH_KERNEL}")


def _closed() -> UnavailableError:
    return UnavailableError("The session or the service is ending.", retry_after=1)
