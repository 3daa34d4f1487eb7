"""A launcher that gives new sessions kernels from the pool, when one is ready."""

import asyncio
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from interpreter import disposal
from interpreter.kernels.kernel import Kernel
from interpreter.kernels.launcher import GatewayLauncher
from interpreter.kernels.pool import KernelPool, PoolLimits, ReadyKernel
from interpreter.models import JSON, SessionInfo


class PooledLauncher:
    """Starts kernels as `GatewayLauncher` does, but has some ready.

    A ready kernel already works in the folder of the session id that it waits under, so a session
    must take that id: `reserve` tells it, `launch` then gives the kernel, `forget` gives it up.
    """

    def __init__(
        self,
        launcher: GatewayLauncher,
        limits: PoolLimits,
        *,
        default_kernel_name: str,
        default_network: str | None,
        create_workspace: Callable[[str], Path],
        remove_workspace: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        self._launcher = launcher
        self._network = default_network
        self._create_workspace = create_workspace
        self._remove_workspace = remove_workspace
        self._reserved: dict[str, ReadyKernel] = {}
        self.pool = KernelPool(
            limits,
            default_kernel_name=default_kernel_name,
            start=self._start,
            drop_workspace=self._drop_workspace,
            now=now,
        )

    @property
    def outlives_service(self) -> bool:
        return self._launcher.outlives_service

    def reserve(self, kernel_name: str, network: str | None) -> str | None:
        """The session id of a ready kernel, which is now the caller's; None when none fits.

        Ready kernels have the default network policy; for another one a new kernel is started.
        """
        ready = self.pool.take(kernel_name) if network == self._network else None
        if ready is None:
            return None
        self._reserved[ready.session_id] = ready
        return ready.session_id

    async def forget(self, session_id: str) -> None:
        """Shut a reserved kernel down that was not launched; nothing for any other id."""
        ready = self._reserved.pop(session_id, None)
        if ready is not None:
            await ready.kernel.shutdown()

    async def launch(self, info: SessionInfo) -> Kernel:
        """The reserved kernel of the session, or a new one. Raises as `GatewayLauncher.launch`."""
        ready = self._reserved.pop(info.id, None)
        if ready is not None and not ready.kernel.dead:
            return ready.kernel
        return await self._launcher.launch(info)

    async def attach(self, info: SessionInfo, kernel_id: str) -> Kernel | None:
        """As `GatewayLauncher.attach`."""
        return await self._launcher.attach(info, kernel_id)

    async def discard(self, kernel_id: str) -> None:
        """As `GatewayLauncher.discard`."""
        await self._launcher.discard(kernel_id)

    async def end_others(self, kernel_ids: Container[str]) -> None:
        """As `GatewayLauncher.end_others`."""
        await self._launcher.end_others(kernel_ids)

    async def gone(self, session_id: str, timeout: float) -> None:
        """As `GatewayLauncher.gone`."""
        await self._launcher.gone(session_id, timeout)

    async def kernelspecs(self) -> JSON:
        """As `GatewayLauncher.kernelspecs`."""
        return await self._launcher.kernelspecs()

    async def aclose(self) -> None:
        """End the kernels that nobody took, then what the launcher still has to do."""
        await self.pool.aclose()
        await asyncio.gather(*(self.forget(session_id) for session_id in list(self._reserved)))
        await self._launcher.aclose()

    async def _start(self, kernel_name: str, session_id: str) -> Kernel:
        await asyncio.to_thread(self._create_workspace, session_id)
        try:
            return await self._launcher.start(kernel_name, session_id, network=self._network)
        except BaseException:
            await asyncio.shield(self._drop_workspace(session_id))
            raise

    async def _drop_workspace(self, session_id: str) -> Any:
        await disposal.remove(self._remove_workspace, session_id)
