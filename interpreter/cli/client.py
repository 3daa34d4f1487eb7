"""A client of a running service's REST API."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse
from tornado.iostream import StreamClosedError

from interpreter.cli.events import EventParser, ServerEvent
from interpreter.errors import SettingsError
from interpreter.models import JSON

CONNECT_TIMEOUT = 10.0
ANSWER_TIMEOUT = 90.0  # seconds for an answer that is no stream; a kernel may have to start
SILENCE_TIMEOUT = 60.0  # seconds; the service sends a comment at least every 10
_NO_LIMIT = 2**40  # a stream of a long run is longer than Tornado's default for a whole body


class ClientError(Exception):
    """The service can't be reached or refuses: one sentence that says what to change."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service is (no trailing slash) and the token to show to it."""

    url: str
    token: str = field(repr=False)

    @classmethod
    def parse(cls, text: str, token: str) -> "Address":
        """Of a URL, also one as the service prints it, with the token in it. Raises SettingsError."""
        try:
            split = urlsplit(text.strip())
            _ = split.port
        except ValueError as error:
            raise SettingsError(f"url is not a URL: {error}.") from error
        if split.scheme not in ("http", "https") or not split.hostname:
            raise SettingsError("url must look like http://host:port.")
        inside = parse_qs(split.query).get("token", [""])[0]
        bare = urlunsplit((split.scheme, split.netloc, split.path.rstrip("/"), "", ""))
        return cls(bare, token or inside)


class ServiceClient:
    """Asks one service. Every method raises ClientError. ``ca_file``: PEM, empty for the system's."""

    def __init__(self, address: Address, *, ca_file: str = "") -> None:
        self._address = address
        self._tls: ssl.SSLContext | None = None
        if address.url.startswith("https:"):
            try:
                self._tls = ssl.create_default_context(cafile=ca_file or None)
            except (OSError, ssl.SSLError) as error:
                raise SettingsError("ca_file is not a readable PEM file.") from error
        self._client = AsyncHTTPClient(force_instance=True, max_body_size=_NO_LIMIT)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def post(self, path: str, body: JSON) -> JSON:
        """The JSON that the service answers."""
        with self._explained():
            request = self._request(path, body, request_timeout=ANSWER_TIMEOUT)
            response = await self._client.fetch(request, raise_error=False)
        if response.code >= 300:
            raise self._refusal(response.code, response.body)
        answer = _parse_object(response.body)
        if answer is None:
            raise self._stranger()
        return answer

    async def stream(self, path: str, body: JSON) -> AsyncGenerator[ServerEvent, None]:
        """The events that the service answers with, as they come.

        The connection of a stream that is left early lives as long as the event loop: Tornado's client
        can't close it.
        """
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        head: list[str] = []
        options = {"streaming_callback": chunks.put_nowait, "header_callback": head.append}
        with self._explained():
            request = self._request(path, body, request_timeout=0, **options)
            fetching = self._client.fetch(request, raise_error=False)

        def end(done: asyncio.Future[HTTPResponse]) -> None:
            chunks.put_nowait(None)
            if not done.cancelled():
                done.exception()  # nobody may be left who asks for it

        fetching.add_done_callback(end)
        parser, other = EventParser(), b""
        while (chunk := await self._next(chunks)) is not None:
            if _is_stream(head):
                for event in parser.feed(chunk):
                    yield event
            else:
                other += chunk
        with self._explained():
            response = await fetching
        if response.code >= 300:
            raise self._refusal(response.code, other)
        if not _is_stream(head):
            raise self._stranger()

    async def _next(self, chunks: "asyncio.Queue[bytes | None]") -> bytes | None:
        try:
            async with asyncio.timeout(SILENCE_TIMEOUT):
                return await chunks.get()
        except TimeoutError as error:
            raise ClientError(
                f"The service at {self._address.url} has been silent for {SILENCE_TIMEOUT:g} seconds."
            ) from error

    def _request(self, path: str, body: JSON, **options: Any) -> HTTPRequest:
        headers = {"Content-Type": "application/json"}
        if self._address.token:
            headers["Authorization"] = f"Bearer {self._address.token}"
        return HTTPRequest(
            self._address.url + path,
            method="POST",
            headers=headers,
            body=json.dumps(body),
            follow_redirects=False,
            connect_timeout=CONNECT_TIMEOUT,
            ssl_options=self._tls,
            **options,
        )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StreamClosedError, HTTPClientError) as error:
            raise ClientError(self._connection_sentence(error)) from error
        except ValueError as error:
            raise ClientError("The token or url has characters that HTTP does not allow.") from error

    def _connection_sentence(self, error: BaseException) -> str:
        url = self._address.url
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message or "it can't be verified"
            return f"The service's TLS certificate is not trusted ({reason}); set --ca-file."
        if isinstance(error, socket.gaierror):
            return f"The host name of {url} does not resolve; check --url."
        if isinstance(error, ConnectionRefusedError):
            return f"No service runs at {url}: connection refused; start it with `jupyter interpreter serve`."
        if isinstance(error, HTTPClientError) and "imeout" in str(error):
            return f"The service at {url} did not answer in time."
        return f"The connection to the service at {url} broke."

    def _refusal(self, status: int, body: bytes) -> ClientError:
        if status == 401:
            if not self._address.token:
                return ClientError(
                    "The service wants a token; set INTERPRETER_TOKEN, or make one with "
                    "`jupyter interpreter token create`."
                )
            return ClientError("The service refuses the token; check INTERPRETER_TOKEN or --token.")
        error = (_parse_object(body) or {}).get("error")
        message = error.get("message") if isinstance(error, dict) else None
        if not isinstance(message, str):
            return self._stranger()
        return ClientError(message)

    def _stranger(self) -> ClientError:
        return ClientError(
            f"What answers at {self._address.url} is not a code interpreter service; check --url."
        )


def _is_stream(head: list[str]) -> bool:
    status = head[0].split(" ")[1:2] if head else []
    kinds = [line.partition(":")[2].strip() for line in head if line.lower().startswith("content-type:")]
    return status == ["200"] and any(kind.startswith("text/event-stream") for kind in kinds)


def _parse_object(body: bytes) -> JSON | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
