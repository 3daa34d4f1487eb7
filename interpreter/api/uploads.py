"""Handlers that take the body of an upload as it comes, and leave nothing behind when it breaks off."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Generic, TypeVar

from interpreter.api.auth import bad_token
from interpreter.api.base import BaseHandler
from interpreter.api.connections import connection_of
from interpreter.api.receivers import Sink
from interpreter.api.validity import until_ended
from interpreter.errors import InterpreterError

_FORM_OVERHEAD = 1024**2  # bytes of a form that are not content
_UPLOAD_TIMEOUT = 6 * 3600.0  # seconds for one body: a gigabyte over half a megabit per second


SinkT = TypeVar("SinkT", bound=Sink)


class UploadHandler(BaseHandler, ABC, Generic[SinkT]):
    """Subclass it: ``make_receiver`` says where the body of a PUT or POST goes, ``do_…`` puts it in place.

    What was received and not put in place is discarded when the request ends, however it does.
    """

    _receiver: SinkT | None = None
    _watch: asyncio.Task[None] | None = None

    @abstractmethod
    async def make_receiver(self) -> SinkT:
        """What takes the body; called before it is read, for a client that may upload. Raises InterpreterError."""

    @property
    def receiver(self) -> SinkT:
        """What took the body. Only for PUT and POST."""
        assert self._receiver is not None, "the request has no upload"
        return self._receiver

    @property
    def content_type(self) -> str:
        """What the client says of the body, as it says it."""
        return self.request.headers.get("Content-Type", "")

    @property
    def max_body_bytes(self) -> int:
        """Of a form: all files that a session may have. Of anything else: as usual."""
        settings = self.services.settings
        if self.request.method == "POST":
            return settings.max_workspace_bytes + _FORM_OVERHEAD
        return settings.max_body_bytes

    async def _admit(self) -> None:
        await super()._admit()
        if not self._finished and self.request.method in ("PUT", "POST"):
            self._receiver = await self.make_receiver()
            connection_of(self.request).set_body_timeout(_UPLOAD_TIMEOUT)
            self._watch = asyncio.ensure_future(self._end_with_token(self._receiver))

    async def _end_with_token(self, receiver: SinkT) -> None:
        """An upload may take hours; it is not read on when its token has ended."""
        await until_ended(self.services.tokens, self.principal.token_id)
        if not (self._client_gone or self._refusal or self.request._body_future.done()):
            receiver.discard()
            self._refuse_stranger(bad_token())

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        if self._receiver is None or self._refusal is not None:
            return super().data_received(chunk)
        return self._receive(self._receiver, chunk)

    async def _receive(self, receiver: SinkT, chunk: bytes) -> None:
        try:
            await receiver.feed(chunk)
        except InterpreterError as error:
            receiver.discard()
            if not self._client_gone:
                self._refuse(error)
        if self._client_gone or self._refusal is not None:  # meanwhile
            receiver.discard()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._discard()

    def on_finish(self) -> None:
        super().on_finish()
        self._discard()

    def _discard(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._receiver is not None:
            self._receiver.discard()
