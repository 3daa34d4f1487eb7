"""Which session a request runs in, and the files that it names put into that session's folder."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from interpreter.api.services import Services
from interpreter.errors import InvalidRequestError, NotFoundError, TooManySessionsError
from interpreter.frontends.chats import ChatSessions, check_chat_key
from interpreter.frontends.dialect import copy_file
from interpreter.frontends.identity import Identity
from interpreter.frontends.languages import Language
from interpreter.frontends.librechat.answers import Origin
from interpreter.frontends.librechat.object_ids import find_object, path_of
from interpreter.frontends.librechat.requests import ExecRequest, FileRef
from interpreter.frontends.storages import Storage, Storages
from interpreter.models import Principal
from interpreter.workspace import FileInfo

if TYPE_CHECKING:
    from interpreter.sessions import Session

T = TypeVar("T")

_KEPT = 10_000  # sessions that are remembered


@dataclass(frozen=True, slots=True)
class Prepared:
    """A session that is ready for a request's code.

    ``is_fresh`` when it was made for it; ``origins`` are the uploaded files by path; ``notes`` are
    sentences for the model.
    """

    session: "Session"
    is_fresh: bool
    origins: dict[str, Origin]
    notes: list[str]


@dataclass(slots=True)
class _Placed:
    """What was put into a session: the path of each uploaded file."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    origins: dict[str, Origin] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Found:
    ref: FileRef
    storage: Storage
    info: FileInfo


class Conversations:
    """Finds sessions: by the client's hint, by their id, or by the files that a request names.

    A request without any of these gets a session of its own. It stays, so that its files can be
    fetched and later requests can name them, but gives way when there are too many sessions.
    """

    def __init__(self, services: Services, storages: Storages) -> None:
        self._services = services
        self._storages = storages
        self._chats = ChatSessions(services)
        self._placed: OrderedDict[str, _Placed] = OrderedDict()
        self._loose: OrderedDict[str, Principal] = OrderedDict()

    async def prepare(self, identity: Identity, request: ExecRequest, language: Language) -> Prepared:
        """Raises as `SessionManager.create`, and InvalidRequestError for a file's name."""
        found, gone = await self._find(identity, request.files)
        session, is_fresh = await self._session(identity, request, found, language)
        placed = self._placed_in(session.id)
        async with placed.lock:
            notes = await self._place(session, placed, found)
            missing = [path for path in gone if path not in found and path not in placed.origins]
            notes += [f"{path} has expired here; it must be uploaded again." for path in missing]
            return Prepared(session, is_fresh, dict(placed.origins), notes)

    async def _find(
        self, identity: Identity, refs: Sequence[FileRef]
    ) -> tuple[dict[str, list[_Found]], list[str]]:
        """The files by the path that they are to have, the newest first, and the paths of what is gone."""
        found: dict[str, list[_Found]] = {}
        gone: list[str] = []
        for ref in dict.fromkeys(refs):
            path = path_of(ref.name)
            try:
                storage = self._storages.find(identity, ref.storage_id, ref.owner)
                info = await find_object(storage, ref.id, path)
            except NotFoundError:
                gone.append(path)
                continue
            found.setdefault(path, []).append(_Found(ref, storage, info))
        for candidates in found.values():
            candidates.reverse()  # of the same second, the one that is named last counts as newest
            candidates.sort(key=lambda one: one.info.modified_at, reverse=True)
        return found, gone

    # -- the session ----------------------------------------------------------------------------

    async def _session(
        self,
        identity: Identity,
        request: ExecRequest,
        found: dict[str, list[_Found]],
        language: Language,
    ) -> "tuple[Session, bool]":
        principal = identity.principal
        if request.hint is not None:
            key = _chat_key(f"librechat:{language.kernel_name}:", request.hint)
            chat = await self._with_room(
                principal,
                lambda: self._chats.session_of(principal, key, kernel_name=language.kernel_name),
            )
            return chat.session, chat.is_fresh
        known = [one.storage.session for candidates in found.values() for one in candidates]
        known.append(self._live(principal, request.session_id))
        for session in reversed(known):
            if session is not None and session.info.kernel_name == language.kernel_name:
                if session.id in self._loose:
                    self._loose.move_to_end(session.id)
                return session, False
        session = await self._with_room(
            principal,
            lambda: self._services.sessions.create(
                principal, kernel_name=language.kernel_name, metadata={"client": "librechat"}
            ),
        )
        self._loose[session.id] = principal
        if len(self._loose) > _KEPT:
            self._loose.popitem(last=False)
        return session, True

    def _live(self, principal: Principal, session_id: str | None) -> "Session | None":
        try:
            return self._services.sessions.get(principal, session_id) if session_id else None
        except NotFoundError:
            return None

    async def _with_room(self, principal: Principal, make: Callable[[], Awaitable[T]]) -> T:
        """What ``make`` makes; sessions that nobody may come back to give way for it."""
        while True:
            try:
                return await make()
            except TooManySessionsError:
                if not await self._give_way(principal):
                    raise

    async def _give_way(self, principal: Principal) -> bool:
        """End the session of no conversation that was idle for longest, one of the token's first."""
        order = sorted(self._loose.items(), key=lambda item: item[1].token_id != principal.token_id)
        for session_id, owner in order:
            session = self._live(owner, session_id)
            if session is not None and session.active_runs:
                continue
            self._loose.pop(session_id, None)
            if session is not None:
                await self._services.sessions.end(session, "expired")
                return True
        return False

    # -- its files ------------------------------------------------------------------------------

    def _placed_in(self, session_id: str) -> _Placed:
        placed = self._placed.setdefault(session_id, _Placed())
        self._placed.move_to_end(session_id)
        if len(self._placed) > _KEPT:
            self._placed.popitem(last=False)
        return placed

    async def _place(self, session: "Session", placed: _Placed, found: dict[str, list[_Found]]) -> list[str]:
        """Copy what is not there yet; what the code changed meanwhile stays. Notes of what was renamed."""
        notes = []
        knows_nothing = not placed.origins  # say, after a restart of the service
        for wanted, candidates in found.items():
            others = [one for one in candidates if one.storage.id != session.id]
            for number, one in enumerate(others):
                path = wanted if not number else _numbered(wanted, number + 1)
                origin = Origin(one.ref.storage_id, one.ref.id, one.ref.owner.kind == "skill")
                if placed.origins.get(path) == origin:
                    continue
                if not (knows_nothing and await self._is_newer(session, path, one.info)):
                    await self._copy(one, session, path)
                    if number:
                        notes.append(f"An older upload that is also named {wanted} is {path}.")
                placed.origins[path] = origin
        return notes

    async def _is_newer(self, session: "Session", path: str, info: FileInfo) -> bool:
        there = await self._services.workspaces.files(session).find(path)
        return there is not None and there.modified_at >= info.modified_at

    async def _copy(self, one: _Found, session: "Session", path: str) -> None:
        file = await one.storage.files.open(one.info.path)
        await copy_file(file, partial(self._services.workspaces.begin_upload, session), path)


def _chat_key(prefix: str, hint: str) -> str:
    """The key of the chat that a hint names, which can be any text."""
    try:
        return check_chat_key(prefix + hint, "runtime_session_hint")
    except InvalidRequestError:
        return prefix + hashlib.sha256(hint.encode("utf-8", "surrogatepass")).hexdigest()


def _numbered(path: str, number: int) -> str:
    """``data.csv`` → ``data-2.csv``"""
    parts = PurePosixPath(path)
    return str(parts.with_name(f"{parts.stem}-{number}{parts.suffix}"))
