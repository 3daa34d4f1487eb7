"""MCP over Streamable HTTP, in both protocol eras: ``/mcp``, and ``/mcp/smg`` for SMG."""

import asyncio
import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import ClassVar

from interpreter.api.auth import bad_token
from interpreter.api.base import BaseHandler, Toolbox
from interpreter.api.jsonbody import parse_json
from interpreter.api.operations import Access, Answer, Operation
from interpreter.api.sse import EVENT_STREAM, KEEPALIVE
from interpreter.api.validity import while_valid
from interpreter.errors import (
    ForbiddenError,
    InterpreterError,
    InvalidRequestError,
    NotFoundError,
    UnsupportedMediaTypeError,
)
from interpreter.frontends.chats import CHAT_HEADERS, check_chat_key
from interpreter.frontends.mcp import protocol
from interpreter.frontends.mcp.origins import Origins
from interpreter.frontends.mcp.protocol import Message, RpcError
from interpreter.frontends.mcp.server import Call, McpServer
from interpreter.frontends.mcp.tools import Form
from interpreter.models import JSON, Principal, new_id

_TAG = "MCP"
_JSON = "application/json"
_MAX_CONNECTIONS = 10_000
_MAX_CALLS = 256


@dataclass(slots=True)
class Connection:
    """What ``initialize`` began: a session of the protocol, bound to the token that began it."""

    id: str
    principal: Principal
    version: str
    calls: OrderedDict[int | str, Call] = field(default_factory=OrderedDict)

    def remember(self, call_id: int | str, call: Call) -> None:
        """Keep a call, so that it can be cancelled also when nobody waits for its answer any more."""
        self.calls[call_id] = call
        if len(self.calls) > _MAX_CALLS:
            self.calls.popitem(last=False)

    @property
    def chat(self) -> str:
        """The key of the session of ours that belongs to it."""
        return f"mcp:{self.id}"


class Connections:
    """The connections that have begun and not ended; the least recently used go first."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._open: OrderedDict[str, Connection] = OrderedDict()

    def begin(self, principal: Principal, version: str) -> Connection:
        """A new connection."""
        return self._add(Connection(new_id(), principal, version))

    def find(self, principal: Principal, connection_id: str) -> Connection | None:
        """The token's connection; one of before a restart of the service counts while its session lives."""
        found = self._open.get(connection_id)
        if found is None:
            found = Connection(connection_id, principal, protocol.UNNAMED_VERSION)
            if self.server.chats.find(principal, found.chat) is None:
                return None
            return self._add(found)
        if found.principal.token_id != principal.token_id:
            return None
        self._open.move_to_end(connection_id)
        return found

    async def end(self, connection: Connection) -> None:
        """End the connection, what it runs, and its session."""
        self._open.pop(connection.id, None)
        await self.server.chats.end(connection.principal, connection.chat)

    def _add(self, connection: Connection) -> Connection:
        self._open[connection.id] = connection
        while len(self._open) > _MAX_CONNECTIONS:
            self._open.popitem(last=False)
        return connection


class GuardedHandler(BaseHandler):
    """What all handlers of MCP share: who may come, and errors as JSON-RPC."""

    async def _admit(self) -> None:
        headers = self.request.headers
        origins = Origins.parse(self.settings_.ip, self.settings_.allowed_hosts)
        if not origins.allow(self.request.host, headers.get("Origin")):
            raise ForbiddenError(
                "The Host or Origin header names a host that is not allowed; add it to allowed_hosts."
            )
        secret = self.get_query_argument("token", "")
        if secret and "Authorization" not in headers:
            headers["Authorization"] = f"Bearer {secret}"
        await super()._admit()

    def read_message(self) -> Message | None:
        """The message of the body. Raises RpcError, UnsupportedMediaTypeError."""
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            raise UnsupportedMediaTypeError("Send the message with `Content-Type: application/json`.")
        try:
            return protocol.read_message(parse_json(self._body.joined()))
        except InvalidRequestError as error:
            raise RpcError(protocol.PARSE_ERROR, error.message, status=400) from error

    def accept(self) -> None:
        """The answer to what needs none."""
        self.set_status(202)
        self.clear_header("Content-Type")

    def show_error(self, error: InterpreterError) -> None:
        self._error_body = True
        super().show_error(error)

    def reply(self, value: object, status: int = 200) -> None:
        """Errors of the HTTP level get JSON-RPC's body, so that clients show their sentence."""
        if getattr(self, "_error_body", False) and isinstance(value, dict) and "error" in value:
            shown = value["error"]
            data = {"type": shown["type"], "code": shown["code"], "request_id": value["request_id"]}
            code = protocol.INTERNAL_ERROR if status >= 500 else protocol.SERVER_ERROR
            value = RpcError(code, shown["message"], data=data).as_json(None)
        super().reply(value, status)


class McpHandler(GuardedHandler):
    """``/mcp``"""

    form: ClassVar = Form.FULL
    operations: ClassVar = {
        "POST": Operation(
            "sendMcpMessage",
            "Send a message of the Model Context Protocol",
            _TAG,
            {200: Answer("The response, or a stream that ends with it.", {_JSON: None, EVENT_STREAM: None})},
            Access.RUN,
        ),
        "DELETE": Operation(
            "endMcpSession", "End an MCP session", _TAG, {204: Answer("It has ended.")}, Access.RUN
        ),
    }

    def initialize(self, toolbox: Toolbox, route: str, connections: Connections) -> None:  # type: ignore[override]
        super().initialize(toolbox, route)
        self._connections = connections
        self._server = connections.server

    async def do_post(self) -> None:
        version = self.request.headers.get(protocol.VERSION_HEADER)
        modern, message = False, None
        try:
            message = self.read_message()
            if message is None:
                self.accept()
                return
            modern = protocol.is_modern(message, version)
            self._check_accept(modern)
            await (self._modern(message) if modern else self._handshake(message, version))
        except RpcError as error:
            message_id = message.id if message is not None else None
            self.reply(error.as_json(message_id), error.http_status(modern=modern))

    async def do_delete(self) -> None:
        if self.request.headers.get(protocol.VERSION_HEADER) in protocol.MODERN_VERSIONS:
            self.set_header("Allow", "POST")
            self.reply(RpcError(protocol.INVALID_REQUEST, "This version has no sessions.").as_json(None), 405)
            return
        connection_id = self.request.headers.get(protocol.SESSION_HEADER)
        if not connection_id:
            raise InvalidRequestError("Name the session in the Mcp-Session-Id header.")
        connection = self._connections.find(self.principal, connection_id)
        if connection is None:
            raise NotFoundError("There is no such MCP session.")
        await self._connections.end(connection)
        self.set_status(204)

    # -- the eras -------------------------------------------------------------------------------

    async def _modern(self, message: Message) -> None:
        protocol.check_modern(message, self.request.headers)
        if message.id is None:
            self.accept()  # a client cancels by closing the stream; there is no other notification
            return
        version = self.request.headers[protocol.VERSION_HEADER]
        call = Call(self.principal, True, version, self.form, self._chat())
        await self._send(message, call)

    async def _handshake(self, message: Message, version: str | None) -> None:
        protocol.check_handshake(message, version)
        if message.method == "initialize" and message.id is not None:
            asked = protocol.negotiate(message.params.get("protocolVersion"))
            connection = self._connections.begin(self.principal, asked)
            self.set_header(protocol.SESSION_HEADER, connection.id)
            await self._send(message, Call(self.principal, version=asked))
            return
        found = self._connection()
        if message.id is None:
            await self._notice(message, found)
            self.accept()
            return
        call = self._call(found, version)
        if found is not None:
            found.remember(message.id, call)
        await self._send(message, call)

    def _call(self, connection: Connection | None, version: str | None) -> Call:
        """A connection's state is its own; that of a shared one (SMG has one for all users) is nobody's."""
        if version is None:
            version = connection.version if connection else protocol.UNNAMED_VERSION
        own = connection.chat if connection is not None and self.form is Form.FULL else None
        # The specification: a dropped connection is no cancellation. Without a session nobody can cancel.
        leaving_cancels = connection is None
        return Call(self.principal, False, version, self.form, self._chat() or own, leaving_cancels)

    def _connection(self) -> Connection | None:
        connection_id = self.request.headers.get(protocol.SESSION_HEADER)
        if connection_id is None:
            return None
        connection = self._connections.find(self.principal, connection_id)
        if connection is None:
            raise RpcError(protocol.SESSION_NOT_FOUND, "There is no such session; initialize.", status=404)
        return connection

    async def _notice(self, message: Message, connection: Connection | None) -> None:
        call_id = message.params.get("requestId")
        if message.method != "notifications/cancelled" or connection is None:
            return
        call = connection.calls.get(call_id) if isinstance(call_id, int | str) else None
        if call is not None:
            await self._server.cancel(call)

    def _chat(self) -> str | None:
        for name in CHAT_HEADERS:
            if value := self.request.headers.get(name, "").strip():
                return check_chat_key(value, name)
        return None

    # -- sending --------------------------------------------------------------------------------

    def _check_accept(self, modern: bool) -> None:
        kinds = self._accepted
        if modern and not (_JSON in kinds and EVENT_STREAM in kinds):
            raise RpcError(
                protocol.INVALID_REQUEST,
                f"The Accept header must list {_JSON} and {EVENT_STREAM}.",
                status=406,
            )
        if not kinds:
            raise RpcError(
                protocol.INVALID_REQUEST,
                f"The Accept header must list {_JSON} or {EVENT_STREAM}.",
                status=406,
            )

    @property
    def _accepted(self) -> frozenset[str]:
        """Which of the two forms of an answer the client takes."""
        wanted = self.request.headers.get("Accept", "*/*")
        kinds = {part.partition(";")[0].strip().lower() for part in wanted.split(",")}
        by_kind = {_JSON: {_JSON, "application/*", "*/*"}, EVENT_STREAM: {EVENT_STREAM, "text/*", "*/*"}}
        return frozenset(kind for kind, names in by_kind.items() if names & kinds)

    async def _send(self, message: Message, call: Call) -> None:
        """Answer as long as the token is valid. Raises RpcError, UnauthorizedError."""
        answering = self._answer(message, call)
        told = await while_valid(answering, self.services.tokens, self.principal.token_id)
        if not told and not self._headers_written:
            raise bad_token()

    async def _answer(self, message: Message, call: Call) -> None:
        """Answer with one JSON body when the response comes first and soon; else a stream of events."""
        messages = self._server.respond(message, call)
        accepted, has_begun = self._accepted, False
        interval = self.settings_.keepalive_interval if EVENT_STREAM in accepted else None
        following = asyncio.ensure_future(anext(messages))
        try:
            while True:
                done, _ = await asyncio.wait({following}, timeout=interval)
                item = self._result_of(following, message, has_begun) if done else None
                is_last = item is not None and "method" not in item
                if is_last and not has_begun and _JSON in accepted:
                    self.reply(item)
                    return
                if EVENT_STREAM in accepted:
                    if not has_begun:
                        begin_stream(self)
                    has_begun = True
                    self.write(KEEPALIVE if item is None else encode(item))
                    await self.flush()
                if is_last:
                    return
                if done:
                    following = asyncio.ensure_future(anext(messages))
        finally:
            following.cancel()
            await asyncio.wait({following})
            await messages.aclose()

    @staticmethod
    def _result_of(following: "asyncio.Future[JSON]", message: Message, has_begun: bool) -> JSON:
        """What came; an error is an HTTP answer of its own, unless the stream has begun."""
        try:
            return following.result()
        except RpcError as error:
            if not has_begun:
                raise
            return error.as_json(message.id)


class SmgHandler(McpHandler):
    """``/mcp/smg``: the same with results in the keys that SMG maps to ``code_interpreter_call``."""

    form: ClassVar = Form.SMG


def begin_stream(handler: BaseHandler) -> None:
    """The headers of a stream of events."""
    handler.set_header("Content-Type", EVENT_STREAM)
    handler.set_header("X-Accel-Buffering", "no")


def encode(message: JSON) -> bytes:
    """A message as an event. ASCII only: some clients end lines at U+2028 and its like."""
    return f"event: message\ndata: {json.dumps(message, separators=(',', ':'))}\n\n".encode()
