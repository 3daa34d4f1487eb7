"""Ends connections whose request body stops coming: a client that says nothing must hold nothing."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.web import Application

from interpreter.api.connections import http1

STALL_TIMEOUT = 60.0
"""Seconds without a byte of an unfinished body. The bound on the sum is far higher: uploads may be slow."""


class StallGuard(HTTPMessageDelegate):
    """Passes a request on and closes its connection when the body stalls.

    The time in which the service itself is busy with a piece does not count.
    """

    def __init__(self, inner: HTTPMessageDelegate, connection: HTTP1Connection) -> None:
        self._inner = inner
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None

    async def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        """Let the handler decide about the request, then wait for its body."""
        admitted = self._inner.headers_received(start_line, headers)
        if admitted is not None:
            await admitted
        if "Content-Length" in headers or "Transfer-Encoding" in headers:
            self._wait()

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Pass a piece on; the next is waited for when this one was taken."""
        self._stop()
        taken = self._inner.data_received(chunk)
        if taken is None:
            self._wait()
            return None
        return self._wait_after(taken)

    async def _wait_after(self, taken: Awaitable[None]) -> None:
        await taken
        self._wait()

    def finish(self) -> None:
        """The body is whole."""
        self._stop()
        self._inner.finish()

    def on_connection_close(self) -> None:
        """The client is gone, or was sent away."""
        self._stop()
        self._inner.on_connection_close()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(STALL_TIMEOUT, self._close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        stream = self._connection.stream
        if stream is not None:  # else detached
            stream.close()


class GuardedApplication(Application):
    """An application no client of which can stop in the middle of a body."""

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        inner: Any = super().start_request(server_conn, request_conn)
        return StallGuard(inner, http1(request_conn))
