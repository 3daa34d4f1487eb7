"""One HTTP request on a connection of its own, which closes with it: to cancel the request is to hang up.

Tornado's client can't break off a request that is under way, and MCP cancels by just that.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import StreamClosedError
from tornado.tcpclient import TCPClient

from interpreter.cli.client import CONNECT_TIMEOUT, Address
from interpreter.cli.events import EventParser
from interpreter.models import JSON

_NO_LIMIT = 2**40


@dataclass(frozen=True, slots=True)
class Answer:
    """How it ended; ``message`` is the JSON object of a body that was no stream of events."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    message: JSON | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A request below a service's address. The token and the usual headers are added."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class _Reader(HTTPMessageDelegate):
    def __init__(self, on_event: Callable[[JSON], None]) -> None:
        self._on_event = on_event
        self._events: EventParser | None = None
        self._body = bytearray()
        self.answer: Answer | None = None
        self._status = 0
        self._headers: Mapping[str, str] = {}

    def headers_received(self, start_line: Any, headers: HTTPHeaders) -> None:
        assert isinstance(start_line, ResponseStartLine)
        self._status, self._headers = start_line.code, headers
        if headers.get("Content-Type", "").startswith("text/event-stream"):
            self._events = EventParser()

    def data_received(self, chunk: bytes) -> None:
        if self._events is None:
            self._body += chunk
            return
        for event in self._events.feed(chunk):
            if (message := parse_object(event.data)) is not None:
                self._on_event(message)

    def finish(self) -> None:
        self.answer = Answer(self._status, self._headers, parse_object(bytes(self._body)))


async def exchange(
    address: Address,
    tls: ssl.SSLContext | None,
    question: Question,
    on_event: Callable[[JSON], None],
) -> Answer:
    """Send it below the address and read the answer, of a stream each event's JSON object at once.

    Raises OSError when the service can't be reached or hangs up.
    """
    split = urlsplit(address.url)
    port = split.port or (443 if split.scheme == "https" else 80)
    client, reader = TCPClient(), _Reader(on_event)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            stream = await client.connect(split.hostname or "", port, ssl_options=tls)
        try:
            stream.set_nodelay(True)
            connection = HTTP1Connection(
                stream, True, HTTP1ConnectionParameters(no_keep_alive=True, max_body_size=_NO_LIMIT)
            )
            whole = HTTPHeaders(
                {"Host": split.netloc.rpartition("@")[2], "Content-Length": str(len(question.body))}
            )
            whole.update(
                {**question.headers, "Authorization": f"Bearer {address.token}", "Connection": "close"}
            )
            start = RequestStartLine(question.method, split.path + question.path, "")
            await connection.write_headers(start, whole, question.body)
            connection.finish()
            await connection.read_response(reader)
        finally:
            stream.close()
    except StreamClosedError as error:
        raise ConnectionResetError("The service hung up.") from error
    finally:
        client.close()
    if reader.answer is None:
        raise ConnectionResetError("The service hung up.")
    return reader.answer


def parse_object(text: str | bytes) -> JSON | None:
    """The JSON object of a text, None when it is anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
