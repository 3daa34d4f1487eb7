"""Uploads of small front ends: a form whose files go into a session as they come."""

from abc import ABC
from dataclasses import replace

from interpreter.api.multipart import PartBegin
from interpreter.api.receivers import MultipartReceiver
from interpreter.api.uploads import UploadHandler
from interpreter.frontends.dialect import DialectHandler
from interpreter.workspace import FileInfo

MOUNT = "/mnt/data"


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


class FormUploadHandler(UploadHandler[MultipartReceiver], DialectHandler, ABC):
    """``make_receiver`` says where the files go, ``do_post`` answers with `finish_upload`."""

    async def finish_upload(self) -> list[FileInfo]:
        """Put in place what was received. Raises as `MultipartReceiver.finish`."""
        return await self.receiver.finish()
