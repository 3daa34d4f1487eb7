"""The bodies of LibreChat's requests. Pure.

Keys that are not known are ignored: older versions put their API key into the body, newer ones
parameters of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interpreter.api.jsonbody import has_surrogate
from interpreter.errors import InvalidRequestError
from interpreter.frontends.storages import Owner

MAX_FILES = 1000
_MIN_TIMEOUT = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file that the code is to find below ``/mnt/data`` under ``name``."""

    storage_id: str
    id: str
    name: str
    owner: Owner


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """What ``/exec`` and the first ``/exec/programmatic`` ask for. ``timeout`` in seconds."""

    lang: str
    code: str
    args: tuple[str, ...]
    files: tuple[FileRef, ...]
    session_id: str | None
    hint: str | None
    timeout: float | None


def read_exec(body: Any, *, lang: str | None = None) -> ExecRequest:
    """The request; ``lang`` is what is run when the body names none. Raises InvalidRequestError."""
    body = as_object(body)
    return ExecRequest(
        lang=_text(body, "lang", lang),
        code=_text(body, "code"),
        args=_texts(body, "args"),
        files=_files(body.get("files")),
        session_id=_optional(body, "session_id"),
        hint=_optional(body, "runtime_session_hint"),
        timeout=_seconds(body.get("timeout")),
    )


def as_object(body: Any) -> Mapping[str, Any]:
    """The body, which must be a JSON object. Raises InvalidRequestError."""
    if not isinstance(body, dict):
        raise InvalidRequestError("The body must be a JSON object.")
    return body


def read_owner(fields: Mapping[str, Any]) -> Owner:
    """Who owns a storage session, from ``kind``, ``id`` and ``version``; a user when nothing is said."""
    kind, owner_id, version = (_plain(fields.get(name)) for name in ("kind", "id", "version"))
    return Owner(kind or "user", owner_id, version)


def _files(value: Any) -> tuple[FileRef, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_FILES:
        raise InvalidRequestError(f"`files` must be a list of at most {MAX_FILES} files.", param="files")
    return tuple(_file(item) for item in value)


def _file(value: Any) -> FileRef:
    item = value if isinstance(value, dict) else {}
    storage_id = _plain(item.get("storage_session_id")) or _plain(item.get("session_id"))
    file_id, name = _plain(item.get("id")), _plain(item.get("name"))
    if not (storage_id and file_id and name):
        raise InvalidRequestError(
            "Each of `files` needs `id`, `name` and `storage_session_id` (or `session_id`).", param="files"
        )
    owner = Owner(
        _plain(item.get("kind")) or "user", _plain(item.get("resource_id")), _plain(item.get("version"))
    )
    return FileRef(storage_id, file_id, name, owner)


def _plain(value: Any) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name)
    value = default if value is None else value
    if not isinstance(value, str):
        raise InvalidRequestError(f"`{name}` must be text.", param=name)
    return value


def _optional(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    return value if isinstance(value, str) and value else None


def _texts(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = body.get(name)
    if value is None:
        return ()
    value = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | int | float) for item in value):
        raise InvalidRequestError(f"`{name}` must be a list of texts.", param=name)
    texts = tuple(str(item) for item in value)
    if "\0" in (joined := "".join(texts)) or has_surrogate(joined):
        raise InvalidRequestError(f"`{name}` has a NUL or half of a surrogate pair.", param=name)
    return texts


def _seconds(milliseconds: Any) -> float | None:
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return None
    return max(_MIN_TIMEOUT, milliseconds / 1000)
