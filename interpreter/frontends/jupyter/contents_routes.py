"""``/api/contents``: the files of a session, as Jupyter's clients ask for them.

A path may begin with a kernel's id, which names its session. Any other path is one of the session
that the token uses: its own one, the one that has the path's folder, or the newest.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote

from interpreter.api.operations import Access
from interpreter.api.receivers import RawReceiver
from interpreter.errors import (
    ConflictError,
    InterpreterError,
    InvalidRequestError,
    NotFoundError,
    TooLargeError,
)
from interpreter.frontends.jupyter.base import JupyterHandler, operation, text_field
from interpreter.frontends.jupyter.contents import (
    FOLDER_MARK,
    children,
    content_of,
    file_model,
    folder_model,
    kind_of,
    with_content,
)
from interpreter.frontends.jupyter.ids import session_id_of
from interpreter.models import JSON
from interpreter.sessions import Session
from interpreter.workspace import FileInfo, Files

MAX_READ_BYTES = 64 * 1024**2  # of one file, in a JSON body
MAX_LISTED = 20_000
MAX_COMPARED = 4  # parts of a path
_JSON_SIZE = 2  # times that of the file
_PAGE = 1000
_CHUNK = 1024**2
_NO_KERNEL = "There is no kernel whose files these could be; start one with POST /api/kernels."
_NO_FILE = "There is no such file or folder; list them with GET /api/contents."


class Place:
    """A session's files, and what a request's path means there."""

    def __init__(self, session: Session, prefix: str, path: str) -> None:
        self.session = session
        self.prefix = prefix
        self.path = path

    def shown(self, path: str) -> str:
        """A path of the session as the client writes it."""
        return f"{self.prefix}{path}"


class ContentsHandler(JupyterHandler):
    """``/api/contents/{path}``"""

    operations: ClassVar = {
        "GET": operation("get contents"),
        "PUT": operation("save contents", Access.RUN),
        "POST": operation("create contents", Access.RUN),
        "PATCH": operation("rename contents", Access.RUN),
        "DELETE": operation("delete contents", Access.RUN),
    }

    async def do_get(self, path: str = "") -> None:
        place = await self._find_place(path)
        if place is None:
            if path.strip("/"):
                raise NotFoundError(_NO_KERNEL)
            self.reply({**folder_model(""), "format": "json", "content": []})
            return
        wants_content = self.get_query_argument("content", "1") != "0"
        kind = self.get_query_argument("type", "")
        files = self._files(place)
        info = await self._find_file(files, place.path) if kind != "directory" else None
        if info is not None:
            size = _JSON_SIZE * info.size if wants_content and info.size <= MAX_READ_BYTES else 0
            async with self.room(size):  # before it is read: of many none would be counted yet
                self.reply(await self._read(files, info, place, kind, wants_content))
            return
        if kind in ("file", "notebook"):
            raise NotFoundError(_NO_FILE)
        entries = await self._list(files, place)
        if entries is None:
            raise NotFoundError(_NO_FILE)
        model = folder_model(place.shown(place.path).rstrip("/"))
        self.reply({**model, "format": "json", "content": entries} if wants_content else model)

    async def do_put(self, path: str = "") -> None:
        fields = self.read_fields()
        place = await self._make_place(path)
        if fields.get("type") == "directory":
            entries = await self._list(self._files(place), place) if place.path else []
            if entries is None:
                await self._write(place.session, f"{place.path}/{FOLDER_MARK}", b"")
            self.reply(folder_model(place.shown(place.path)), 200 if entries is not None else 201)
            return
        if fields.get("chunk") is not None:
            raise InvalidRequestError("Send the whole file; chunks are not taken.", param="chunk")
        known = await self._find_file(self._files(place), place.path)
        info = await self._write(place.session, place.path, content_of(fields))
        kind = "notebook" if fields.get("type") == "notebook" else kind_of(place.path)
        self._reply_made(file_model(info, place.shown(place.path), kind), 200 if known else 201)

    async def do_post(self, path: str = "") -> None:
        fields = self.read_fields()
        place = await self._make_place(path)
        folder = f"{place.path}/" if place.path else ""
        if source := text_field(fields, "copy_from"):
            origin = await self._find_place(source)
            if origin is None:
                raise NotFoundError(_NO_KERNEL)
            stem, _, extension = origin.path.rpartition("/")[2].rpartition(".")
            stem, ending = (stem, f".{extension}") if stem else (extension, "")
            target = await self._free_path(place, lambda n: f"{folder}{stem}-Copy{n}{ending}")
            info = await self._copy(origin, Place(place.session, place.prefix, target))
        elif fields.get("type") == "directory":
            target = await self._free_path(place, lambda n: f"{folder}Untitled Folder{n or ''}")
            await self._write(place.session, f"{target}/{FOLDER_MARK}", b"")
            self._reply_made(folder_model(place.shown(target)), 201)
            return
        else:
            is_notebook = fields.get("type") == "notebook"
            stem = "Untitled" if is_notebook else "untitled"
            ending = ".ipynb" if is_notebook else text_field(fields, "ext") or ".txt"
            target = await self._free_path(place, lambda n: f"{folder}{stem}{n or ''}{ending}")
            empty: JSON = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
            content = {"type": "notebook", "content": empty} if is_notebook else {"content": ""}
            info = await self._write(place.session, target, content_of(content))
        self._reply_made(file_model(info, place.shown(target), kind_of(target)), 201)

    async def do_patch(self, path: str = "") -> None:
        target_path = text_field(self.read_fields(), "path")
        if target_path is None:
            raise InvalidRequestError("`path` is missing; name the new path.", param="path")
        origin, target = await self._make_place(path), await self._make_place(target_path)
        if await self._find_file(self._files(target), target.path) is not None:
            raise ConflictError("There is a file with the new path already; delete it first.")
        info = await self._copy(origin, target)
        await self._files(origin).delete(origin.path)
        self._reply_made(file_model(info, target.shown(target.path), kind_of(target.path)), 200)

    async def do_delete(self, path: str = "") -> None:
        place = await self._find_place(path)
        if place is None or not place.path:
            raise NotFoundError(_NO_FILE)
        files = self._files(place)
        if await self._list(files, place) == []:
            mark = f"{place.path}/{FOLDER_MARK}"
            if await self._find_file(files, mark) is not None:
                await files.delete(mark)
        await files.delete(place.path)
        self.set_status(204)

    # Where

    async def _find_place(self, path: str) -> Place | None:
        """Whose files the path means; None when the token has no kernel yet."""
        path = path.strip("/")
        first, _, rest = path.partition("/")
        try:
            session = self.services.sessions.get(self.principal, session_id_of(first))
        except NotFoundError:
            own = self.front.own_sessions(self.token)
            shared = [session for session in own if self.front.is_shared(session)]
            holder = await self._holder(shared[:1] if self.token.options.keep_state else own, path)
            return Place(holder, "", path) if holder is not None else None
        return Place(session, f"{first}/", rest)

    async def _holder(self, sessions: Sequence[Session], path: str) -> Session | None:
        """The session that has the longest beginning of the path; the newest where that decides nothing.

        So a client that keeps a folder for each of its projects (``workspace/7``) need not say whose it is.
        """
        parts = path.split("/")
        for length in range(min(len(parts), MAX_COMPARED), 1, -1) if len(sessions) > 1 else ():
            for session in sessions:
                if await self._has(self.services.workspaces.files(session), "/".join(parts[:length])):
                    return session
        return sessions[0] if sessions else None

    async def _make_place(self, path: str) -> Place:
        place = await self._find_place(path)
        if place is not None:
            return place
        if not self.token.options.keep_state:
            raise NotFoundError(_NO_KERNEL)
        return Place(await self.front.own_chat(self.token), "", path.strip("/"))

    def _files(self, place: Place) -> Files:
        self.services.sessions.touch(place.session)
        return self.services.workspaces.files(place.session)

    # What

    async def _find_file(self, files: Files, path: str) -> FileInfo | None:
        if not path:
            return None
        try:
            return await files.find(path)
        except InvalidRequestError as error:
            if isinstance(error.__cause__, IsADirectoryError):
                return None
            raise

    async def _has(self, files: Files, path: str) -> bool:
        """Whether there is a file or a folder with that path."""
        try:
            return await files.find(path) is not None
        except InterpreterError as error:
            return isinstance(error.__cause__, IsADirectoryError)

    async def _list(self, files: Files, place: Place) -> list[JSON] | None:
        """The entries of a folder, None when it is none."""
        found: list[FileInfo] = []
        after: str | None = f"{place.path}/" if place.path else None
        while True:
            listing = await files.list(limit=_PAGE, after=after)
            found += listing.files
            if not listing.has_more or len(found) >= MAX_LISTED:
                break
            after = listing.files[-1].path
            if place.path and after > f"{place.path}0":  # "0" follows "/"
                break
        shown = place.shown(f"{place.path}/" if place.path else "")
        return children(found, place.path, shown)

    async def _read(self, files: Files, info: FileInfo, place: Place, kind: str, content: bool) -> JSON:
        model = file_model(info, place.shown(place.path), kind or kind_of(place.path))
        if not content:
            return model
        if info.size > MAX_READ_BYTES:
            raise TooLargeError(
                f"The file is over {MAX_READ_BYTES} bytes; get it with GET /v1/sessions/{{id}}/files/{{path}}."
            )
        file = await files.open(place.path)
        try:
            data = await file.read(0, info.size)
        finally:
            await file.aclose()
        # In a thread: what code has written may take long.
        return await asyncio.to_thread(with_content, model, data, self.get_query_argument("format", None))

    async def _write(self, session: Session, path: str, data: bytes) -> FileInfo:
        receiver = RawReceiver(partial(self.services.workspaces.begin_upload, session), path)
        try:
            for start in range(0, len(data), _CHUNK):
                await receiver.feed(data[start : start + _CHUNK])
            (info,) = await receiver.finish()
        finally:
            receiver.discard()
        return info

    async def _copy(self, origin: Place, target: Place) -> FileInfo:
        receiver = RawReceiver(partial(self.services.workspaces.begin_upload, target.session), target.path)
        file = await self._files(origin).open(origin.path)
        try:
            position = 0
            while chunk := await file.read(position, _CHUNK):
                await receiver.feed(chunk)
                position += len(chunk)
            (info,) = await receiver.finish()
        finally:
            await file.aclose()
            receiver.discard()
        return info

    async def _free_path(self, place: Place, path_of: Callable[[int], str]) -> str:
        """The first path of that form that is free."""
        files = self._files(place)
        for number in range(1000):
            path = path_of(number)
            is_folder = await self._list(files, Place(place.session, "", path)) is not None
            if not is_folder and await self._find_file(files, path) is None:
                return path
        raise ConflictError("There are too many files of that name; name this one yourself.")

    def _reply_made(self, model: dict[str, Any], status: int) -> None:
        self.set_header("Location", f"/api/contents/{quote(model['path'])}")
        self.reply(model, status)


class CheckpointsHandler(JupyterHandler):
    """``/api/contents/{path}/checkpoints``: there are none; the record has every run."""

    operations: ClassVar = {"GET": operation("list checkpoints")}

    async def do_get(self, path: str) -> None:
        self.reply([])
