"""A gateway that outlives the service, and which of its kernels the service has started.

A service that is killed leaves kernels that no session has: those that were just being started, those that were
ready for the next session, those whose session ended while the gateway could not be reached. The next service ends them.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Container
from pathlib import Path
from urllib.parse import quote, unquote

from interpreter.kernels.gateway import Gateway
from interpreter.kernels.target import GatewayTarget
from interpreter.models import JSON

log = logging.getLogger(__name__)

_PREFIX = "kernel-"  # no id is a path then
_MAX_NAME = 200
_AT_ONCE = 8


class RememberingGateway(Gateway):
    """Keeps an empty file for each kernel from its start to its end; a disk that takes none only weakens this."""

    def __init__(self, target: GatewayTarget, folder: Path) -> None:
        super().__init__(target)
        self._folder = folder

    async def end_others(self, kernel_ids: Container[str]) -> None:
        """End the kernels that this service, or one before it, has started and that are none of these."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def end(kernel_id: str) -> None:
            async with limit:
                await self.discard_kernel(kernel_id)

        others = [kernel_id for kernel_id in self._started() if kernel_id not in kernel_ids]
        if others:
            log.info("Kernels that an earlier service left without a session are ended: %d", len(others))
        await asyncio.gather(*map(end, others))

    async def delete_kernel(self, kernel_id: str) -> None:
        """As `Gateway.delete_kernel`."""
        await super().delete_kernel(kernel_id)
        with contextlib.suppress(OSError):
            self._file_of(kernel_id).unlink()

    async def _start_kernel(self, body: JSON, timeout: float) -> str:
        kernel_id = await super()._start_kernel(body, timeout)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._file_of(kernel_id).touch(mode=0o600)
        except OSError as error:
            log.warning("It could not be noted that a kernel was started: %s", error.strerror)
        return kernel_id

    def _file_of(self, kernel_id: str) -> Path:
        return self._folder / f"{_PREFIX}{quote(kernel_id, safe='')}"[:_MAX_NAME]

    def _started(self) -> list[str]:
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        return [unquote(name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX)]
