"""MCP over HTTP+SSE, in the one form that vLLM's ``--tool-server`` dials for gpt-oss' ``python`` tool.

The client opens ``…/sse``, is told where to POST, and gets every response on the open stream (MCP
2024-11-05). The server's name must be ``python`` and its instructions the sentences that the model was
trained with; the list of tools stays empty, or vLLM would add a schema to the prompt. The result is one
plain text, as the model expects it. vLLM opens one stream per response and has no token to send.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar

from interpreter import __version__
from interpreter.api.base import Toolbox
from interpreter.api.operations import Access, Answer, Operation
from interpreter.api.sse import EVENT_STREAM, KEEPALIVE
from interpreter.api.validity import while_valid
from interpreter.errors import NotFoundError
from interpreter.frontends.chats import check_chat_key
from interpreter.frontends.mcp.origins import Origins, is_loopback
from interpreter.frontends.mcp.protocol import Message, RpcError
from interpreter.frontends.mcp.server import Call, McpServer
from interpreter.frontends.mcp.streamable import GuardedHandler, begin_stream, encode
from interpreter.frontends.mcp.tools import Form
from interpreter.models import JSON, Principal, Role, new_id

CHAT_HEADER = "X-Chat-Id"
"""Keeps the session for all streams that have the same; vLLM's own X-Session-Id is new for each."""

_TAG = "MCP"
_MAX_PENDING = 64
_PROXIED = ("Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via")
_LOCAL = Principal("vllm_tool_server", "vLLM tool server", Role.RUN)
INFO: JSON = {"name": "python", "version": __version__}
INSTRUCTIONS = """\
Use this tool to execute Python code in your chain of thought. The code will not be shown to the user. \
This tool should be used for internal reasoning, but not for code that is intended to be visible to the \
user (e.g. when creating plots, tables, or files).
When you send a message containing Python code to python, it will be executed in a stateful Jupyter \
notebook environment. python will respond with the output of the execution or time out after 120.0 \
seconds. The drive at '/mnt/data' can be used to save and persist user files. Internet access for this \
session is UNKNOWN. Depends on the cluster."""


@dataclass(slots=True, eq=False)
class Stream:
    """An open stream: what is still to be sent, and the calls that are being answered."""

    id: str
    principal: Principal
    chat: str
    lasting: bool
    """Whether its session is kept when it ends."""
    pending: asyncio.Queue[JSON] = field(default_factory=lambda: asyncio.Queue(_MAX_PENDING))
    calls: dict[int | str, Call] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Streams:
    """All open streams."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._open: dict[str, Stream] = {}

    def begin(self, principal: Principal, chat: str | None) -> Stream:
        """A new stream; without a ``chat`` of the client its session is its own."""
        stream_id = new_id()
        stream = Stream(stream_id, principal, chat or f"mcp:{stream_id}", lasting=chat is not None)
        self._open[stream_id] = stream
        return stream

    def find(self, principal: Principal, stream_id: str) -> Stream:
        """The token's stream. Raises NotFoundError."""
        stream = self._open.get(stream_id)
        if stream is None or stream.principal.token_id != principal.token_id:
            raise NotFoundError("There is no such stream; open one with GET.")
        return stream

    async def end(self, stream: Stream) -> None:
        """End the stream and all that it runs."""
        del self._open[stream.id]
        for task in stream.tasks:
            task.cancel()
        if stream.tasks:
            await asyncio.wait(stream.tasks)
        if not stream.lasting:
            await self.server.chats.end(stream.principal, stream.chat)

    def take(self, stream: Stream, message: Message) -> None:
        """Answer a message on the stream."""
        if message.id is not None:
            call = Call(stream.principal, form=Form.TEXT, chat=stream.chat)
            stream.calls[message.id] = call
            self._spawn(stream, self._answer(stream, message, call, message.id))
        elif message.method == "notifications/cancelled":
            call_id = message.params.get("requestId")
            found = stream.calls.get(call_id) if isinstance(call_id, int | str) else None
            if found is not None:
                self._spawn(stream, self.server.cancel(found))

    def _spawn(self, stream: Stream, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        stream.tasks.add(task)
        task.add_done_callback(stream.tasks.discard)

    async def _answer(self, stream: Stream, message: Message, call: Call, call_id: int | str) -> None:
        try:
            async with contextlib.aclosing(self.server.respond(message, call)) as answers:
                async for answer in answers:
                    await stream.pending.put(answer)
        except RpcError as error:
            await stream.pending.put(error.as_json(call_id))
        finally:
            stream.calls.pop(call_id, None)


class _StreamHandler(GuardedHandler):
    """What both routes share: a token, or being on this machine where the admin allows that."""

    def initialize(self, toolbox: Toolbox, route: str, streams: Streams) -> None:  # type: ignore[override]
        super().initialize(toolbox, route)
        self._streams = streams

    async def _authenticate(self, operation: Operation | None) -> None:
        if self.settings_.vllm_tool_server and self._is_direct():
            self._principal, self.token_id = _LOCAL, _LOCAL.token_id
            return
        await super()._authenticate(operation)

    def _is_direct(self) -> bool:
        """Whether a program on this machine asks for itself, without a token."""
        headers = self.request.headers
        passed_on = any(name in headers for name in (*_PROXIED, "Authorization"))
        named_so = Origins("127.0.0.1", frozenset()).allow(self.request.host, headers.get("Origin"))
        return is_loopback(self.request.remote_ip or "") and named_so and not passed_on


class StreamHandler(_StreamHandler):
    """``/mcp/python/sse``"""

    operations: ClassVar = {
        "GET": Operation(
            "openToolServerStream",
            "Open a stream of gpt-oss' python tool",
            _TAG,
            {200: Answer("The stream.", {EVENT_STREAM: None})},
            Access.RUN,
        )
    }

    async def do_get(self) -> None:
        chat = self.request.headers.get(CHAT_HEADER)
        stream = self._streams.begin(self.principal, check_chat_key(chat, CHAT_HEADER) if chat else None)
        try:
            await while_valid(self._send(stream), self.services.tokens, self.principal.token_id)
        finally:
            await self._streams.end(stream)

    async def _send(self, stream: Stream) -> None:
        begin_stream(self)
        base = self.request.path.removesuffix("/").removesuffix("/sse")
        self.write(f"event: endpoint\ndata: {base}/messages?session_id={stream.id}\n\n")
        await self.flush()
        while True:
            try:
                async with asyncio.timeout(self.settings_.keepalive_interval):
                    data = encode(await stream.pending.get())
            except TimeoutError:
                data = KEEPALIVE
            self.write(data)
            await self.flush()


class MessagesHandler(_StreamHandler):
    """``/mcp/python/messages``"""

    operations: ClassVar = {
        "POST": Operation(
            "sendToolServerMessage",
            "Send a message that is answered on a stream",
            _TAG,
            {202: Answer("It is being answered.")},
            Access.RUN,
        )
    }

    async def do_post(self) -> None:
        stream = self._streams.find(self.principal, self.get_query_argument("session_id", ""))
        try:
            message = self.read_message()
        except RpcError as error:
            self.reply(error.as_json(None), error.http_status(modern=True))
            return
        if message is not None:
            self._streams.take(stream, message)
        self.accept()
