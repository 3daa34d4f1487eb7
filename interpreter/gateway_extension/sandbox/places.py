"""Where kernels live: a runtime folder, a workspace and, under a gateway that is root, a uid of its own."""

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from interpreter import disposal
from interpreter.gateway_extension.sandbox.bubblewrap import SandboxError
from interpreter.gateway_extension.sandbox.cgroups import find_parents, sweep_groups
from interpreter.gateway_extension.sandbox.folders import Instance, KernelFolder, instance
from interpreter.gateway_extension.sandbox.probe import uid_folder
from interpreter.gateway_extension.sandbox.uids import NoUidLeftError, UidLease, UidPool
from interpreter.gateway_extension.sandbox.workspace import (
    WorkspaceError,
    check_workspace,
    give_to,
    may_take_over,
)

WORKSPACE_POLL = 0.05
WORKSPACE_TIMEOUT = 10.0  # seconds for the kernel before to let go of the workspace


@dataclass
class Place:
    """What a kernel keeps across restarts: its folder, its uid, its workspace."""

    folder: KernelFolder
    uid: int
    workspace: Path
    lease: UidLease | None = None

    @property
    def drop_to(self) -> int | None:
        """The uid to become, when we are root."""
        return self.uid if self.lease is not None else None

    def release(self) -> None:
        """Remove the folder and give the uid back; further calls do nothing."""
        self.folder.remove()
        if self.lease is not None:
            self.lease.release()


@dataclass(frozen=True, slots=True)
class Places:
    """Makes places below ``runtime_dir``. ``workspace_root``: what workspaces must be below; empty: anywhere."""

    runtime_dir: str
    workspace_root: str
    uid_range: tuple[int, int]

    @property
    def instance(self) -> Instance:
        """The folder of this gateway process."""
        return instance(self.runtime_dir)

    async def take(self, cwd: str | None) -> Place:
        """A place with ``cwd`` as its workspace, else with one of its own. Raises `SandboxError`, ValueError."""
        own = await disposal.apart(lambda: self.instance)  # the first one sweeps
        if not own.swept:
            own.swept = True
            await disposal.apart(self._sweep, own.dead)
        workspace = (
            check_workspace(cwd, root=self.workspace_root, runtime_dir=self.runtime_dir) if cwd else None
        )
        folder = own.kernel_folder()
        try:
            if workspace:
                await self._wait_for(workspace)
            place = self._make(folder, workspace)
            await disposal.apart(_give_workspace, place)
        except BaseException:
            await disposal.apart(folder.remove)
            raise
        return place

    def _sweep(self, dead: list[str]) -> None:
        """Remove what gateways left that were killed (their folders are gone already)."""
        sweep_groups(find_parents(), dead)
        if os.geteuid() == 0:
            self._uids().sweep()

    def _uids(self) -> UidPool:
        return UidPool(uid_folder(self.runtime_dir), *self.uid_range)

    async def _wait_for(self, workspace: str) -> None:
        """A kernel that died, or is being replaced, lets go of its folder a little later."""
        if os.geteuid() != 0:
            return
        pool = self._uids()
        owner = os.stat(workspace, follow_symlinks=False).st_uid
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WORKSPACE_TIMEOUT):
                # A file lock can only be waited for without end, or asked about again.
                while owner in pool and pool.is_taken(owner):  # noqa: ASYNC110
                    await asyncio.sleep(WORKSPACE_POLL)

    def _make(self, folder: KernelFolder, workspace: str | None) -> Place:
        path = Path(workspace) if workspace else folder.private_workspace
        if not workspace:  # a given one that went meanwhile must not come back
            path.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() != 0:
            return Place(folder, os.geteuid(), path)
        pool = self._uids()
        if workspace and not may_take_over(workspace, pool.__contains__, root=self.workspace_root):
            raise WorkspaceError(
                "the kernel's working directory holds somebody's files: set workspace_root, or give an empty one"
            )
        owner = path.stat().st_uid
        lease = pool.find(owner)
        if lease is None:
            if owner in pool and workspace:
                raise WorkspaceError("the kernel's working directory is in use by another kernel")
            try:
                lease = pool.acquire()
            except NoUidLeftError as error:
                raise SandboxError(str(error)) from error
        return Place(folder, lease.uid, path, lease)


def _give_workspace(place: Place) -> None:
    if place.lease is not None:
        try:
            give_to(place.workspace, place.uid)
        except BaseException:
            place.lease.release()
            raise
