"""The frames of ``/api/kernels/{id}/channels``, seen from the server's side. Pure.

Sources: "WebSocket kernel wire protocols" (jupyter-server.readthedocs.io): legacy JSON text, which
clients without a subprotocol speak, and ``v1.kernel.websocket.jupyter.org``. The legacy form repeats
``msg_id`` and ``msg_type`` beside the header, and some clients read them only there.
"""

import itertools
import json
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from interpreter.api.jsonbody import dump_json
from interpreter.jsontext import count_values
from interpreter.messages import PROTOCOL_VERSION, BadMessageError
from interpreter.models import JSON, to_iso

_CONTROL = frozenset({"interrupt_request", "shutdown_request", "debug_request"})
_SERVER_SESSION = uuid.uuid4().hex
_MAX_VALUES = 100_000
_MAX_FIELDS = 100  # of a header, those in it included, or of a content
_MAX_HEADER_BYTES = 64 * 1024  # it is repeated in each answer; no client's has a thousand


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sent. ``header`` is repeated in all answers as it came, odd dates too; ``size`` is the frame's.

    Of ``content`` only plain values are there, as nothing else is read: so it takes about the room of its frame.
    """

    channel: str
    msg_type: str
    header: Mapping[str, Any]
    content: Mapping[str, Any]
    size: int = 0


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to a client; ``parent`` is the header of the request that it belongs to."""

    channel: str
    msg_type: str
    content: JSON
    parent: Mapping[str, Any]
    metadata: JSON = field(default_factory=dict)


def decode(frame: bytes | str, *, v1: bool) -> Request:
    """The request in a frame. BadMessageError for anything that is none."""
    try:
        if isinstance(frame, str):
            data = _load(frame)
        elif v1:
            data = _read_v1(frame)
        else:
            data = _read_legacy_binary(frame)
        return _request(data, len(frame))
    except BadMessageError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise BadMessageError("not a Jupyter message") from error


def _request(data: Mapping[str, Any], size: int) -> Request:
    header, content = data["header"], data.get("content")
    msg_type = header["msg_type"]
    if not isinstance(msg_type, str) or not isinstance(header, dict):
        raise BadMessageError("no message type")
    is_plain = len(_plain(header)) == len(header)
    if size > _MAX_HEADER_BYTES or not is_plain:
        _check_header(dump_json(header).decode())
    channel = data.get("channel") or ("control" if msg_type in _CONTROL else "shell")
    return Request(str(channel), msg_type, header, _plain(content) if isinstance(content, dict) else {}, size)


def _check_header(header: str) -> None:
    if len(header) > _MAX_HEADER_BYTES or count_values(header) > _MAX_FIELDS:
        raise BadMessageError("the header is too large")


def _plain(fields: Mapping[str, Any]) -> JSON:
    """The fields that are texts, numbers or the like. BadMessageError for more than any message has."""
    if len(fields) > _MAX_FIELDS:
        raise BadMessageError("too many fields")
    return {name: value for name, value in fields.items() if not isinstance(value, dict | list)}


def _read_v1(frame: bytes) -> JSON:
    (count,) = struct.unpack_from("<Q", frame)
    if not 6 <= count <= 4096:
        raise BadMessageError("wrong number of parts")
    offsets = struct.unpack_from(f"<{count}Q", frame, 8)
    parts = [frame[start:end] for start, end in itertools.pairwise(offsets)]
    names = ("header", "parent_header", "metadata", "content")
    return {"channel": parts[0].decode(), **dict(zip(names, map(_load, parts[1:5]), strict=True))}


def _read_legacy_binary(frame: bytes) -> Any:
    """With buffers: their number and offsets as u32, big endian, then the JSON. Or JSON as it is."""
    if frame[:1] == b"{":
        return _load(frame)
    count, start = struct.unpack_from("!2I", frame)
    (end,) = struct.unpack_from("!I", frame, 8) if count > 1 else (len(frame),)
    return _load(frame[start:end])


def _load(text: str | bytes) -> Any:
    """The value of JSON. BadMessageError for so many values that others would wait while it is parsed."""
    text = text if isinstance(text, str) else text.decode()
    if count_values(text) > _MAX_VALUES:
        raise BadMessageError("too many values")
    return json.loads(text)


def encode(message: Outgoing, *, v1: bool) -> bytes:
    """The frame: to be sent as binary for v1, as text otherwise."""
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": message.msg_type,
        "username": "interpreter",
        "session": _SERVER_SESSION,
        "date": to_iso(datetime.now(UTC)),
        "version": PROTOCOL_VERSION,
    }
    if not v1:
        return dump_json(
            {
                "header": header,
                "msg_id": header["msg_id"],
                "msg_type": message.msg_type,
                "parent_header": message.parent,
                "metadata": message.metadata,
                "content": message.content,
                "buffers": [],
                "channel": message.channel,
            }
        )
    values = (header, message.parent, message.metadata, message.content)
    parts = [message.channel.encode(), *map(dump_json, values)]
    first = 8 * (len(parts) + 2)
    offsets = [first, *(first + end for end in itertools.accumulate(map(len, parts)))]
    return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(parts)
