"""One client of one kernel: what it sends is answered in order, and waits for it while it is away."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from interpreter.api.runs import check_code
from interpreter.errors import (
    ForbiddenError,
    InterpreterError,
    InvalidRequestError,
    RateLimitedError,
    UnauthorizedError,
)
from interpreter.frontends.jupyter.answers import answer
from interpreter.frontends.jupyter.fitting import Profile
from interpreter.frontends.jupyter.kept import Kept
from interpreter.frontends.jupyter.translate import Translator, error_content, refusal, status
from interpreter.frontends.jupyter.wire import Outgoing, Request
from interpreter.models import RunRequest
from interpreter.runs import ActiveRun, RecordedRun
from interpreter.tokens import TokenInfo

if TYPE_CHECKING:
    from interpreter.frontends.jupyter.front import Hub

log = logging.getLogger(__name__)
T = TypeVar("T")

FEED_INTERVAL = 0.5  # seconds of silence after which a client that counts them is sent a frame
MAX_PENDING_BYTES = 16 * 1024**2  # of requests that wait or are being answered
MAX_ANSWERING = 64  # requests other than runs at once
FLUSH_TIMEOUT = 2.0  # seconds for the last messages of a session that ends
GONE = "The client went away."

_ABORTED = "The code was not run, because the code before it failed."
_INTERNAL = "The service failed; its log has the details."


class Socket(Protocol):
    """The websocket of a client."""

    profile: Profile

    async def send(self, message: Outgoing) -> bool:
        """Send it, made to fit; False when the client is gone."""

    def end(self, code: int) -> None:
        """Close it with that code."""


class Conversation:
    """A client with its token. ``resumable``: it named itself, so it can come back for what it missed."""

    def __init__(self, hub: "Hub", token: TokenInfo, *, resumable: bool) -> None:
        self._hub = hub
        self._token = token
        self._resumable = resumable
        self._socket: Socket | None = None
        self._kept = Kept(hub.kept, token.id)
        self._sending = asyncio.Lock()
        self._queue: deque[Request] = deque()
        self._behind_error: int | None = None
        self._answering = 0
        self._pending_bytes = 0
        self._worker: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._socket is not None

    @property
    def _is_simple(self) -> bool:
        return self._socket is not None and self._socket.profile.simple

    @property
    def idle(self) -> bool:
        """Whether nothing is lost when it is forgotten."""
        return not self.connected and not self._kept and (self._worker is None or self._worker.done())

    @property
    def token_id(self) -> str:
        return self._token.id

    # The socket

    def attach(self, socket: Socket) -> None:
        """The client is there, and first gets what it missed."""
        if self._socket is not None:
            self._socket.end(1000)
        self._socket = socket
        if self._kept:
            self._hub.background.spawn(self._send_kept())

    def detach(self, socket: Socket) -> None:
        """The client went away. What it runs goes on if it can come back for it, else it is cancelled."""
        if self._socket is not socket:
            return
        self._socket = None
        if not self._resumable or self._hub.shared:
            self._forget_queue()
            self._kept.clear()
            if self._worker is not None:
                self._worker.cancel()
        self._hub.forget_idle()

    async def send(self, message: Outgoing) -> None:
        """Send it after all before it, or keep it for when the client is back."""
        async with self._sending:
            await self._send_first()
            if self._kept or self._socket is None or not await self._socket.send(message):
                self._keep(message)

    async def broadcast(self, message: Outgoing) -> None:
        """Send it, and if it is on iopub let the kernel's other clients see it."""
        if message.channel == "iopub":
            self._hub.show_others(self, message)
        await self.send(message)

    async def _tell(self, message: Outgoing) -> None:
        """Send a message of the run; with the first word of an error, count what waits behind it."""
        if message.msg_type in ("error", "execute_reply") and self._behind_error is None:
            self._behind_error = len(self._queue)
        await self.broadcast(message)

    def note_interrupt(self) -> None:
        """The run was told to end: what comes from now on is meant to run after it."""
        if self._behind_error is None:
            self._behind_error = len(self._queue)

    async def _tell_all(self, messages: list[Outgoing]) -> None:
        for message in messages:
            await self._tell(message)

    async def _send_kept(self) -> None:
        async with self._sending:
            await self._send_first()

    async def _send_first(self) -> None:
        """Send what was kept, if the client is there."""
        while self._kept and self._socket is not None:
            if not await self._socket.send(self._kept.first):
                return
            self._kept.drop_first()

    def _keep(self, message: Outgoing) -> None:
        if self._resumable and not self._hub.ended:
            self._kept.add(message)

    def forget(self) -> None:
        """The client will not come back."""
        self._resumable = False
        self._kept.clear()

    # Requests

    def receive(self, request: Request) -> Awaitable[None] | None:
        """Take a request, which is answered in a task. Who sends too many waits for what is returned."""
        if request.msg_type == "interrupt_request":
            self._hub.note_interrupt()
        if request.msg_type == "execute_request":
            if len(self._queue) > self._hub.settings.max_queued_runs or not self._admit(request):
                return self._refuse_at_once(request)
            self._queue.append(request)
            if self._worker is None or self._worker.done():
                self._worker = self._hub.background.spawn(self._work())
            return None
        if self._answering >= MAX_ANSWERING or not self._admit(request):
            return self._answer(request)
        self._answering += 1
        task = self._hub.background.spawn(self._answer(request))
        task.add_done_callback(lambda _: self._answered(request))
        return None

    def _admit(self, request: Request) -> bool:
        """Whether the request may wait for its answer; then `_release` it afterwards."""
        admitted = self._pending_bytes + request.size <= MAX_PENDING_BYTES and self._hub.bodies.take(
            self.token_id, request.size
        )
        self._pending_bytes += request.size if admitted else 0
        return admitted

    def _release(self, request: Request) -> None:
        self._pending_bytes -= request.size
        self._hub.bodies.give_back(self.token_id, request.size)

    def _answered(self, request: Request) -> None:
        self._answering -= 1
        self._release(request)

    def _forget_queue(self) -> None:
        while self._queue:
            self._release(self._queue.popleft())

    async def _answer(self, request: Request) -> None:
        hub, parent = self._hub, request.header
        reply_type = request.msg_type.removesuffix("_request") + "_reply"
        await self.broadcast(status(parent, "busy"))
        if request.msg_type == "shutdown_request":
            restart = bool(request.content.get("restart"))
            content: Mapping[str, Any] = {"status": "ok", "restart": restart}
            await self.send(Outgoing(request.channel, reply_type, dict(content), parent))
            await self.broadcast(status(parent, "idle"))
            await hub.shut_down(self._token.principal, restart=restart)
            return
        found = await answer(
            hub.services, self._token.principal, hub.session, request.msg_type, request.content
        )
        if found is not None:
            await self.send(Outgoing(request.channel, reply_type, found, parent))
        await self.broadcast(status(parent, "idle"))

    async def _work(self) -> None:
        while self._queue:
            request = self._queue.popleft()
            self._behind_error = None
            try:
                succeeded = await self._execute(request)
            finally:
                self._release(request)
            if not succeeded and request.content.get("stop_on_error", True):
                # As ipykernel does: what waited behind code that failed is not run. What came after the
                # client was told of the error is no part of that: some clients go on at once.
                count = min(self._behind_error or 0, len(self._queue))
                await self._abort([self._queue.popleft() for _ in range(count)])

    async def _abort(self, requests: list[Request]) -> None:
        for request in requests:
            self._release(request)
        for request in requests:
            await self.broadcast(status(request.header, "busy"))
            if self._is_simple:
                # It reads no replies, and would take this for code that ran and printed nothing.
                error = error_content("RunAborted", _ABORTED, [])
                await self.send(Outgoing("iopub", "error", error, request.header))
            await self.send(Outgoing("shell", "execute_reply", {"status": "aborted"}, request.header))
            await self.broadcast(status(request.header, "idle"))

    async def _execute(self, request: Request) -> bool:
        """Run the code; whether it ended well. The client is told whatever happens, and then idle."""
        await self.broadcast(status(request.header, "busy"))
        try:
            succeeded = await self._run(request)
        except InterpreterError as error:
            await self._refuse(request, type(error).__name__, error.message)
            succeeded = False
        except Exception:  # the boundary to a client, which would wait for ever
            log.exception("A run over a Jupyter websocket failed.")
            await self._refuse(request, "InternalError", _INTERNAL)
            succeeded = False
        await self.broadcast(status(request.header, "idle"))
        return succeeded

    async def _refuse_at_once(self, request: Request) -> None:
        error = RateLimitedError("Too many requests wait for the kernel: max_queued_runs is reached.")
        await self.broadcast(status(request.header, "busy"))
        for message in refusal(request.header, type(error).__name__, error.message):
            await self.send(message)
        await self.broadcast(status(request.header, "idle"))

    async def _refuse(self, request: Request, ename: str, sentence: str) -> None:
        if self._token.options.stderr_to_stdout:
            content = {"name": "stdout", "text": f"{ename}: {sentence}\n"}
            await self.send(Outgoing("iopub", "stream", content, request.header))
        for message in refusal(request.header, ename, sentence):
            await self._tell(message)

    async def _run(self, request: Request) -> bool:
        hub, code = self._hub, request.content.get("code")
        if not isinstance(code, str):
            raise InvalidRequestError("`code` must be text.", param="code")
        check_code(code, hub.settings.max_code_bytes)
        await self._check_token()
        principal = self._token.principal
        session = hub.services.sessions.get(principal, hub.session.id)
        accepted = await hub.services.runs.submit(principal, session, RunRequest(code))
        translator = Translator(
            request.header,
            accepted.run.id,
            execution_count=hub.execution_count + 1,
            stderr_to_stdout=self._token.options.stderr_to_stdout,
            silent=bool(request.content.get("silent")),
            errors_last=self._is_simple,
        )
        try:
            await self._follow(accepted, translator, request.header)
        except asyncio.CancelledError:
            await hub.services.runs.cancel(principal, accepted.run.id, reason=GONE)
            raise
        hub.execution_count = translator.execution_count
        return accepted.run.status.value == "ok"

    async def _check_token(self) -> None:
        """The token as it is now: it may have been revoked while the socket was open."""
        info = await self._hub.services.tokens.get(self._token.id)
        if info is None:
            raise UnauthorizedError("The token was revoked or has expired.", code="invalid_token")
        if not info.principal.may_run:
            raise ForbiddenError("The token's role does not allow to run code.")
        if seconds := self._hub.rates.take(info.id):
            raise RateLimitedError(
                "The token has used up its requests for now; send fewer per minute.", retry_after=seconds
            )

    async def _follow(
        self, accepted: ActiveRun | RecordedRun, translator: Translator, parent: Mapping[str, Any]
    ) -> None:
        events = accepted.events()
        while (event := await self._fed(anext(events, None), parent)) is not None:
            await self._fed(self._tell_all(translator.translate(event)), parent)

    async def _fed(self, awaited: Awaitable[T], parent: Mapping[str, Any]) -> T:
        """Await it. A client that counts the seconds between frames is kept from giving up: the limit is ours.

        It is sent frames while code runs, and also while an image is made to fit, between other messages.
        """
        task = asyncio.ensure_future(awaited)
        try:
            while not (await asyncio.wait({task}, timeout=FEED_INTERVAL))[0]:
                if self._socket is not None and self._socket.profile.simple:
                    await self._socket.send(status(parent, "busy"))
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})

    # The end

    async def aclose(self, code: int) -> None:
        """The session has ended, its runs too: let the client have the last messages."""
        if self._worker is not None and not self._worker.done():
            self._forget_queue()
            await asyncio.wait({self._worker}, timeout=FLUSH_TIMEOUT)
            self._worker.cancel()
        if self._socket is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_TIMEOUT):
                    await self.send(status({}, "dead"))
            if self._socket is not None:
                self._socket.end(code)
