"""The path of a file below its session's folder, as clients name it. Pure."""

import mimetypes
from urllib.parse import quote

from interpreter.errors import InvalidRequestError
from interpreter.workspace.folder import MAX_DEPTH

MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255  # of most file systems

_MIME_TYPES = mimetypes.MimeTypes()  # the interpreter's own table: the same on every machine
for _extension, _type in {
    ".7z": "application/x-7z-compressed",
    ".arrow": "application/vnd.apache.arrow.file",
    ".avif": "image/avif",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".feather": "application/vnd.apache.arrow.file",
    ".geojson": "application/geo+json",
    ".ipynb": "application/x-ipynb+json",
    ".jsonl": "application/x-ndjson",
    ".log": "text/plain",
    ".md": "text/markdown",
    ".ndjson": "application/x-ndjson",
    ".npy": "application/x-npy",
    ".npz": "application/zip",
    ".odp": "application/vnd.oasis.opendocument.presentation",
    ".ods": "application/vnd.oasis.opendocument.spreadsheet",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".ogg": "audio/ogg",
    ".parquet": "application/vnd.apache.parquet",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".sqlite": "application/vnd.sqlite3",
    ".svg": "image/svg+xml",
    ".toml": "application/toml",
    ".webp": "image/webp",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}.items():
    _MIME_TYPES.add_type(_type, _extension)

_ENCODED = {
    "gzip": "application/gzip",
    "bzip2": "application/x-bzip2",
    "xz": "application/x-xz",
    "compress": "application/x-compress",
    "br": "application/x-brotli",
}


def parse_path(path: str) -> tuple[str, ...]:
    """The parts of a path. InvalidRequestError (``param="path"``) when it could be anything but a file below.

    UTF-8 as it is given (no normal form is forced on it); parts are separated by ``/`` only.
    """
    parts = tuple(path.split("/"))
    if not path:
        raise _invalid("is empty; name the file")
    if path.startswith("/"):
        raise _invalid("must be relative to the session's folder; remove the leading slash")
    if "\0" in path or "\\" in path:
        raise _invalid("must not have a NUL or a backslash; separate folders with `/`")
    if ".." in parts:
        raise _invalid("must not leave the session's folder; remove the `..`")
    if "" in parts or "." in parts:
        raise _invalid("must not have empty parts or `.` between its slashes")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        raise _invalid("must be UTF-8") from None
    if max(sizes) > MAX_NAME_BYTES or sum(sizes) + len(sizes) - 1 > MAX_PATH_BYTES:
        raise _invalid(f"is too long: {MAX_NAME_BYTES} bytes a part and {MAX_PATH_BYTES} in all are the most")
    if len(parts) > MAX_DEPTH:
        raise _invalid(f"is too deep: {MAX_DEPTH} parts are the most")
    return parts


def mime_type_of(path: str) -> str:
    """The MIME type that a file's name tells; ``application/octet-stream`` when it tells none."""
    guessed, encoding = _MIME_TYPES.guess_type(f"/{path}", strict=False)
    if encoding:
        return _ENCODED.get(encoding, "application/octet-stream")
    return guessed or "application/octet-stream"


def file_url(session_id: str, path: str) -> str:
    """The path of a file's content, below the service's base URL."""
    return f"/v1/sessions/{session_id}/files/{quote(path)}"


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"`path` {problem}.", param="path")
