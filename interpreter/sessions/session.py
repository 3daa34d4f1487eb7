"""One conversation's live state."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

from interpreter.kernels.kernel import Kernel
from interpreter.models import SessionInfo, SessionStatus, SessionView


class Session:
    """What is known of a session while the service runs.

    Only the modules of this package and of ``runs`` change it.
    """

    def __init__(
        self, info: SessionInfo, now: datetime, *, run_count: int = 0, sandboxed: bool | None = None
    ) -> None:
        self.info = info
        self.sandboxed = sandboxed
        """Whether its kernels run in a sandbox; None when that is an external gateway's matter."""
        self.kernel: Kernel | None = None
        self.lost_kernel_id: str | None = None
        """A kernel of the last service that may still live behind a gateway that did not answer."""
        self.making: asyncio.Task[Any] | None = None
        """What starts or restarts the kernel at present."""
        self.leaving: asyncio.Task[None] | None = None
        """The shutdown of the kernel before."""
        self.starting = False
        self.closed = False
        """Whether it gets no kernel any more: it has ended, or the service stops."""
        self.ended: str | None = None
        self.ending: asyncio.Task[None] | None = None
        self.active_runs = 0
        self.run_count = run_count
        self.last_activity_at = now
        self.fresh_kernel_reason: str | None = None
        """Why the kernel is not the one that the client knew; told by the next run."""
        self.kernel_lock = asyncio.Lock()

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def kernel_id(self) -> str | None:
        """Of the kernel that it has, or may still have."""
        return self.kernel.id if self.kernel is not None else self.lost_kernel_id

    @property
    def expires_at(self) -> datetime:
        return self.last_activity_at + timedelta(seconds=self.info.idle_timeout)

    def is_expired(self, now: datetime) -> bool:
        return not self.active_runs and now >= self.expires_at

    def close(self) -> None:
        """No kernel any more: what makes one is stopped."""
        self.closed = True
        if self.making is not None:
            self.making.cancel()

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
        return SessionView(
            self.info,
            self.status,
            self.last_activity_at,
            self.expires_at,
            self.run_count,
            self.sandboxed,
        )
