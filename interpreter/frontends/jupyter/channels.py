"""``/api/kernels/{kernel_id}/channels``: a kernel's messages over one websocket.

It is answered with 101 at once: the slow part of a start was the POST's. Some clients (the
``websockets`` package) wait ten seconds for the handshake.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import Any, ClassVar

from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketHandler, WebSocketProtocol, WebSocketProtocol13

from interpreter.api.validity import until_ended
from interpreter.errors import InterpreterError, InvalidRequestError, UnavailableError
from interpreter.frontends.jupyter.answers import describe_kernel
from interpreter.frontends.jupyter.base import JupyterHandler, operation
from interpreter.frontends.jupyter.conversation import Conversation
from interpreter.frontends.jupyter.fitting import Profile, fit
from interpreter.frontends.jupyter.frames import TRY_LATER, SharedProtocol
from interpreter.frontends.jupyter.front import Front
from interpreter.frontends.jupyter.translate import refusal, status
from interpreter.frontends.jupyter.wire import Outgoing, Request, decode, encode
from interpreter.messages import V1_SUBPROTOCOL, BadMessageError
from interpreter.models import SessionInfo

log = logging.getLogger(__name__)

PING_INTERVAL = 30.0  # seconds, Jupyter Server's
MAX_CLIENT_ID = 256
MAX_BURST = 32  # frames of one client that are read in a row; then it is the others' turn
COSTLY = 0.002  # seconds of the loop that a frame may take; after one that took more …
PEACE = 4  # … nothing is read of its client for so many times as long
MAX_ODD_FRAMES = 100  # after so many that are no messages the client is sent away
NO_JUPYTER = 1003  # of WebSocket's codes the one for data that can't be accepted
TOKEN_ENDED = 1008  # of WebSocket's codes the one for a policy that is violated
_TOO_LARGE = "[An output was too large to be shown here]"


class RefusedKernel:
    """Stands for a kernel that there is not: says why, in the only way that every client shows."""

    def __init__(self, front: Front, kernel_name: str, error: InterpreterError) -> None:
        self._front = front
        self._name = kernel_name
        self._error = error
        self._socket: ChannelsHandler | None = None

    def attach(self, socket: "ChannelsHandler") -> None:
        """The client is there."""
        self._socket = socket

    def detach(self, socket: "ChannelsHandler") -> None:
        """The client went away."""
        self._socket = None

    async def receive(self, request: Request) -> None:
        """Answer a request."""
        messages = [status(request.header, "busy")]
        if request.msg_type == "execute_request":
            messages += refusal(request.header, type(self._error).__name__, self._error.message)
        elif request.msg_type == "kernel_info_request":
            now = self._front.started_at
            info = SessionInfo("", "", "", self._name, "python", now, 1.0, 1.0)
            content = {"status": "ok", **describe_kernel(info)}
            messages.append(Outgoing(request.channel, "kernel_info_reply", content, request.header))
        elif request.msg_type.endswith("_request"):
            reply_type = request.msg_type.removesuffix("_request") + "_reply"
            content = {"status": "error", "ename": type(self._error).__name__, "evalue": self._error.message}
            messages.append(Outgoing(request.channel, reply_type, content, request.header))
        messages.append(status(request.header, "idle"))
        for message in messages:
            if self._socket is not None:
                await self._socket.send(message)


class ChannelsHandler(WebSocketHandler, JupyterHandler):
    """The websocket. Implements `conversation.Socket`."""

    operations: ClassVar = {"GET": operation("connect to a kernel")}
    metered = False  # its runs are

    profile = Profile.of(v1=False, user_agent="")
    _conversation: Conversation | RefusedKernel | None = None
    _watch: "asyncio.Task[None] | None" = None
    _burst = _odd_frames = 0

    async def get(self, *args: Any, **kwargs: Any) -> None:
        if self._finished:
            return
        if self._refusal is not None:
            raise self._refusal
        self._conversation = self._enter(kwargs["kernel_id"])
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise InvalidRequestError("This route is a websocket; send `Upgrade: websocket`.")
        await WebSocketHandler.get(self, *args, **kwargs)

    def _enter(self, kernel_id: str) -> Conversation | RefusedKernel:
        error = self.front.find_refusal(self.token, kernel_id)
        if error is not None:
            return RefusedKernel(self.front, self.settings_.kernel_name, error)
        client_id = self.get_query_argument("session_id", "")[:MAX_CLIENT_ID] or None
        return self.front.hub(self.session_of(kernel_id)).enter(self.token, client_id)

    def check_origin(self, origin: str) -> bool:
        """A page of another site may connect with a token that it knows, not with a browser's cookie."""
        return self.way != "cookie" or super().check_origin(origin)

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return V1_SUBPROTOCOL if V1_SUBPROTOCOL in subprotocols else None

    def get_websocket_protocol(self) -> WebSocketProtocol | None:
        protocol = super().get_websocket_protocol()
        if not isinstance(protocol, WebSocketProtocol13):
            return protocol
        return SharedProtocol.of(protocol, self, self.toolbox.bodies, self.token.id)

    @property
    def ping_interval(self) -> float | None:
        return PING_INTERVAL

    def open(self, *args: str, **kwargs: str) -> None:
        self.set_nodelay(True)
        headers = self.request.headers
        self.profile = Profile.of(
            v1=self.selected_subprotocol == V1_SUBPROTOCOL,
            user_agent=headers.get("User-Agent", ""),
            has_origin="Origin" in headers,
        )
        if self._conversation is not None:
            self._conversation.attach(self)
        self._watch = self.front.background.spawn(self._end_with_token())

    async def _end_with_token(self) -> None:
        await until_ended(self.services.tokens, self.token.id)
        self.close(TOKEN_ENDED, "The token was revoked or has expired.")

    def on_message(self, message: str | bytes) -> Awaitable[None] | None:
        self._burst = (self._burst + 1) % MAX_BURST
        start, waiting = time.thread_time(), None
        try:
            request = decode(message, v1=self.profile.v1)
        except BadMessageError:
            self._ignore_odd_frame()
        else:
            waiting = self._conversation.receive(request) if self._conversation is not None else None
        # What has come already is read without a pause, unless we make one.
        spent = time.thread_time() - start
        if waiting is None and (spent > COSTLY or self._burst == 0):
            return asyncio.sleep(PEACE * spent)
        return waiting

    def _ignore_odd_frame(self) -> None:
        self._odd_frames += 1
        if self._odd_frames == 1:
            log.info("A frame on a Jupyter websocket was no message; such are ignored.")
        elif self._odd_frames > MAX_ODD_FRAMES:
            self.close(NO_JUPYTER, "These frames are no Jupyter messages.")

    def on_close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._conversation is not None:
            self._conversation.detach(self)

    async def send(self, message: Outgoing) -> bool:
        """See `conversation.Socket`."""
        try:
            async with AsyncExitStack() as turn:
                await turn.enter_async_context(self.front.turns.turn(self.token.id, message))
                frames = await self._frames(message)
                with self.holding(sum(map(len, frames))):
                    writing = asyncio.gather(*(self.write_message(f, binary=self.profile.v1) for f in frames))
                    await turn.aclose()  # the client may take its time
                    await writing
        except (WebSocketClosedError, StreamClosedError):
            return False
        except UnavailableError as error:
            self.close(TRY_LATER, error.message)
            return False
        return True

    async def _frames(self, message: Outgoing) -> list[bytes]:
        v1, frames = self.profile.v1, []
        for part in await fit(message, self.profile, self.front.images):
            frame = encode(part, v1=v1)
            if len(frame) > self.profile.max_frame:
                text = {"name": "stderr", "text": f"{_TOO_LARGE}\n"}
                frame = encode(Outgoing("iopub", "stream", text, message.parent), v1=v1)
            frames.append(frame)
        return frames

    def end(self, code: int) -> None:
        """See `conversation.Socket`."""
        self.close(code)
