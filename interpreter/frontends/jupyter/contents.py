"""The models of ``/api/contents``. Pure.

Source: "Contents API" (jupyter-server.readthedocs.io, "Data model").
"""

import base64
import binascii
import json
from collections.abc import Iterable

from interpreter.errors import InvalidRequestError
from interpreter.jsontext import has_too_many
from interpreter.models import JSON, to_iso
from interpreter.workspace import FileInfo, mime_type_of

FOLDER_MARK = ".keep"
"""An empty file that holds a folder open: files have folders, but folders alone are nothing."""

_EPOCH = "1970-01-01T00:00:00.000000Z"


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def kind_of(path: str) -> str:
    """``notebook`` or ``file``."""
    return "notebook" if path.endswith(".ipynb") else "file"


def file_model(info: FileInfo, shown_path: str, kind: str) -> JSON:
    """A file without its content. ``shown_path`` is the path of the request."""
    modified = to_iso(info.modified_at)
    return {
        "name": name_of(shown_path),
        "path": shown_path,
        "created": modified,
        "last_modified": modified,
        "content": None,
        "format": None,
        "mimetype": None if kind == "notebook" else mime_type_of(shown_path),
        "size": info.size,
        "writable": True,
        "type": kind,
    }


def folder_model(path: str) -> JSON:
    """A folder without its content."""
    return {
        "name": name_of(path),
        "path": path,
        "created": _EPOCH,
        "last_modified": _EPOCH,
        "content": None,
        "format": None,
        "mimetype": None,
        "size": None,
        "writable": True,
        "type": "directory",
    }


def children(files: Iterable[FileInfo], folder: str, shown_prefix: str) -> list[JSON] | None:
    """The entries of a folder (``""`` for the root); None when it has none, so that it is no folder."""
    prefix = f"{folder}/" if folder else ""
    found: dict[str, JSON] = {}
    is_there = not folder
    for info in files:
        if not info.path.startswith(prefix):
            continue
        is_there = True
        name, slash, _ = info.path[len(prefix) :].partition("/")
        shown = f"{shown_prefix}{name}"
        if slash:
            found.setdefault(name, folder_model(shown))
        elif name != FOLDER_MARK:
            found[name] = file_model(info, shown, kind_of(name))
    return list(found.values()) if is_there else None


def with_content(model: JSON, data: bytes, wanted_format: str | None) -> JSON:
    """The model of a file with its content: a notebook's as JSON, else text or Base64."""
    if model["type"] == "notebook":
        try:
            text = data.decode()
            if has_too_many(text):
                raise InvalidRequestError("The notebook holds too many values; get it with `type=file`.")
            return {**model, "content": json.loads(text), "format": "json"}
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError("The notebook is no valid JSON; get it with `type=file`.") from error
    if wanted_format != "base64":
        try:
            return {**model, "content": data.decode(), "format": "text"}
        except UnicodeDecodeError as error:
            if wanted_format == "text":
                raise InvalidRequestError("The file is not UTF-8; get it with `format=base64`.") from error
    return {**model, "content": base64.b64encode(data).decode(), "format": "base64"}


def content_of(fields: JSON) -> bytes:
    """The bytes that a model of a file brings. InvalidRequestError."""
    content, kind, form = fields.get("content"), fields.get("type", "file"), fields.get("format")
    if kind not in ("file", "notebook"):
        raise InvalidRequestError("`type` must be file, notebook or directory.", param="type")
    if form not in (None, "text", "base64", "json"):
        raise InvalidRequestError("`format` must be text, base64 or json.", param="format")
    if kind == "notebook" or form == "json":
        if not isinstance(content, dict):
            raise InvalidRequestError("`content` of a notebook must be an object.", param="content")
        return json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8", "replace")
    if not isinstance(content, str):
        raise InvalidRequestError("`content` must be text.", param="content")
    if form != "base64":
        return content.encode("utf-8", "replace")
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError("`content` is not Base64.", param="content") from error
