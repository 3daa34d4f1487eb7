"""What the Jupyter routes remember between requests: clients of kernels, refusals, shared sessions."""

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from interpreter.api.base import Toolbox
from interpreter.api.shares import Shares, limit_of
from interpreter.errors import InterpreterError, RateLimitedError
from interpreter.frontends.chats import METADATA_KEY, ChatSessions
from interpreter.frontends.images import ImageShrinker
from interpreter.frontends.jupyter.conversation import Conversation
from interpreter.frontends.jupyter.documents import Documents
from interpreter.frontends.jupyter.home import move_home
from interpreter.frontends.jupyter.ids import kernel_id_of
from interpreter.frontends.jupyter.kept import measure
from interpreter.frontends.jupyter.pacing import Turns
from interpreter.frontends.jupyter.translate import status
from interpreter.frontends.jupyter.wire import Outgoing
from interpreter.kernels.background import Background
from interpreter.models import JSON, Principal, new_id, to_iso
from interpreter.tokens import TokenInfo

if TYPE_CHECKING:
    from interpreter.sessions import Session

SHARED_KEY = "the token's own"
"""The chat that all runs of a token with ``keep_state`` belong to."""

MAX_REFUSALS = 1000
MAX_WAITING = 1000  # messages on their way to a client that only watches
MAX_CLIENTS = 32  # of one kernel, those that are away included
MAX_CONNECTIONS = 256  # of one kernel


class Hub:
    """The clients of one kernel."""

    def __init__(self, front: "Front", session: "Session") -> None:
        self.services = front.services
        self.settings = front.services.settings
        self.rates, self.bodies, self.kept = front.rates, front.bodies, front.kept
        self.background = front.background
        self.session = session
        self.shared = session.info.metadata.get(METADATA_KEY) == SHARED_KEY
        self.execution_count = 0
        self.ended = False
        self._front = front
        self._clients: OrderedDict[str, Conversation] = OrderedDict()
        self._waiting = 0
        self._settled: tuple[str | None, int] | None = None

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return sum(client.connected for client in self._clients.values())

    def enter(self, token: TokenInfo, client_id: str | None) -> Conversation:
        """The conversation of a client; the one that it had when it names itself again.

        Raises RateLimitedError.
        """
        known = self._clients.get(client_id or "")
        if known is not None and known.token_id == token.id:
            return known
        self.forget_idle()
        if self.connections >= MAX_CONNECTIONS:
            raise RateLimitedError(
                "Too many clients are connected to this kernel; close some.", retry_after=1
            )
        conversation = Conversation(self, token, resumable=client_id is not None)
        self._clients[client_id if client_id and known is None else new_id()] = conversation
        return conversation

    def forget_idle(self) -> None:
        """Drop clients that are away and miss nothing, and when there are too many the oldest away."""
        for key, client in list(self._clients.items()):
            if client.idle or (len(self._clients) >= MAX_CLIENTS and not client.connected):
                del self._clients[key]
                client.forget()

    def show_others(self, origin: Conversation, message: Outgoing) -> None:
        """What one client's request gives is shown to the others, as Jupyter does."""
        if self.shared:
            return  # those are many chats, not many views of one
        others = [client for client in self._clients.values() if client is not origin and client.connected]
        if others and self._waiting < MAX_WAITING:
            size = measure(message)
            if self.kept.take(origin.token_id, size):
                self._waiting += 1
                self.background.spawn(self._show(others, message, origin.token_id, size))

    async def _show(self, clients: list[Conversation], message: Outgoing, token_id: str, size: int) -> None:
        try:
            await asyncio.gather(*(client.send(message) for client in clients))
        finally:
            self._waiting -= 1
            self.kept.give_back(token_id, size)

    def note_interrupt(self) -> None:
        """The run that goes on, whosever it is, is about to be interrupted."""
        for client in self._clients.values():
            client.note_interrupt()

    async def shut_down(self, principal: Principal, *, restart: bool) -> None:
        """End the session or restart its kernel. Raises as `SessionManager.get`."""
        if restart:
            await self.services.runs.restart(principal, self.session.id)
            await self.tell_restart()
        elif not self.shared:
            await self.services.sessions.delete(principal, self.session.id)

    async def settle(self) -> None:
        """Prepare the kernel for its clients, if it may be another than the one that was prepared.

        It is another after some runs only: those that had to end with a restart.
        """
        session = self.session
        state = (session.kernel.id if session.kernel is not None else None, session.run_count)
        if state != self._settled:
            self._settled = state
            await move_home(session)

    async def tell_restart(self) -> None:
        """Make the fresh kernel like the first one, and let all clients know of it."""
        self.execution_count = 0
        self._settled = None
        await self.settle()
        for state in ("restarting", "idle"):
            for client in list(self._clients.values()):
                await client.send(status({}, state))

    async def aclose(self, reason: str) -> None:
        """The session has ended."""
        code = 1001 if reason == "shutdown" else 1000
        await asyncio.gather(*(client.aclose(code) for client in self._clients.values()))
        self.ended = True
        for client in self._clients.values():
            client.forget()
        self._clients.clear()


class Front:
    """Shared by all handlers of the Jupyter routes."""

    def __init__(self, toolbox: Toolbox) -> None:
        self.services = toolbox.services
        self.rates, self.bodies = toolbox.rates, toolbox.bodies
        self.kept, self.turns = Shares(limit_of(toolbox.services.settings)), Turns()
        self.background = Background()
        self.images = ImageShrinker()
        self.documents = Documents()
        self.started_at = toolbox.services.clock()
        self._chats = ChatSessions(toolbox.services)
        self._hubs: dict[str, Hub] = {}
        self._refusals: OrderedDict[str, tuple[str, InterpreterError]] = OrderedDict()
        self._hooked = False

    def hub(self, session: "Session") -> Hub:
        """The clients of the session's kernel."""
        if not self._hooked:
            self._hooked = True
            self.services.sessions.add_end_hook(self._session_ends)
        return self._hubs.setdefault(session.id, Hub(self, session))

    def own_sessions(self, token: TokenInfo) -> "list[Session]":
        """The token's own live sessions, newest first; an admin's list does not hold those of others."""
        found = self.services.sessions.list(token.principal)
        return [session for session in found if session.info.owner_id == token.id]

    def describe(self, session: "Session") -> JSON:
        """The kernel of Jupyter's REST API."""
        view, hub = session.view(), self._hubs.get(session.id)
        return {
            "id": kernel_id_of(session.id),
            "name": session.info.kernel_name,
            "last_activity": to_iso(view.last_activity_at),
            "execution_state": view.status.value,
            "connections": hub.connections if hub is not None else 0,
        }

    async def start_kernel(self, token: TokenInfo, name: str | None) -> "Session":
        """A new session, or the token's own where it keeps its state. Raises as `SessionManager.create`."""
        default = self.services.settings.kernel_name
        if token.options.keep_state and name in (None, default):
            session = await self.own_chat(token)
        else:
            session = await self.services.sessions.create(
                token.principal, kernel_name=name, metadata={"client": "jupyter"}
            )
        await self.hub(session).settle()
        return session

    async def own_chat(self, token: TokenInfo) -> "Session":
        """The one session of a token that keeps its state, made when there is none."""
        return (await self._chats.session_of(token.principal, SHARED_KEY)).session

    def is_shared(self, session: "Session") -> bool:
        """Whether the session belongs to all runs of its token."""
        return session.info.metadata.get(METADATA_KEY) == SHARED_KEY

    # Kernels that were refused

    def refuse(self, token: TokenInfo, error: InterpreterError) -> str:
        """The id of a kernel that says nothing but why it is none.

        Some clients show an HTTP error with the whole URL, and so the token, to user and model.
        """
        kernel_id = kernel_id_of(new_id())
        self._refusals[kernel_id] = (token.id, error)
        if len(self._refusals) > MAX_REFUSALS:
            self._refusals.popitem(last=False)
        return kernel_id

    def find_refusal(self, token: TokenInfo, kernel_id: str) -> InterpreterError | None:
        """Why there is no such kernel, if that is what the token's client was promised to learn."""
        token_id, error = self._refusals.get(kernel_id, ("", None))
        return error if token_id == token.id else None

    def forget_refusal(self, kernel_id: str) -> None:
        """The client knows."""
        self._refusals.pop(kernel_id, None)

    async def _session_ends(self, session: Any, reason: str) -> None:
        hub = self._hubs.pop(session.id, None)
        if hub is not None:
            await hub.aclose(reason)
