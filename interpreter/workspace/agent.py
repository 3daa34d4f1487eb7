"""The other end of `interpreter.kernel_files`: runs inside a kernel and looks after its session's folder.

Standard library only, and old Pythons: its text is sent to the kernel, with that of ``folder``. What
happens there is up to the code of the session; nothing here is trusted by the service.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from typing import Any

MAX_ENTRIES = 100_000


def enter(session_id: str) -> None:
    """Make the session's folder and work there. A restarted kernel finds what the last one left."""
    root = _root(session_id)
    os.makedirs(root, mode=0o700, exist_ok=True)
    os.chdir(root)


def call(folder: Any, session_id: str, operation: str, arguments: list[Any]) -> str:
    """Do one step; JSON of ``{"value": …}`` or ``{"error": name, "errno": …}``."""
    try:
        return json.dumps({"value": _OPERATIONS[operation](folder, _root(session_id), *arguments)})
    except OSError as error:
        return json.dumps({"error": type(error).__name__, "errno": error.errno})


def _root(session_id: str) -> str:
    return os.path.join(os.path.realpath(tempfile.gettempdir()), f"interpreter-{session_id}")


def _page(folder: Any, root: str, limit: int, after: str | None, descending: bool) -> Any:
    with _Open(folder, root) as descriptor:
        return folder.page(
            descriptor, limit=limit, after=after, descending=descending, max_entries=MAX_ENTRIES
        )


def _scan(folder: Any, root: str, max_files: int) -> Any:
    with _Open(folder, root) as descriptor:
        return folder.scan(descriptor, max_files)


def _used(folder: Any, root: str) -> Any:
    with _Open(folder, root) as descriptor:
        return folder.used_bytes(descriptor, max_entries=MAX_ENTRIES)


def _stat(folder: Any, root: str, path: str) -> Any:
    with _Open(folder, root) as descriptor:
        return folder.stat_file(descriptor, path.split("/"))


def _read(folder: Any, root: str, path: str, offset: int, size: int) -> Any:
    """The file's entry at this moment, and bytes of it."""
    with _Open(folder, root) as descriptor:
        file = folder.open_file(descriptor, path.split("/"))
    try:
        content = os.pread(file, size, offset)
        return folder.entry_of(path, os.fstat(file)), base64.b64encode(content).decode()
    finally:
        os.close(file)


def _append(folder: Any, root: str, upload: str, offset: int, content: str) -> None:
    """Add to an upload, which lies beside the folder until it is whole."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_TRUNC if offset == 0 else 0)
    file = os.open(_part(root, upload), flags, 0o600)
    try:
        view = memoryview(base64.b64decode(content))
        while view:
            written = os.pwrite(file, view, offset)
            offset, view = offset + written, view[written:]
    finally:
        os.close(file)


def _place(folder: Any, root: str, upload: str, path: str) -> Any:
    with _Open(folder, root) as descriptor:
        folder.place(descriptor, path.split("/"), _part(root, upload))
        return folder.stat_file(descriptor, path.split("/"))


def _discard(folder: Any, root: str, upload: str) -> None:
    os.unlink(_part(root, upload))


def _delete(folder: Any, root: str, path: str) -> None:
    with _Open(folder, root) as descriptor:
        folder.delete(descriptor, path.split("/"))


def _remove(folder: Any, root: str) -> None:
    os.chdir("/")
    shutil.rmtree(root, ignore_errors=True)


def _part(root: str, upload: str) -> str:
    return f"{root}.{upload}"


class _Open:
    """The folder's descriptor for one ``with`` block."""

    def __init__(self, folder: Any, root: str) -> None:
        self._descriptor = folder.open_root(root)

    def __enter__(self) -> int:
        descriptor: int = self._descriptor
        return descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


_OPERATIONS: dict[str, Any] = {
    "page": _page,
    "scan": _scan,
    "used": _used,
    "stat": _stat,
    "read": _read,
    "append": _append,
    "place": _place,
    "discard": _discard,
    "delete": _delete,
    "remove": _remove,
}
