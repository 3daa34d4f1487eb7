"""The files of a session: upload and download as streams, list, delete."""

import asyncio
import re
from functools import partial
from typing import ClassVar
from urllib.parse import quote

from tornado.web import HTTPError

from interpreter.api.connections import connection_of
from interpreter.api.operations import Access, Answer, Operation, json_answer
from interpreter.api.ranges import find_range, http_date, is_unchanged
from interpreter.api.receivers import MultipartReceiver, RawReceiver, Receiver
from interpreter.api.streaming import PIECE_BYTES
from interpreter.api.uploads import UploadHandler
from interpreter.errors import InvalidRequestError, RangeNotSatisfiableError, TooLargeError
from interpreter.sessions import Session
from interpreter.workspace import FileInfo, Files, OpenFile

_TAG = "Files"
_DEFAULT_LIMIT = 1000
_POLICY = (
    "sandbox; default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'"
)
"""What the code of a session wrote is not ours: nothing in it may run with our origin's rights."""
_SHOWN = re.compile(r"image/(png|jpeg|gif|webp|avif|bmp)|(audio|video)/[\w.+-]+|text/plain")
_FILE = json_answer("The file.", "File")


class _FilesHandler(UploadHandler[Receiver]):
    """What both routes share: the session."""

    _is_utf8 = True

    def _session(self) -> Session:
        """The session, which is in use by this."""
        if not self._is_utf8:
            raise InvalidRequestError(
                "The path of the URL is not UTF-8; percent-encode it as UTF-8.", param="path"
            )
        session_id = self.session_id_of(self.path_kwargs["session_id"])
        session = self.services.sessions.get(self.principal, session_id)
        self.services.sessions.touch(session)
        return session

    def _files(self) -> Files:
        return self.services.workspaces.files(self._session())

    def decode_argument(self, value: bytes, name: str | None = None) -> str:
        try:
            return super().decode_argument(value, name)
        except HTTPError:
            self._is_utf8 = False  # told later: an answer before a body that nobody reads may be lost
            return ""

    async def _finish_upload(self) -> list[FileInfo]:
        """Put in place what was received, if the session is still there."""
        self._session()
        return await self.receiver.finish()


class FilesHandler(_FilesHandler):
    """``/v1/sessions/{session_id}/files``"""

    operations: ClassVar = {
        "GET": Operation(
            "listFiles",
            "List the files of a session",
            _TAG,
            {200: json_answer("Files in the order of their paths; a file's id is its path.", "FileList")},
            description="Files in folders whose name begins with a dot, and links, are not listed.",
            query="FilesQuery",
        ),
        "POST": Operation(
            "uploadFiles",
            "Upload files to a session",
            _TAG,
            {201: json_answer("The file; `{data: [file]}` when there are several.", "Uploaded")},
            Access.RUN,
            "Each part with a filename is a file. They are in place when all are whole, or none is.",
            upload="multipart/form-data",
        ),
    }

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"The files are over max_workspace_bytes ({self.services.settings.max_workspace_bytes}); send less."
        )

    async def make_receiver(self) -> Receiver:
        return MultipartReceiver(
            partial(self.services.workspaces.begin_upload, self._session()), self.content_type
        )

    async def do_get(self, session_id: str) -> None:
        query = self.read_query()
        listing = await self._files().list(
            limit=query.get("limit", _DEFAULT_LIMIT),
            after=query.get("after"),
            descending=query.get("order") == "desc",
        )
        paths = [info.path for info in listing.files]
        self.reply(
            {
                "data": [info.as_json(session_id) for info in listing.files],
                "has_more": listing.has_more,
                "first_id": paths[0] if paths else None,
                "last_id": paths[-1] if paths else None,
            }
        )

    async def do_post(self, session_id: str) -> None:
        files = [info.as_json(session_id) for info in await self._finish_upload()]
        self.reply(files[0] if len(files) == 1 else {"data": files}, 201)


class FileHandler(_FilesHandler):
    """``/v1/sessions/{session_id}/files/{path}``"""

    operations: ClassVar = {
        "GET": Operation(
            "downloadFile",
            "Read a file of a session",
            _TAG,
            {
                200: Answer("The content.", {"*/*": None}),
                206: Answer("The bytes of `Range`.", {"*/*": None}),
                304: Answer("The client has it already."),
                416: json_answer("The file has none of these bytes.", "Error"),
            },
            description="Single ranges of bytes and conditional requests are understood.",
            headers=("Range",),
        ),
        "PUT": Operation(
            "uploadFile",
            "Write a file of a session",
            _TAG,
            {201: _FILE},
            Access.RUN,
            "The body is the content. Missing folders are made; what was there is replaced at once.",
            upload="application/octet-stream",
        ),
        "DELETE": Operation(
            "deleteFile",
            "Delete a file of a session",
            _TAG,
            {204: Answer("It is gone.")},
            Access.RUN,
            "Or an empty folder.",
        ),
    }

    @property
    def max_body_bytes(self) -> int:
        settings = self.services.settings
        return settings.max_file_bytes if self.request.method == "PUT" else settings.max_body_bytes

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"The file is over max_file_bytes ({self.max_body_bytes}); send a smaller one.")

    async def make_receiver(self) -> Receiver:
        session = self._session()
        if "Content-Range" in self.request.headers:
            raise InvalidRequestError("Send the whole file; parts are not taken.", param="Content-Range")
        return RawReceiver(partial(self.services.workspaces.begin_upload, session), self.path_kwargs["path"])

    async def do_put(self, session_id: str, path: str) -> None:
        (info,) = await self._finish_upload()
        answer = info.as_json(session_id)
        self.set_header("Location", answer["url"])
        self.reply(answer, 201)

    async def do_delete(self, session_id: str, path: str) -> None:
        await self._files().delete(path)
        self.set_status(204)

    async def do_get(self, session_id: str, path: str) -> None:
        file = await self._files().open(path)
        try:
            await self._send(file)
        finally:
            await file.aclose()

    async def _send(self, file: OpenFile) -> None:
        info, headers = file.info, self.request.headers
        etag = f'"{info.etag}"'
        self.set_header("ETag", etag)
        self.set_header("Last-Modified", http_date(info.modified_at))
        self.set_header("Cache-Control", "private, no-cache")
        self.set_header("Accept-Ranges", "bytes")
        if is_unchanged(headers, etag, info.modified_at):
            self.set_status(304)
            return
        wanted = None
        if self.request.method == "GET":
            try:
                wanted = find_range(headers, info.size, etag, info.modified_at)
            except RangeNotSatisfiableError as error:
                self.set_header("Content-Range", f"bytes */{info.size}")
                self.show_error(error)
                return
        if wanted is not None:
            self.set_status(206)
            self.set_header("Content-Range", f"bytes {wanted.start}-{wanted.stop - 1}/{info.size}")
        await self._send_bytes(file, wanted or range(info.size))

    async def _send_bytes(self, file: OpenFile, wanted: range) -> None:
        kind = file.info.mime_type
        self.set_header("Content-Type", f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
        self.set_header("Content-Disposition", content_disposition(file.info.path, kind))
        self.set_header("Content-Length", str(len(wanted)))
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        if self.request.method == "HEAD":
            return
        position = wanted.start
        while position < wanted.stop:
            size = min(PIECE_BYTES, wanted.stop - position)
            async with self.room(size):
                chunk = await file.read(position, size)
                if not chunk:
                    await self._break_off()
                position += len(chunk)
                self.write(chunk)
                await self.flush()

    async def _break_off(self) -> None:
        """The code made the file shorter while it was sent: let the client see that bytes are missing."""
        connection_of(self.request).stream.close()
        await asyncio.Event().wait()  # until `on_connection_close` ends this task


def content_disposition(path: str, mime_type: str) -> str:
    """The header for a file (RFC 6266): to be saved, unless browsers show its kind without danger."""
    name = path.rpartition("/")[2]
    plain = re.sub(r'[^ -~]|["\\%]', "_", name)
    how = "inline" if _SHOWN.fullmatch(mime_type) else "attachment"
    return f"{how}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
