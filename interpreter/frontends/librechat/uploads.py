"""What takes LibreChat's uploads as they come."""

from dataclasses import dataclass

from interpreter.api.multipart import MultipartReader, PartBegin, PartData
from interpreter.errors import InterpreterError, InvalidRequestError
from interpreter.frontends.identity import Identity
from interpreter.frontends.librechat.object_ids import path_of
from interpreter.frontends.librechat.requests import read_owner
from interpreter.frontends.storages import Folder, Storages
from interpreter.workspace import Upload

MAX_FILES = 200  # in one batch
_MAX_FIELD_BYTES = 4096


@dataclass(slots=True)
class Received:
    """A file of an upload: its path when it came well, a sentence when it did not."""

    name: str
    path: str = ""
    error: str = ""
    upload: Upload | None = None


class UploadReceiver:
    """Feed it the body of a form, then `finish` it, or `discard` it at any time.

    Fields come before the files. With ``strict`` the first bad file is the error of the request, else
    the others go on.
    """

    def __init__(self, storages: Storages, identity: Identity, content_type: str, *, strict: bool) -> None:
        self._storages = storages
        self._identity = identity
        self._strict = strict
        self._reader = MultipartReader(content_type)
        self._fields: dict[str, str] = {}
        self._field: tuple[str, bytearray] | None = None
        self._folder: Folder | None = None
        self._current: Received | None = None
        self.received: list[Received] = []
        self.left_out = 0

    @property
    def storage_id(self) -> str:
        """The storage session that was made."""
        assert self._folder is not None
        return self._folder.id

    async def feed(self, chunk: bytes) -> None:
        """Raises TooLargeError, InvalidRequestError, UnavailableError."""
        for event in self._reader.feed(chunk):
            if isinstance(event, PartBegin):
                await self._begin(event)
            elif isinstance(event, PartData):
                await self._add(event.data)
            else:
                self._end()

    async def _begin(self, part: PartBegin) -> None:
        if part.filename is None:
            self._field = (part.name, bytearray())
            return
        if len(self.received) >= MAX_FILES:
            self.left_out += 1
            return
        file = self._current = Received(part.filename)
        self.received.append(file)
        try:
            file.path = path_of(part.filename)
            if any(other.path == file.path and not other.error for other in self.received[:-1]):
                raise InvalidRequestError("Another file of the upload has the same name.", param="file")
            if self._folder is None:
                self._folder = self._storages.make(self._identity, read_owner(self._fields))
            file.upload = await self._storages.begin_upload(self._folder)
        except InterpreterError as error:
            self._fail(file, error)

    async def _add(self, data: bytes) -> None:
        if self._field is not None:
            self._field[1].extend(data)
            if len(self._field[1]) > _MAX_FIELD_BYTES:
                raise InvalidRequestError("A field of the form is too long.", param=self._field[0])
        elif self._current is not None and self._current.upload is not None:
            try:
                await self._current.upload.write(data)
            except InterpreterError as error:
                self._fail(self._current, error)

    def _end(self) -> None:
        if self._field is not None:
            name, value = self._field
            self._fields[name] = value.decode("utf-8", "replace")
        self._field = self._current = None

    async def finish(self) -> None:
        """Put the files in their places. Raises as `feed`."""
        self._reader.finish()
        if not self.received:
            raise InvalidRequestError(
                "There is no file in the form; send it as a part with a filename.", param="file"
            )
        for file in self.received:
            if file.upload is not None:
                try:
                    await file.upload.commit(file.path)
                except InterpreterError as error:
                    self._fail(file, error)

    def _fail(self, file: Received, error: InterpreterError) -> None:
        if self._strict:
            raise error
        if file.upload is not None:
            file.upload.discard()
        file.upload, file.error = None, error.message

    def discard(self) -> None:
        """Leave nothing behind."""
        for file in self.received:
            if file.upload is not None:
                file.upload.discard()
