"""Starts the kernels of sessions on a gateway."""

import contextlib
import logging
from collections.abc import Container
from dataclasses import dataclass

from interpreter.errors import GatewayError, KernelStartTimeoutError
from interpreter.kernels.gateway import Gateway
from interpreter.kernels.kernel import Kernel
from interpreter.kernels.remembering import RememberingGateway
from interpreter.models import JSON, SessionInfo

log = logging.getLogger(__name__)

ATTACH_TIMEOUT = 15.0  # seconds for a kernel of an earlier service to answer


@dataclass(frozen=True, slots=True)
class GatewayLauncher:
    """Starts each kernel when it is asked for.

    ``workspace_path`` is where the workspaces lie below the gateway's root folder, None when the
    gateway does not share our disk. ``outlives_service``: the gateway is not a part of this service.
    """

    gateway: Gateway
    start_timeout: float
    workspace_path: str | None
    outlives_service: bool

    async def launch(self, info: SessionInfo) -> Kernel:
        """A kernel for the session. Raises GatewayError, KernelStartTimeoutError, InvalidRequestError."""
        return await self.start(info.kernel_name, info.id, network=info.network)

    async def start(self, kernel_name: str, session_id: str, *, network: str | None = None) -> Kernel:
        """A kernel in the folder of a session that may not exist yet. Raises as `launch`."""
        env = {"KERNEL_SESSION_ID": session_id, "KERNEL_USERNAME": "interpreter"}
        if network is not None:
            env["KERNEL_NETWORK"] = network
        path = None
        if self.workspace_path is not None:
            path = f"{self.workspace_path}/{session_id}".lstrip("/")
        return await Kernel.start(
            self.gateway, kernel_name, timeout=self.start_timeout, path=path, env=env, owner=session_id
        )

    def reserve(self, kernel_name: str, network: str | None) -> str | None:
        """No kernel is ready before it is asked for."""
        return None

    async def forget(self, session_id: str) -> None:
        """Nothing is reserved."""

    async def attach(self, info: SessionInfo, kernel_id: str) -> Kernel | None:
        """The kernel that an earlier service left running, None when it is gone or stuck.

        What it still executes is interrupted: the run that asked for it is over. Raises GatewayError
        when the gateway can't be asked.
        """
        if not await self.gateway.has_kernel(kernel_id):
            return None
        with contextlib.suppress(GatewayError):
            await self.gateway.interrupt_kernel(kernel_id)
        try:
            return await Kernel.attach(
                self.gateway, kernel_id, info.kernel_name, timeout=ATTACH_TIMEOUT, owner=info.id
            )
        except (GatewayError, KernelStartTimeoutError) as error:
            log.warning("A session's kernel can't be taken up again: %s", error.message)
            return None

    async def discard(self, kernel_id: str) -> None:
        """Delete a kernel that nobody wants, as well as it can be done."""
        await self.gateway.discard_kernel(kernel_id)

    async def end_others(self, kernel_ids: Container[str]) -> None:
        """End the kernels that an earlier service has started and that are none of these."""
        if isinstance(self.gateway, RememberingGateway):  # any other ends with the service
            await self.gateway.end_others(kernel_ids)

    async def gone(self, session_id: str, timeout: float) -> None:
        """Wait until kernels are deleted that were being started for a session that ended."""
        await self.gateway.gone(session_id, timeout)

    async def aclose(self) -> None:
        """Wait for kernels that are still being deleted."""
        await self.gateway.settle()

    async def kernelspecs(self) -> JSON:
        """The gateway's kernelspecs."""
        return await self.gateway.kernelspecs()
