"""One session per chat: what a front end names its conversation by selects a session of ours."""

import asyncio
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from interpreter.api.services import Services
from interpreter.errors import InvalidRequestError
from interpreter.models import Principal

if TYPE_CHECKING:
    from interpreter.sessions import Session

CHAT_HEADERS = ("X-Session-Id", "X-OpenWebUI-Chat-Id")
"""Headers in which front ends name the conversation."""

METADATA_KEY = "chat"
_KEPT_ENDINGS = 10_000
_KEY = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,254}")


@dataclass(frozen=True, slots=True)
class ChatSession:
    """The session of a chat; ``is_fresh`` when it was made now, ``lost`` when it replaces one that ended."""

    session: "Session"
    is_fresh: bool
    lost: bool


def check_chat_key(key: str, param: str, longest: int = 255) -> str:
    """The key as it is; InvalidRequestError when it is too long or not plain ASCII."""
    if not _KEY.fullmatch(key) or len(key) > longest:
        raise InvalidRequestError(
            f"`{param}` must be 1 to {longest} printable ASCII characters.", param=param
        )
    return key


class ChatSessions:
    """Finds or makes the session of a chat. A chat belongs to the token that it was begun with.

    The key is kept in the session's metadata, so that a chat finds its session after a restart of the
    service, too.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._making: dict[tuple[str, str], asyncio.Task[Session]] = {}
        self._last: OrderedDict[tuple[str, str], str] = OrderedDict()

    def find(self, principal: Principal, key: str) -> "Session | None":
        """The chat's live session, None when there is none (yet, or any more)."""
        for session in self._services.sessions.list(principal):
            info = session.info
            if info.owner_id == principal.token_id and info.metadata.get(METADATA_KEY) == key:
                return session
        return None

    async def session_of(
        self, principal: Principal, key: str, *, kernel_name: str | None = None
    ) -> ChatSession:
        """The chat's session; made when there is none. Raises as `SessionManager.create`."""
        place = (principal.token_id, key)
        session, is_fresh = self.find(principal, key), False
        if session is None:
            is_fresh = True
            task = self._making.get(place) or self._make(principal, place, kernel_name)
            session = await asyncio.shield(task)
        before = self._last.get(place)
        self._last[place] = session.info.id
        self._last.move_to_end(place)
        if len(self._last) > _KEPT_ENDINGS:
            self._last.popitem(last=False)
        return ChatSession(session, is_fresh, before not in (None, session.info.id))

    async def end(self, principal: Principal, key: str) -> None:
        """End the chat's session, if there is one."""
        making = self._making.get((principal.token_id, key))
        if making is not None:
            await asyncio.wait({making})
        self._last.pop((principal.token_id, key), None)
        session = self.find(principal, key)
        if session is not None:
            await self._services.sessions.delete(principal, session.info.id)

    def _make(
        self, principal: Principal, place: tuple[str, str], kernel_name: str | None
    ) -> "asyncio.Task[Session]":
        """Calls of one chat that come at once share the task; it outlives any of them."""
        making = self._services.sessions.create(
            principal, kernel_name=kernel_name, metadata={METADATA_KEY: place[1]}
        )
        task = self._making[place] = asyncio.create_task(making)

        def made(task: "asyncio.Task[Session]") -> None:
            self._making.pop(place, None)
            if not task.cancelled():
                task.exception()  # whoever waits raises it; without anybody it is nobody's

        task.add_done_callback(made)
        return task
