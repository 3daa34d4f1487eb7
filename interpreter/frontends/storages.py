"""Where files lie that clients upload before there is a session: each upload in a folder of its own.

A client names that folder, or a session that made files, by one id, its storage session.
"""

import asyncio
import contextlib
import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from interpreter.api.services import Services
from interpreter.errors import NotFoundError
from interpreter.frontends.identity import Identity
from interpreter.models import new_id
from interpreter.workspace import Files, Workspaces

if TYPE_CHECKING:
    from interpreter.sessions import Session

UPLOAD_LIFETIME = 24 * 3600.0  # seconds; LibreChat sends again what is older than 23 hours
_SWEEP_INTERVAL = 600.0  # seconds
_ID = re.compile(r"[A-Za-z0-9_-]{21}")
_SHARED_KINDS = ("skill", "agent")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a storage session: a user, or what users share (``kind`` skill or agent)."""

    kind: str = "user"
    id: str = ""
    version: str = ""

    def key(self, identity: Identity) -> str:
        """What tells this owner from all others."""
        if self.kind in _SHARED_KINDS and self.id:
            return "\0".join((identity.tenant, self.kind, self.id, self.version))
        return identity.principal.token_id


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of one upload."""

    id: str


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage session. ``session`` is ours when code runs in there."""

    id: str
    files: Files
    session: "Session | None" = None


class Storages:
    """All storage sessions: live sessions, and the folders of uploads."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._root = Path(services.settings.state_dir) / "librechat"
        self._owners: dict[str, Workspaces] = {}
        self._prepared: set[Path] = set()
        self._making = asyncio.Lock()
        self._swept_at = 0.0

    async def make(self, identity: Identity, owner: Owner) -> tuple[Workspaces, Folder]:
        """A new folder for an upload."""
        workspaces = self._workspaces(owner.key(identity))
        folder = Folder(new_id())
        async with self._making:
            await asyncio.to_thread(self._make, workspaces, folder)
        return workspaces, folder

    def find(self, identity: Identity, storage_id: str, owner: Owner) -> Storage:
        """Raises NotFoundError."""
        if not _ID.fullmatch(storage_id):
            raise not_found()
        for key in {owner.key(identity): None, identity.principal.token_id: None}:
            workspaces = self._workspaces(key)
            if (workspaces.root / storage_id).is_dir():
                return Storage(storage_id, workspaces.files(Folder(storage_id)))
        session = self._services.sessions.get(identity.principal, storage_id)
        self._services.sessions.touch(session)
        return Storage(storage_id, self._services.workspaces.files(session), session)

    def _workspaces(self, key: str) -> Workspaces:
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40]
        found = self._owners.get(name)
        if found is None:
            settings = self._services.settings
            found = self._owners[name] = Workspaces(
                self._root / name,
                max_file_bytes=settings.max_file_bytes,
                max_workspace_bytes=settings.max_workspace_bytes,
            )
        return found

    def _make(self, workspaces: Workspaces, folder: Folder) -> None:
        """Blocks."""
        self._sweep()
        if workspaces.root not in self._prepared:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            workspaces.prepare()
            self._prepared.add(workspaces.root)
        workspaces.create(folder.id)

    def _sweep(self) -> None:
        """Delete the folders that are older than uploads live. Blocks."""
        now = time.time()
        if now - self._swept_at < _SWEEP_INTERVAL:
            return
        self._swept_at = now
        for folder in self._root.glob("*/*"):
            with contextlib.suppress(OSError):
                if _ID.fullmatch(folder.name) and now - folder.stat().st_mtime > UPLOAD_LIFETIME:
                    Workspaces(folder.parent).remove(folder.name)


def not_found() -> NotFoundError:
    """The error for a file that is not there (any more)."""
    return NotFoundError("There is no such file; it may have expired.")
