"""What takes the body of an upload, as it comes, and makes files of it."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from interpreter.api.multipart import MultipartReader, PartBegin, PartData
from interpreter.errors import InvalidRequestError
from interpreter.workspace import FileInfo, Upload, parse_path

Begin: TypeAlias = Callable[[], Awaitable[Upload]]
"""Begins an upload of one file."""

MAX_FILES = 1000  # in one multipart body
_MAX_FIELD_BYTES = 4096


class Sink(Protocol):
    """What takes a body: feed it, or discard it at any time."""

    async def feed(self, chunk: bytes) -> None:
        """Take a piece of the body. Raises InterpreterError."""

    def discard(self) -> None:
        """Leave nothing behind."""


class Receiver(Sink, Protocol):
    """One that makes files of it."""

    async def finish(self) -> list[FileInfo]:
        """Put the files in their places. Raises as `feed`."""


class RawReceiver:
    """The body is the file."""

    def __init__(self, begin: Begin, path: str) -> None:
        parse_path(path)
        self._begin_upload = begin
        self._path = path
        self._upload: Upload | None = None

    async def feed(self, chunk: bytes) -> None:
        """Raises TooLargeError, InvalidRequestError, NotFoundError, UnavailableError."""
        upload = self._upload
        if upload is None:
            upload = self._upload = await self._begin_upload()
            await upload.replace(self._path)
        await upload.write(chunk)

    async def finish(self) -> list[FileInfo]:
        """Put the file in its place. Raises as `feed`."""
        if self._upload is None:  # an empty file has no chunk
            await self.feed(b"")
        assert self._upload is not None
        return [await self._upload.commit(self._path)]

    def discard(self) -> None:
        """Leave nothing behind."""
        if self._upload is not None:
            self._upload.discard()


class MultipartReceiver:
    """Each part with a file's name is a file.

    A field ``path`` says where: the folder of all (with a slash at its end, or when there are
    several), or the path of the only one. No file is in its place before all are whole.
    """

    def __init__(self, begin: Begin, content_type: str) -> None:
        self._begin_upload = begin
        self._reader = MultipartReader(content_type)
        self._uploads: list[tuple[str, Upload]] = []
        self._upload: Upload | None = None
        self._field: bytearray | None = None
        self._path = ""

    async def feed(self, chunk: bytes) -> None:
        """Raises TooLargeError, InvalidRequestError, NotFoundError, UnavailableError."""
        for event in self._reader.feed(chunk):
            if isinstance(event, PartBegin):
                await self._begin(event)
            elif isinstance(event, PartData):
                await self._add(event.data)
            else:
                self._end()

    async def _begin(self, part: PartBegin) -> None:
        if part.filename is None:
            self._field = bytearray() if part.name == "path" else None
        elif part.filename:  # a browser's form names the file that nobody chose ""
            parse_path(part.filename)
            if len(self._uploads) >= MAX_FILES:
                raise InvalidRequestError(f"Send at most {MAX_FILES} files at once.", param="file")
            self._upload = await self._begin_upload()
            self._uploads.append((part.filename, self._upload))

    async def _add(self, data: bytes) -> None:
        if self._upload is not None:
            await self._upload.write(data)
        elif self._field is not None:
            self._field += data
            if len(self._field) > _MAX_FIELD_BYTES:
                raise InvalidRequestError("`path` is too long.", param="path")

    def _end(self) -> None:
        if self._field is not None:
            try:
                self._path = self._field.decode()
            except UnicodeDecodeError:
                raise InvalidRequestError("`path` must be UTF-8.", param="path") from None
        self._upload = self._field = None

    async def finish(self) -> list[FileInfo]:
        """Put the files in their places. Raises as `feed`."""
        self._reader.finish()
        if not self._uploads:
            raise InvalidRequestError(
                "There is no file in the form; send each as a part with a filename.", param="file"
            )
        paths = self._target_paths()
        for path, (_, upload) in zip(paths, self._uploads, strict=True):
            await upload.replace(path)  # finds what is wrong with a path before the first file is in place
        return [await upload.commit(path) for path, (_, upload) in zip(paths, self._uploads, strict=True)]

    def _target_paths(self) -> list[str]:
        names = [name for name, _ in self._uploads]
        if self._path and len(names) == 1 and not self._path.endswith("/"):
            names = [self._path]
        elif self._path:
            names = [f"{self._path.removesuffix('/')}/{name}" for name in names]
        folders = {"/".join(parts[:n]) for parts in map(parse_path, names) for n in range(1, len(parts))}
        if len(set(names)) < len(names) or not folders.isdisjoint(names):
            raise InvalidRequestError("Two files have the same path; rename one.", param="path")
        return names

    def discard(self) -> None:
        """Leave nothing behind."""
        for _, upload in self._uploads:
            upload.discard()
