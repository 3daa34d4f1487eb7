"""The Model Context Protocol's envelope: JSON-RPC messages, versions, the two eras. Pure.

Facts from the MCP specification, revisions 2024-11-05 to 2025-11-25 (handshake era: ``initialize``,
``Mcp-Session-Id``) and 2026-07-28 (stateless era: every request says in ``params._meta`` what it needs).
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from interpreter.models import JSON

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS = ("2026-07-28",)
SUPPORTED_VERSIONS = (*MODERN_VERSIONS, *reversed(HANDSHAKE_VERSIONS))
LATEST_HANDSHAKE = HANDSHAKE_VERSIONS[-1]
UNNAMED_VERSION = "2025-03-26"
"""What a handshake-era request means that names no version."""
LINKS_SINCE = "2025-06-18"
"""The first version with structured content and resource links."""

VERSION_HEADER = "MCP-Protocol-Version"
SESSION_HEADER = "Mcp-Session-Id"
METHOD_HEADER = "Mcp-Method"
NAME_HEADER = "Mcp-Name"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
_SERVER_KEY = "io.modelcontextprotocol/serverInfo"
_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = -32000
SESSION_NOT_FOUND = -32001
RESOURCE_NOT_FOUND = -32002  # of the handshake era; later it is an invalid parameter
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    METHOD_NOT_FOUND: 404,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
}


class RpcError(Exception):
    """A message that breaks the protocol; becomes a JSON-RPC error. ``status``: HTTP's, where it is fixed."""

    def __init__(self, code: int, message: str, *, data: JSON | None = None, status: int | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status

    def as_json(self, message_id: int | str | None) -> JSON:
        """The JSON-RPC error response."""
        error: JSON = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return {"jsonrpc": "2.0", "id": message_id, "error": error}

    def http_status(self, *, modern: bool) -> int:
        """The handshake era answers what it could read with 200, the later one never."""
        if self.status is not None:
            return self.status
        return _STATUS.get(self.code, 200) if modern else 200


@dataclass(frozen=True, slots=True)
class Message:
    """A request, or with ``id`` None a notification."""

    id: int | str | None
    method: str
    params: JSON = field(default_factory=dict)

    @property
    def meta(self) -> Mapping[str, Any]:
        """``params._meta``, empty when it is missing or no object."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}

    @property
    def progress_token(self) -> int | str | None:
        """Where the client wants notices of progress, if it does."""
        token = self.meta.get("progressToken")
        return token if isinstance(token, int | str) and not isinstance(token, bool) else None


def read_message(value: Any) -> Message | None:
    """The message of a body; None for a response, which nobody here waits for. Raises RpcError."""
    if isinstance(value, list):
        raise _bad("Batches are not taken; send one message per request")
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        raise _bad('The body must be one JSON-RPC message with "jsonrpc": "2.0"')
    if "method" not in value and ("result" in value or "error" in value):
        return None
    method, params = value.get("method"), value.get("params")
    if not isinstance(method, str):
        raise _bad("`method` must be a string")
    message_id = value.get("id")
    if "id" in value and (isinstance(message_id, bool) or not isinstance(message_id, int | str)):
        raise _bad("`id` must be a string or an integer")
    if params is not None and not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "`params` must be an object.", status=400)
    return Message(message_id, method, params or {})


def _bad(problem: str) -> RpcError:
    return RpcError(INVALID_REQUEST, f"{problem}.", status=400)


def is_modern(message: Message, version: str | None) -> bool:
    """Whether a message is of the stateless era; ``version`` is its `VERSION_HEADER`."""
    if version in HANDSHAKE_VERSIONS:
        return False
    return version is not None or VERSION_KEY in message.meta


def check_handshake(message: Message, version: str | None) -> None:
    """Raise RpcError for a message of the handshake era that says two versions."""
    said = message.meta.get(VERSION_KEY)
    if said is not None and said != version:
        raise _mismatch(f"{VERSION_HEADER} header does not match the version in `params._meta`")


def check_modern(message: Message, headers: Mapping[str, str]) -> None:
    """Raise RpcError unless a message of the stateless era is whole and its headers repeat its body.

    In the order of the specification: envelope, headers, version.
    """
    version = headers.get(VERSION_HEADER)
    if message.id is None or (version not in MODERN_VERSIONS and VERSION_KEY not in message.meta):
        _check_version(version)
    if message.id is None:
        return
    missing = [key for key in (VERSION_KEY, _CAPABILITIES_KEY) if key not in message.meta]
    if missing:
        raise RpcError(INVALID_PARAMS, f"`params._meta` must have {' and '.join(missing)}.", status=400)
    if version is None or version != message.meta[VERSION_KEY]:
        raise _mismatch(f"{VERSION_HEADER} header does not match the version in `params._meta`")
    if headers.get(METHOD_HEADER) != message.method:
        raise _mismatch(f"{METHOD_HEADER} header does not match the method")
    key = _NAMED_BY.get(message.method)
    name = message.params.get(key) if key else None
    if name is not None and decode_header(headers.get(NAME_HEADER)) != name:
        raise _mismatch(f"{NAME_HEADER} header does not match `params.{key}`")
    _check_version(version)


def _mismatch(problem: str) -> RpcError:
    return RpcError(HEADER_MISMATCH, f"The {problem}.", status=400)


def _check_version(version: str | None) -> None:
    if version not in MODERN_VERSIONS:
        raise RpcError(
            UNSUPPORTED_VERSION,
            "Unsupported protocol version.",
            data={"supported": list(SUPPORTED_VERSIONS), "requested": version},
            status=400,
        )


def decode_header(value: str | None) -> str | None:
    """The text of a header that holds it as it is, or as ``=?base64?…?=`` (UTF-8); None when malformed."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def encode_header(text: str) -> str:
    """What `decode_header` reads; plain where HTTP can carry the text."""
    plain = text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?")
    return text if plain else f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def modern_headers(message: Message) -> dict[str, str]:
    """The headers that repeat a request of the stateless era."""
    headers = {VERSION_HEADER: str(message.meta.get(VERSION_KEY)), METHOD_HEADER: message.method}
    name = message.params.get(_NAMED_BY.get(message.method, ""))
    if isinstance(name, str):
        headers[NAME_HEADER] = encode_header(name)
    return headers


def negotiate(asked: Any) -> str:
    """The version of a handshake: the client's where we speak it, else our newest."""
    return asked if asked in HANDSHAKE_VERSIONS else LATEST_HANDSHAKE


def response(message: Message, result: JSON) -> JSON:
    """The JSON-RPC response with a result."""
    return {"jsonrpc": "2.0", "id": message.id, "result": result}


def progress(token: int | str, number: int, text: str) -> JSON:
    """A notice of progress; ``number`` must rise."""
    params = {"progressToken": token, "progress": number, "message": text}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def complete(result: JSON, server_info: JSON) -> JSON:
    """A result as the stateless era wants it."""
    meta = {**result.get("_meta", {}), _SERVER_KEY: server_info}
    return {**result, "resultType": "complete", "_meta": meta}
