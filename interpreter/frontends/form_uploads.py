"""Uploads of small front ends: a form whose files go into a session as they come."""

from collections.abc import Awaitable
from dataclasses import replace

from interpreter.api.multipart import PartBegin
from interpreter.api.receivers import MultipartReceiver
from interpreter.errors import InterpreterError
from interpreter.frontends.dialect import DialectHandler
from interpreter.workspace import FileInfo

MOUNT = "/mnt/data"
_FORM_OVERHEAD = 1024**2  # bytes of a form that are not content
_UPLOAD_TIMEOUT = 6 * 3600.0  # seconds for one body


def local_path(path: str) -> str:
    """A path of the client, which may begin with `MOUNT`, relative to the session's folder."""
    if path == MOUNT or path.startswith(f"{MOUNT}/"):
        path = path.removeprefix(MOUNT)
        return path.lstrip("/")
    return path


class FormReceiver(MultipartReceiver):
    """Takes files whose names are paths of the client."""

    async def _begin(self, part: PartBegin) -> None:
        if part.filename:
            part = replace(part, filename=local_path(part.filename))
        await super()._begin(part)


class UploadHandler(DialectHandler):
    """Subclass it: ``make_receiver`` says where the files go, ``do_post`` answers with `finish_upload`."""

    receiver: MultipartReceiver | None = None

    async def make_receiver(self, content_type: str) -> MultipartReceiver:
        """What takes the body; called before it is read."""
        raise NotImplementedError

    @property
    def max_body_bytes(self) -> int:
        settings = self.services.settings
        if self.request.method == "POST":
            return settings.max_workspace_bytes + _FORM_OVERHEAD
        return settings.max_body_bytes

    async def _admit(self) -> None:
        await super()._admit()
        if not self._finished and self.request.method == "POST":
            self.receiver = await self.make_receiver(self.request.headers.get("Content-Type", ""))
            self.request.connection.set_body_timeout(_UPLOAD_TIMEOUT)  # type: ignore[union-attr]

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        if self.receiver is None or self._refusal is not None:
            return super().data_received(chunk)
        return self._receive(self.receiver, chunk)

    async def _receive(self, receiver: MultipartReceiver, chunk: bytes) -> None:
        try:
            await receiver.feed(chunk)
        except InterpreterError as error:
            receiver.discard()
            if not self._client_gone:
                self._refuse(error)
        if self._client_gone:  # meanwhile
            receiver.discard()

    async def finish_upload(self) -> list[FileInfo]:
        """Put in place what was received. Raises as `MultipartReceiver.finish`."""
        assert self.receiver is not None
        return await self.receiver.finish()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._discard()

    def on_finish(self) -> None:
        self._discard()

    def _discard(self) -> None:
        if self.receiver is not None:
            self.receiver.discard()
