"""Notices that a kernel's process has ended when it ends, where upstream asks each kernel again and again."""

import asyncio
import os
from contextlib import suppress
from typing import Any

from jupyter_client.ioloop.restarter import AsyncIOLoopKernelRestarter

RARELY = 10.0
"""Seconds between two looks at a kernel whose end is told anyway; for 200 kernels each look counts."""
LAST_WORDS = 0.1
"""Seconds from the end of a process to the news of it: what the kernel said last is still on its way."""


class PromptRestarter(AsyncIOLoopKernelRestarter):
    """Point ``AsyncIOLoopKernelManager.restarter_class`` at it. Without pidfds, or a process here, it is upstream's."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._handle: int | None = None
        self._news: asyncio.TimerHandle | None = None
        self._look: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Watch the kernel's process."""
        self._unwatch()
        pid = getattr(self.kernel_manager.provisioner, "pid", None)
        if isinstance(pid, int) and hasattr(os, "pidfd_open"):
            with suppress(OSError):  # it has ended and was waited for: asking will tell
                self._handle = os.pidfd_open(pid)
                asyncio.get_running_loop().add_reader(self._handle, self._ended)
                self.time_to_dead = RARELY
        super().start()

    def stop(self) -> None:
        """Watch no more."""
        self._unwatch()
        super().stop()

    def _ended(self) -> None:
        self._unwatch()
        self._news = asyncio.get_running_loop().call_later(LAST_WORDS, self._tell)

    def _tell(self) -> None:
        self._news = None
        if self._pcallback is not None:
            self._look = asyncio.ensure_future(self.poll())

    def _unwatch(self) -> None:
        if self._news is not None:
            self._news.cancel()
            self._news = None
        handle, self._handle = self._handle, None
        if handle is not None:
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)
