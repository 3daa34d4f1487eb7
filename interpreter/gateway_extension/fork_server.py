"""The fork server of the default kernelspec: started with the gateway, and anew whenever it ends.

`ForkServerKeeper` keeps it; ``GET /api/fork_server`` tells how it is. Other kernelspecs' start with their
first kernel and are not told of.
"""

import asyncio
import contextlib
import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jupyter_server.base.handlers as server_base
from jupyter_client.kernelspec import NoSuchKernel
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_server.auth.decorator import authorized
from tornado import web

from interpreter.gateway_extension.handlers import GatewayHandlerMixin
from interpreter.gateway_extension.sandbox.bubblewrap import SandboxError
from interpreter.gateway_extension.sandbox.fork_command import Origin
from interpreter.gateway_extension.sandbox.provisioner import BubblewrapProvisioner
from interpreter.gateway_extension.sandbox.zygote import RETRY_AFTER, Zygote, find_zygote

FORK_SERVER_PATH = "/api/fork_server"
MAX_WAIT = 20.0
"""Seconds that a request may wait for the next state."""
STABLE_AFTER = 60.0
"""Seconds after which one that ended counts as having run well, so that its back-off begins anew."""


@dataclass(frozen=True, slots=True)
class ForkServerState:
    """``number`` grows with each change. ``state``: "off", "starting", "on" or "failed"; ``reason``: why it is
    started again, or failed; ``missing``: modules that could not be imported."""

    number: int = 0
    state: str = "starting"
    reason: str = ""
    missing: tuple[str, ...] = ()


class ForkServerKeeper:
    """Owns a task from `start` to `aclose`."""

    def __init__(self, log: logging.Logger | Any) -> None:
        self._log = log
        self._state = ForkServerState()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, kernels: Any) -> None:
        """Begin; ``kernels`` is the gateway's kernel manager, whose default kernelspec counts."""
        self._task = asyncio.create_task(self._run(kernels), name="fork server")

    async def aclose(self) -> None:
        """Watch no more. Zygotes end with this process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def state_after(self, number: int, wait: float) -> ForkServerState:
        """The state, as soon as its number is greater, or after ``wait`` seconds."""
        try:
            async with asyncio.timeout(wait):
                while self._state.number <= number:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._state

    def _tell(self, state: str, reason: str = "", missing: tuple[str, ...] = ()) -> None:
        number = self._state.number
        if number and self._state == ForkServerState(number, state, reason, missing):
            return
        self._state = ForkServerState(number + 1, state, reason, missing)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self, kernels: Any) -> None:
        try:
            found = _find(kernels)
        except (SandboxError, ValueError, OSError, NoSuchKernel) as error:
            self._log.warning("The fork server can't be used: %s", error)
            self._tell("failed", str(error))
            return
        if found is None:
            self._tell("off")
        else:
            await self._keep(*found)

    async def _keep(self, origin: Origin, folder: Path) -> None:
        delay = 0.0
        while True:
            try:
                zygote = await asyncio.to_thread(find_zygote, origin, folder)
            except (SandboxError, OSError) as error:
                self._log.warning("The fork server does not start: %s", error)
                self._tell("failed", str(error))
                await asyncio.sleep(RETRY_AFTER)
                continue
            self._tell("on", missing=zygote.missing)
            began = time.monotonic()
            code = await _end_of(zygote)
            self._tell("starting", _end_text(code))
            delay = min(max(1.0, delay * 2), RETRY_AFTER) if time.monotonic() - began < STABLE_AFTER else 0.0
            await asyncio.sleep(delay)  # kernels that are asked for meanwhile start one by themselves


def _find(kernels: Any) -> tuple[Origin, Path] | None:
    spec = kernels.kernel_spec_manager.get_kernel_spec(kernels.default_kernel_name)
    factory = KernelProvisionerFactory.instance(parent=kernels.parent)
    provisioner = factory.create_provisioner_instance("fork-server", spec, parent=kernels)
    return provisioner.find_fork_server() if isinstance(provisioner, BubblewrapProvisioner) else None


async def _end_of(zygote: Zygote) -> int:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def set_ended(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    def tell(code: int) -> None:
        with contextlib.suppress(RuntimeError):  # the gateway ends, and its loop has been closed
            loop.call_soon_threadsafe(set_ended, code)

    zygote.call_at_end(tell)
    code: int = await ended
    return code


def _end_text(code: int) -> str:
    return f"it was killed by signal {-code}" if code < 0 else f"it ended with code {code}"


class ForkServerHandler(GatewayHandlerMixin, server_base.APIHandler):  # type: ignore[misc]
    """``GET``: the state of the fork server; with ``?after=NUMBER`` the next one, or the same after a while."""

    auth_resource = "kernels"

    @web.authenticated
    @authorized
    async def get(self) -> None:
        after = self.get_query_argument("after", "")
        if after and not after.isdecimal():
            raise web.HTTPError(400, "`after` is the number of a state.")
        keeper: ForkServerKeeper = self.settings["kg_personality"].fork_server
        state = await keeper.state_after(int(after), MAX_WAIT) if after else await keeper.state_after(-1, 0)
        self.finish(json.dumps(asdict(state)))
