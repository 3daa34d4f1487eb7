"""LibreChat's files: uploads, downloads, lists, and whether one is still there."""

from typing import ClassVar

from interpreter.api import uploads
from interpreter.api.files import FileHandler
from interpreter.api.operations import Access, Answer, Operation
from interpreter.frontends.librechat.base import JSON_TYPE, TAG, LibreChatHandler
from interpreter.frontends.librechat.object_ids import find_object, object_id
from interpreter.frontends.librechat.uploads import MAX_FILES, UploadReceiver
from interpreter.frontends.storages import Storage
from interpreter.models import JSON, to_iso
from interpreter.workspace import FileInfo

_MAX_LISTED = 1000


class UploadHandler(uploads.UploadHandler[UploadReceiver], LibreChatHandler):
    """``/librechat/upload``"""

    strict: ClassVar = True
    operations: ClassVar = {
        "POST": Operation(
            "librechatUpload",
            "Upload a file for LibreChat",
            TAG,
            {200: Answer("The ids of the file.", {JSON_TYPE: None})},
            Access.RUN,
            upload="multipart/form-data",
        )
    }

    async def make_receiver(self) -> UploadReceiver:
        return UploadReceiver(self.front.storages, self.asker, self.content_type, strict=self.strict)

    async def _finish_upload(self) -> UploadReceiver:
        await self.receiver.finish()
        return self.receiver

    async def do_post(self) -> None:
        receiver = await self._finish_upload()
        storage_id = receiver.storage_id
        files = [
            {"fileId": object_id(storage_id, file.path), "filename": file.path} for file in receiver.received
        ]
        self.reply(
            {
                "message": "success",
                "session_id": storage_id,
                "storage_session_id": storage_id,
                "files": files,
            }
        )


class BatchUploadHandler(UploadHandler):
    """``/librechat/upload/batch``"""

    strict: ClassVar = False

    async def do_post(self) -> None:
        receiver = await self._finish_upload()
        good = [file for file in receiver.received if not file.error]
        storage_id = receiver.storage_id if good else None
        rows: list[JSON] = [
            {"status": "error", "filename": file.name, "error": file.error}
            if file.error or storage_id is None
            else {
                "status": "success",
                "fileId": object_id(storage_id, file.path),
                "filename": file.path,
            }
            for file in receiver.received
        ]
        failed = len(rows) - len(good)
        message = "success" if not failed else "partial_success" if good else "error"
        body: JSON = {
            "message": message,
            "session_id": storage_id,
            "storage_session_id": storage_id,
            "files": rows,
            "succeeded": len(good),
            "failed": failed,
        }
        if receiver.left_out:
            body |= {"filesLimitReached": True, "maxFiles": MAX_FILES}
        self.reply(body, 200 if good else 400)


class FilesHandler(LibreChatHandler):
    """``/librechat/files/{storage_id}``"""

    operations: ClassVar = {
        "GET": Operation(
            "librechatFiles",
            "List the files of a storage session",
            TAG,
            {200: Answer("The files.", {JSON_TYPE: None})},
        )
    }

    async def do_get(self, storage_id: str) -> None:
        storage = self.front.storages.find(self.asker, storage_id, self.owner)
        listing = await storage.files.list(limit=_MAX_LISTED)
        self.reply([_describe(storage, info) for info in listing.files])


class ObjectHandler(LibreChatHandler):
    """``/librechat/sessions/{storage_id}/objects/{file_id}``"""

    operations: ClassVar = {
        "GET": Operation(
            "librechatObject",
            "Whether a file is still there",
            TAG,
            {200: Answer("The file.", {JSON_TYPE: None})},
        ),
        "DELETE": Operation(
            "librechatDeleteObject",
            "Delete a file",
            TAG,
            {200: Answer("It is gone.", {JSON_TYPE: None})},
            Access.RUN,
        ),
    }

    async def do_get(self, storage_id: str, file_id: str) -> None:
        storage = self.front.storages.find(self.asker, storage_id, self.owner)
        self.reply(_describe(storage, await find_object(storage, file_id)))

    async def do_delete(self, storage_id: str, file_id: str) -> None:
        storage = self.front.storages.find(self.asker, storage_id, self.owner)
        await storage.files.delete((await find_object(storage, file_id)).path)
        self.reply({"message": "success", "id": file_id})


class DownloadHandler(LibreChatHandler, FileHandler):
    """``/librechat/download/{storage_id}/{file_id}``"""

    operations: ClassVar = {
        "GET": Operation(
            "librechatDownload",
            "Read a file",
            TAG,
            {200: Answer("The content.", {"*/*": None})},
            headers=("Range",),
        )
    }

    async def do_get(self, storage_id: str, file_id: str) -> None:
        storage = self.front.storages.find(self.asker, storage_id, self.owner)
        file = await storage.files.open((await find_object(storage, file_id)).path)
        try:
            await self._send(file)
        finally:
            await file.aclose()


class HealthHandler(LibreChatHandler):
    """``/librechat/health``"""

    operations: ClassVar = {
        "GET": Operation(
            "librechatHealth",
            "Whether the service lives",
            TAG,
            {200: Answer("OK", {"text/plain": None})},
            Access.PUBLIC,
        )
    }

    async def do_get(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("OK")


def _describe(storage: Storage, info: FileInfo) -> JSON:
    """A file; its ``name`` is made of both ids, which older clients take apart."""
    file_id = object_id(storage.id, info.path)
    base = info.path.rpartition("/")[2]
    ending = f".{base.rpartition('.')[2]}" if "." in base else ""
    return {
        "id": file_id,
        "name": f"{storage.id}/{file_id}{ending}",
        "session_id": storage.id,
        "storage_session_id": storage.id,
        "size": info.size,
        "etag": info.etag,
        "contentType": info.mime_type,
        "lastModified": to_iso(info.modified_at),
        "metadata": {"original-filename": info.path, "content-type": info.mime_type},
    }
