"""Open Terminal's files: for the model as text, for Open WebUI's file browser as they are."""

import json
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from interpreter.api.files import FileHandler
from interpreter.api.receivers import MultipartReceiver
from interpreter.errors import ConflictError, InvalidRequestError, UnsupportedMediaTypeError
from interpreter.frontends.dialect import copy_file, text_of
from interpreter.frontends.form_uploads import FormUploadHandler
from interpreter.frontends.languages import cell_of
from interpreter.frontends.open_terminal.base import FOLDER_MARK, TerminalHandler, operation
from interpreter.frontends.open_terminal.document import HOME
from interpreter.frontends.open_terminal.search import read_matches, read_patterns, search_script
from interpreter.jsontext import has_too_many
from interpreter.models import JSON
from interpreter.workspace import FileInfo

if TYPE_CHECKING:
    from interpreter.sessions import Session

_SEARCH_TIMEOUT = 30.0  # seconds
_FORM_PARAMETER = "directory"
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class ListHandler(TerminalHandler):
    """``/open-terminal/files/list``"""

    operations: ClassVar = {"GET": operation("list_files", "List a folder")}

    async def do_get(self) -> None:
        folder = self.place(self.query("directory", "."))
        found = await self.below(await self.session(), folder)
        self.reply({"dir": self.shown(folder), "writable": True, "entries": _entries(found, folder)})


class ReadHandler(TerminalHandler):
    """``/open-terminal/files/read``"""

    operations: ClassVar = {"GET": operation("read_file", "Read a file")}

    async def do_get(self) -> None:
        place = self.place(self.query("path"))
        info, content = await self.load(await self.session(), place, self.settings_.max_mime_bytes)
        if info.mime_type.startswith("image/") and info.mime_type != "image/svg+xml":
            self.set_header("Content-Type", info.mime_type)
            self.finish(content)
            return
        lines = _text(content, info).splitlines(keepends=True)
        start, end = self._line("start_line", 1), self._line("end_line", len(lines))
        self.reply(
            {
                "path": self.shown(place),
                "total_lines": len(lines),
                "content": "".join(lines[start - 1 : end]),
            }
        )

    def _line(self, name: str, default: int) -> int:
        text = self.query(name, str(default))
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise InvalidRequestError(f"`{name}` must be a whole number from 1.", param=name)
        return max(1, int(text))


class DisplayHandler(TerminalHandler):
    """``/open-terminal/files/display``"""

    operations: ClassVar = {"GET": operation("display_file", "Show a file to the user")}

    async def do_get(self) -> None:
        place = self.place(self.query("path"))
        self.reply({"path": self.shown(place), "exists": await self.is_file(await self.session(), place)})


class WriteHandler(TerminalHandler):
    """``/open-terminal/files/write``"""

    operations: ClassVar = {"POST": operation("write_file", "Write a file")}

    async def do_post(self) -> None:
        body = self.body_object()
        place, content = self.place(text_of(body, "path")), text_of(body, "content")
        info = await self.save(await self.session(), place, content.encode("utf-8", "replace"))
        self.reply({"path": self.shown(place), "size": info.size})


class ReplaceHandler(TerminalHandler):
    """``/open-terminal/files/replace``"""

    operations: ClassVar = {"POST": operation("replace_file_content", "Replace text in a file")}

    async def do_post(self) -> None:
        body = self.body_object()
        place, changes = self.place(text_of(body, "path")), body.get("replacements")
        if not isinstance(changes, list) or not all(isinstance(change, dict) for change in changes):
            raise InvalidRequestError("`replacements` must be a list of objects.", param="replacements")
        session = await self.session()
        info, content = await self.load(session, place, self.settings_.max_mime_bytes)
        text = _text(content, info)
        for change in changes:
            text = replaced(text, change)
        info = await self.save(session, place, text.encode("utf-8", "replace"))
        self.reply({"path": self.shown(place), "size": info.size})


class SearchHandler(TerminalHandler):
    """``/open-terminal/files/grep`` and ``/open-terminal/files/glob``"""

    operations: ClassVar = {"GET": operation("search", "Search through files")}

    async def do_get(self) -> None:
        place = self.place(self.query("path", "."))
        asked = self._grep() if self.request.path.rstrip("/").endswith("grep") else self._glob()
        limit = self.query("max_results", "50")
        if not (limit.isascii() and limit.isdecimal() and len(limit) < 10 and 1 <= int(limit) <= 500):
            raise InvalidRequestError("`max_results` must be 1 to 500.", param="max_results")
        script = search_script({**asked, "path": place, "max_results": int(limit)})
        run = await self.execute(await self.session(), cell_of("bash", script, ()), _SEARCH_TIMEOUT)
        matches, truncated = read_matches(run)
        for match in matches:
            if "file" in match:
                match["file"] = self.shown(match["file"])
        shown = {name: asked[name] for name in ("query", "pattern") if name in asked}
        self.reply({**shown, "path": self.shown(place), "matches": matches, "truncated": truncated})

    def _grep(self) -> JSON:
        return {
            "query": self.query("query"),
            "regex": self._flag("regex", True),
            "case_insensitive": self._flag("case_insensitive", False),
            "include": read_patterns(self.get_query_arguments("include")),
            "match_per_line": self._flag("match_per_line", True),
        }

    def _glob(self) -> JSON:
        return {
            "pattern": self.query("pattern"),
            "exclude": read_patterns(self.get_query_arguments("exclude")),
            "type": self.query("type", "any"),
        }

    def _flag(self, name: str, default: bool) -> bool:
        return _FLAGS.get(self.query(name, str(default)).lower(), default)


# -- for the file browser -----------------------------------------------------------------------


class CwdHandler(TerminalHandler):
    """``/open-terminal/files/cwd``"""

    operations: ClassVar = {
        "GET": operation("get_cwd", "The working folder"),
        "POST": operation("set_cwd", "Change the working folder"),
    }

    async def do_get(self) -> None:
        home = self.shown("")
        root = {"path": home, "label": "Files"}
        self.reply({"cwd": self.shown(self.place(".")), "home": home, "root": root})

    async def do_post(self) -> None:
        folder = self.place(text_of(self.body_object(), "path"))
        await self.below(await self.session(), folder)
        self.terminals.enter(self.chat, folder)
        self.reply({"cwd": self.shown(folder)})


class ViewHandler(TerminalHandler, FileHandler):
    """``/open-terminal/files/view`` and ``/open-terminal/files/serve/{path}``"""

    operations: ClassVar = {"GET": operation("view_file", "A file's content", kind="*/*")}

    async def do_get(self, path: str = "") -> None:  # type: ignore[override]
        place = self.place(f"/{path}" if path else self.query("path"))
        file = await self.files_of(await self.session()).open(place)
        try:
            await self._send(file)
        finally:
            await file.aclose()


class MkdirHandler(TerminalHandler):
    """``/open-terminal/files/mkdir``"""

    operations: ClassVar = {"POST": operation("mkdir", "Make a folder")}

    async def do_post(self) -> None:
        place = self.place(text_of(self.body_object(), "path"))
        await self.save(await self.session(), f"{place}/{FOLDER_MARK}".lstrip("/"), b"")
        self.reply({"path": self.shown(place)})


class DeleteHandler(TerminalHandler):
    """``/open-terminal/files/delete``"""

    operations: ClassVar = {"DELETE": operation("delete", "Delete a file or a folder")}

    async def do_delete(self) -> None:
        place, session = self.place(self.query("path")), await self.session()
        if not place:
            raise InvalidRequestError(f"{HOME} itself can't be deleted; name what is in it.", param="path")
        is_folder = not await self.is_file(session, place)
        if is_folder:
            await _clear(self, session, place)
        else:
            await self.files_of(session).delete(place)
        self.reply({"path": self.shown(place), "type": "directory" if is_folder else "file"})


class MoveHandler(TerminalHandler):
    """``/open-terminal/files/move``"""

    operations: ClassVar = {"POST": operation("move", "Move a file or a folder")}

    async def do_post(self) -> None:
        body = self.body_object()
        source, target = self.place(text_of(body, "source")), self.place(text_of(body, "destination"))
        session = await self.session()
        if await self.is_file(session, target):
            raise ConflictError("There is a file with that name already.", param="destination")
        if await self.is_file(session, source):
            pairs = [(source, target)]
        else:
            found = await self.below(session, source)
            pairs = [(info.path, f"{target}{info.path[len(source) :]}") for info in found]
        files = self.files_of(session)
        for old, new in pairs:
            begin = partial(self.services.workspaces.begin_upload, session)
            await copy_file(await files.open(old), begin, new)
            await files.delete(old)
        self.reply({"source": self.shown(source), "destination": self.shown(target)})


class FileUploadHandler(FormUploadHandler, TerminalHandler):
    """``/open-terminal/files/upload``"""

    operations: ClassVar = {"POST": operation("upload_file", "Upload a file")}

    async def make_receiver(self) -> MultipartReceiver:
        folder = self.place(self.query(_FORM_PARAMETER, "."))
        begin = partial(self.services.workspaces.begin_upload, await self.session())
        receiver = _FolderReceiver(begin, self.content_type)
        receiver.folder = f"{folder}/" if folder else ""
        return receiver

    async def do_post(self) -> None:
        info = (await self.finish_upload())[0]
        self.reply({"path": self.shown(info.path), "size": info.size})


class _FolderReceiver(MultipartReceiver):
    """Puts files into a folder, whatever the form says."""

    folder = ""

    def _target_paths(self) -> list[str]:
        self._path = self.folder
        return super()._target_paths()


async def _clear(handler: TerminalHandler, session: "Session", folder: str) -> None:
    """Delete a folder with the files in it; what is hidden in there keeps it."""
    files = handler.files_of(session)
    folders = {folder} - {""}
    for info in await handler.below(session, folder):
        await files.delete(info.path)
        parts = info.path.split("/")
        folders |= {"/".join(parts[:end]) for end in range(1, len(parts))}
    for path in sorted(folders, key=len, reverse=True):
        if path.startswith(folder):
            await files.delete(path)


def replaced(text: str, change: JSON) -> str:
    """The text after a replacement. Raises InvalidRequestError."""
    target, replacement = text_of(change, "target"), text_of(change, "replacement")
    lines = text.splitlines(keepends=True)
    start, end = (_line_of(change, "start_line", 1), _line_of(change, "end_line", len(lines)))
    region = "".join(lines[start - 1 : end])
    count = region.count(target) if target else 0
    if count == 0:
        raise InvalidRequestError(f"The text was not found: {target[:100]!r}.", param="target")
    if count > 1 and change.get("allow_multiple") is not True:
        raise InvalidRequestError(
            f"The text is there {count} times; make it longer, or set allow_multiple.", param="target"
        )
    return "".join(lines[: start - 1]) + region.replace(target, replacement) + "".join(lines[end:])


def _line_of(change: JSON, name: str, default: int) -> int:
    value: Any = change.get(name)
    return max(1, value) if isinstance(value, int) and not isinstance(value, bool) else default


def _text(content: bytes, info: FileInfo) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UnsupportedMediaTypeError(
            f"The file is no text ({info.mime_type}, {info.size} bytes); read it with execute_python."
        ) from None


def _entries(files: list[FileInfo], folder: str) -> list[JSON]:
    """What a folder holds; folders come first."""
    prefix = f"{folder}/" if folder else ""
    folders: dict[str, JSON] = {}
    found: list[JSON] = []
    for info in files:
        name, inner, _ = info.path[len(prefix) :].partition("/")
        modified = info.modified_at.timestamp()
        if inner:
            folders[name] = {"name": name, "type": "directory", "size": 0, "modified": modified}
        elif name != FOLDER_MARK:
            found.append({"name": name, "type": "file", "size": info.size, "modified": modified})
    return [*folders.values(), *found]


def parse_notebook(content: bytes) -> JSON:
    """The notebook of a file. Raises InvalidRequestError."""
    try:
        text = content.decode()
        notebook = None if has_too_many(text) else json.loads(text)
    except (ValueError, RecursionError):
        notebook = None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise InvalidRequestError("The file is no notebook.", param="path")
    return notebook
