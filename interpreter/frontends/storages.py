"""Where files lie that clients upload before there is a session: each upload in a folder of its own.

A client names that folder, or a session that made files, by one id, its storage session. What the
uploads of a token, or of what users share, take on the disk is limited together; it is measured there.
"""

import asyncio
import contextlib
import hashlib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from interpreter.api.services import Services
from interpreter.errors import NotFoundError
from interpreter.frontends.identity import Identity
from interpreter.models import new_id
from interpreter.workspace import Files, Upload, Workspaces
from interpreter.workspace.files import file_error

if TYPE_CHECKING:
    from interpreter.sessions import Session

UPLOAD_LIFETIME = 24 * 3600.0  # seconds; LibreChat sends again what is older than 23 hours
_SWEEP_INTERVAL = 600.0  # seconds
_ID = re.compile(r"[A-Za-z0-9_-]{21}")
_NAME = re.compile(rf"{_ID.pattern}(-[0-9a-f]{{40}})?")
_SHARED_KINDS = ("skill", "agent")
_FULL = (
    "The files that are kept here for one token would be over max_kept_file_bytes ({}), or are too many to be "
    "counted; they go after a day. Delete some or send less."
)


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of one upload. ``account`` is the folder of all that count together with it.

    Both are made of what names their owner, so nobody else finds them, and nothing is remembered of owners.
    """

    id: str
    account: str
    mark: str = ""

    @property
    def name(self) -> str:
        """Its path below the root."""
        return f"{self.account}/{self.id}{self.mark}"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a storage session: a user, or what users share (``kind`` skill or agent)."""

    kind: str = "user"
    id: str = ""
    version: str = ""

    def folder(self, identity: Identity, storage_id: str) -> Folder:
        """Where this owner's storage session of that id is, if it has one."""
        if self.kind in _SHARED_KINDS and self.id:
            mark = _digest(json.dumps([self.kind, self.id, self.version]))
            return Folder(storage_id, _digest(identity.tenant), f"-{mark}")
        return Folder(storage_id, _digest(identity.principal.token_id))


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage session. ``session`` is ours when code runs in there."""

    id: str
    files: Files
    session: "Session | None" = None


@dataclass(frozen=True, slots=True)
class _Place:
    """What local files need to know: the name of a folder below the root."""

    id: str


class Storages:
    """All storage sessions: live sessions, and the folders of uploads. One for all front ends."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._services = services
        limit = settings.max_kept_file_bytes or settings.max_workspace_bytes
        self._kept = Workspaces(
            Path(settings.state_dir) / "librechat",
            max_file_bytes=settings.max_file_bytes,
            max_workspace_bytes=limit,
            full=_FULL.format(limit),
        )
        self._preparing = asyncio.Lock()
        self._prepared = False
        self._swept_at = 0.0

    def make(self, identity: Identity, owner: Owner) -> Folder:
        """A new folder for an upload, which is on the disk once there is one."""
        return owner.folder(identity, new_id())

    async def begin_upload(self, folder: Folder) -> Upload:
        """An upload of one file to a folder. Raises TooLargeError, UnavailableError."""
        async with self._preparing:
            await asyncio.to_thread(self._prepare, folder.account)
        files, all_files = (self._kept.files(_Place(name)) for name in (folder.name, folder.account))
        upload = await self._kept.uploads.begin(folder.account, files, all_files)
        try:
            await asyncio.to_thread(self._create, folder.name)
        except BaseException:
            upload.discard()
            raise
        return upload

    def find(self, identity: Identity, storage_id: str, owner: Owner) -> Storage:
        """Raises NotFoundError."""
        if not _ID.fullmatch(storage_id):
            raise not_found()
        for one in dict.fromkeys((owner, Owner())):
            name = one.folder(identity, storage_id).name
            if (self._kept.root / name).is_dir():
                return Storage(storage_id, self._kept.files(_Place(name)))
        session = self._services.sessions.get(identity.principal, storage_id)
        self._services.sessions.touch(session)
        return Storage(storage_id, self._services.workspaces.files(session), session)

    def _prepare(self, account: str) -> None:
        """Blocks."""
        root = self._kept.root
        try:
            if not self._prepared:
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._kept.prepare()
                self._prepared = True
            self._sweep()
        except OSError as error:
            raise file_error(error, making=True) from error
        self._create(account)

    def _create(self, name: str) -> None:
        """Blocks."""
        try:
            self._kept.create(name)
        except OSError as error:
            raise file_error(error, making=True) from error

    def _sweep(self) -> None:
        """Delete the folders that are older than uploads live. Blocks."""
        now = time.time()
        if now - self._swept_at < _SWEEP_INTERVAL:
            return
        self._swept_at = now
        for folder in self._kept.root.glob("*/*"):
            with contextlib.suppress(OSError):
                if _NAME.fullmatch(folder.name) and now - folder.stat().st_mtime > UPLOAD_LIFETIME:
                    self._kept.remove(f"{folder.parent.name}/{folder.name}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def not_found() -> NotFoundError:
    """The error for a file that is not there (any more)."""
    return NotFoundError("There is no such file; it may have expired.")
