"""Shown pictures as files of their session, for clients that show files."""

import base64
import binascii

from interpreter.api.services import Services
from interpreter.frontends.pictures import Picture, pictures_of
from interpreter.models import Run
from interpreter.sessions import Session
from interpreter.workspace import FileInfo


async def save_pictures(services: Services, session: Session, run: Run) -> list[FileInfo]:
    """The files that the shown pictures of a run were made into."""
    saved = []
    for number, picture in enumerate(pictures_of(run), 1):
        content = _content(picture)
        if content:
            path = f"figure_{run.number}_{number}.{picture.ending}"
            upload = await services.workspaces.begin_upload(session)
            try:
                await upload.write(content)
                saved.append(await upload.commit(path))
            finally:
                upload.discard()
    return saved


def _content(picture: Picture) -> bytes:
    if picture.ending == "svg":
        return picture.data.encode("utf-8", "replace")
    try:
        return base64.b64decode(picture.data)
    except (binascii.Error, ValueError):
        return b""
