"""MCP over standard input and output, carried to a service's ``/mcp``.

One JSON-RPC message per line (MCP's stdio transport). Each goes into a POST of its own, and what comes
back is written line by line. What the messages say is left to the service.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from interpreter.cli.client import Address
from interpreter.cli.exchange import Answer, Question, exchange
from interpreter.frontends.mcp import protocol
from interpreter.frontends.mcp.protocol import Message, RpcError
from interpreter.models import JSON

LEAVE_TIMEOUT = 5.0  # seconds to tell the service that the client has gone
_PATH = "/mcp"
_INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@dataclass(slots=True)
class _Handshake:
    """What ``initialize`` agreed on."""

    message: Message
    session_id: str | None = None
    version: str | None = None


@dataclass(slots=True, eq=False)
class _Post:
    """A message on its way, and whether it is of the stateless era."""

    message: Message
    modern: bool
    answered: bool = False
    task: "asyncio.Task[None] | None" = field(default=None)


class Bridge:
    """Carries one client's messages to one service. ``write`` gets each line for the client."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, write: Callable[[str], None]) -> None:
        self._address = address
        self._tls = tls
        self._write = write
        self._posts: set[_Post] = set()
        self._handshake: _Handshake | None = None

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Until the client has closed its end and all is answered. Cancelled, it ends what still runs."""
        try:
            async for line in lines:
                if line.strip():
                    await self._take(line)
            await asyncio.gather(*self._tasks())
        finally:
            for task in self._tasks():
                task.cancel()
            await asyncio.gather(*self._tasks(), return_exceptions=True)
            with contextlib.suppress(OSError, TimeoutError):
                await self._leave()

    def _tasks(self) -> "list[asyncio.Task[None]]":
        return [post.task for post in self._posts if post.task is not None]

    async def _take(self, line: bytes) -> None:
        try:
            message = protocol.read_message(json.loads(line))
        except (ValueError, RecursionError):
            self._put(RpcError(protocol.PARSE_ERROR, "The line is not JSON.").as_json(None))
            return
        except RpcError as error:
            self._put(error.as_json(None))
            return
        if message is None or (message.id is None and self._hang_up(message)):
            return
        post = _Post(message, protocol.VERSION_KEY in message.meta)
        self._posts.add(post)
        post.task = asyncio.create_task(self._carry(post))
        post.task.add_done_callback(lambda _: self._posts.discard(post))
        if message.method == "initialize":  # what follows needs its session
            await asyncio.wait({post.task})

    def _hang_up(self, message: Message) -> bool:
        """A cancelled call of the stateless era ends with its connection; whether it was one."""
        if message.method != "notifications/cancelled":
            return False
        for post in self._posts:
            if post.modern and post.message.id == message.params.get("requestId") and post.task:
                post.task.cancel()
                return True
        return False

    async def _carry(self, post: _Post) -> None:
        """Post a message and write what answers it; a request is always answered."""
        try:
            problem = self._problem(post, await self._post_again(post))
        except (OSError, TimeoutError):
            problem = f"The service at {self._address.url} can't be reached; is it running?"
        if post.message.id is not None and not post.answered:
            self._put(RpcError(protocol.SERVER_ERROR, problem).as_json(post.message.id))

    def _problem(self, post: _Post, answer: Answer) -> str:
        if answer.message is not None and "jsonrpc" in answer.message:
            self._show(post, answer.message)
        return f"The service refused the message (HTTP {answer.status})."

    async def _post_again(self, post: _Post) -> Answer:
        """Post it; when the service has forgotten the session meanwhile, begin a new one."""
        answer = await self._post(post)
        error = (answer.message or {}).get("error")
        forgotten = isinstance(error, dict) and error.get("code") == protocol.SESSION_NOT_FOUND
        known = self._handshake
        if not forgotten or known is None or post.message is known.message:
            return answer
        self._handshake = _Handshake(known.message)
        await self._post(_Post(known.message, False, answered=True))
        await self._post(_Post(Message(None, str(_INITIALIZED["method"])), False))
        return await self._post(post)

    async def _post(self, post: _Post) -> Answer:
        message = post.message
        if message.method == "initialize" and not post.modern:
            self._handshake = _Handshake(message)
        body: JSON = {"jsonrpc": "2.0", "method": message.method, "params": message.params}
        if message.id is not None:
            body["id"] = message.id
        headers = {**self._headers(post), "Content-Type": "application/json"}
        question = Question("POST", _PATH, headers, json.dumps(body).encode())
        answer = await exchange(self._address, self._tls, question, lambda event: self._show(post, event))
        if self._handshake is not None and message is self._handshake.message:
            result = (answer.message or {}).get("result")
            self._handshake.session_id = answer.headers.get(protocol.SESSION_HEADER)
            self._handshake.version = result.get("protocolVersion") if isinstance(result, dict) else None
        return answer

    def _headers(self, post: _Post) -> dict[str, str]:
        headers = {"Accept": "application/json, text/event-stream"}
        if post.modern:
            return {**headers, **protocol.modern_headers(post.message)}
        if self._handshake is not None and self._handshake.session_id:
            headers[protocol.SESSION_HEADER] = self._handshake.session_id
        if self._handshake is not None and self._handshake.version:
            headers[protocol.VERSION_HEADER] = self._handshake.version
        return headers

    def _show(self, post: _Post, message: JSON) -> None:
        if "method" not in message:
            if post.answered:
                return
            post.answered, message = True, {**message, "id": post.message.id}
        self._put(message)

    def _put(self, message: JSON) -> None:
        self._write(json.dumps(message, separators=(",", ":")) + "\n")

    async def _leave(self) -> None:
        """End the session, so that its kernel does not wait for a client that never comes back."""
        known = self._handshake
        if known is None or known.session_id is None:
            return
        headers = {protocol.SESSION_HEADER: known.session_id}
        async with asyncio.timeout(LEAVE_TIMEOUT):
            await exchange(self._address, self._tls, Question("DELETE", _PATH, headers), lambda _: None)
