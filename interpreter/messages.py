"""Jupyter messages: build requests, read and write the websocket's frames. Pure.

Sources: the messaging spec (jupyter-client.readthedocs.io, "Messaging in Jupyter") and, for the
frames, Jupyter Server's "WebSocket kernel wire protocols" (``v1.kernel.websocket.jupyter.org`` and
the legacy JSON form that a server without subprotocols speaks).
"""

import itertools
import json
import secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from interpreter import smalljson
from interpreter.jsontext import load, load_utf8

_SMALL_HEADER = 1024  # bytes
V1_SUBPROTOCOL = "v1.kernel.websocket.jupyter.org"
PROTOCOL_VERSION = "5.4"
DROPPED_BYTES = "interpreter_dropped_bytes"
"""In the metadata of a message: how many bytes of it are missing. Our gateway writes it, and `decode`."""
DROPPED_AT = "interpreter_dropped_at"
"""In that of a stream: before which character of its text they are missing."""
PART_CHARS = 1 << 17
"""Of a stream's text, which is taken in parts of so many."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message from a kernel. ``parent_id`` is empty when the parent header is; ``size``: of its frame."""

    channel: str
    msg_type: str
    msg_id: str
    parent_id: str
    content: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    buffers: Sequence[bytes | memoryview] = ()
    size: int = 0

    @property
    def execution_state(self) -> str | None:
        """The state that an iopub ``status`` message tells, None for every other message."""
        if self.msg_type != "status":
            return None
        state = self.content.get("execution_state")
        return state if isinstance(state, str) else None


class BadMessageError(ValueError):
    """A frame that is not a Jupyter message."""


def _header(msg_type: str, msg_id: str, client_id: str) -> dict[str, str]:
    return {
        "msg_id": msg_id,
        "msg_type": msg_type,
        "username": "interpreter",
        "session": client_id,
        "date": datetime.now(UTC).isoformat(),
        "version": PROTOCOL_VERSION,
    }


def new_msg_id() -> str:
    """A message id that no other client uses."""
    return secrets.token_hex(16)


def execute_request(code: str) -> tuple[str, dict[str, Any]]:
    """Type and content of an execute request for a cell: history kept, stdin refused.

    ``stop_on_error`` is off: runs are queued here, not in the kernel, and with it on a kernel may
    abort the next request that arrives right after an error.
    """
    return "execute_request", {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,
    }


def silent_request(code: str, expressions: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """An execute request that leaves no trace in history; the reply holds the expressions' values."""
    return "execute_request", {
        "code": code,
        "silent": True,
        "store_history": False,
        "user_expressions": dict(expressions),
        "allow_stdin": False,
        "stop_on_error": False,
    }


def kernel_info_request() -> tuple[str, dict[str, Any]]:
    """Type and content of the request that any idle kernel answers."""
    return "kernel_info_request", {}


def encode(
    channel: str, msg_type: str, content: Mapping[str, Any], *, msg_id: str, client_id: str, v1: bool
) -> bytes | str:
    """The websocket frame of a request: v1 binary, or legacy JSON text."""
    header = _header(msg_type, msg_id, client_id)
    if not v1:
        return json.dumps(
            {
                "channel": channel,
                "header": header,
                "parent_header": {},
                "metadata": {},
                "content": content,
                "buffers": [],
            }
        )
    parts = [channel.encode(), smalljson.write(header), b"{}", b"{}", json.dumps(content).encode()]
    return _join(parts)


def _join(parts: Sequence[bytes]) -> bytes:
    """v1 framing: number of offsets, the offsets (u64, little endian), then the parts."""
    count = len(parts) + 1
    offsets = [8 * (count + 1)]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return struct.pack(f"<{count + 1}Q", count, *offsets) + b"".join(parts)


def decode(frame: bytes | memoryview | str, *, v1: bool) -> Message:
    """The message of a websocket frame. What holds too many values is left out; see `jsontext.load`.

    Raises BadMessageError for anything that is not one.
    """
    try:
        if isinstance(frame, str):
            return _read_whole(frame)
        return _decode_v1(frame) if v1 else _decode_legacy_binary(frame)
    except BadMessageError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise BadMessageError("not a Jupyter message") from error


def divided(message: Message) -> Iterator[Message]:
    """The message, or a large text of a stream in parts that follow each other, each a message like a kernel's.

    To fold a text takes as long as it is, so that others can go on between its parts.
    """
    text = message.content.get("text") if message.msg_type == "stream" else None
    if isinstance(text, list):
        text = "".join(line for line in text if isinstance(line, str))
    if not isinstance(text, str) or len(text) <= PART_CHARS:
        yield message
        return
    gap, noted = message.metadata.get(DROPPED_AT), message.metadata
    place = 0
    if type(gap) is int and gap >= 0:
        place, noted = min(gap, len(text)), {**noted, DROPPED_AT: 0}
    starts = [*range(0, place, PART_CHARS), *range(place, max(len(text), place + 1), PART_CHARS)]
    for start, end in itertools.pairwise([*starts, len(text)]):
        yield replace(
            message,
            msg_id="" if start else message.msg_id,  # they are one message for who counts these
            size=0 if start else message.size,
            content={**message.content, "text": text[start:end]},
            metadata=noted if start == place else {},
        )


def _decode_v1(frame: bytes | memoryview) -> Message:
    (count,) = struct.unpack_from("<Q", frame)
    if not 6 <= count <= 4096:
        raise BadMessageError("wrong number of parts")
    offsets = struct.unpack_from(f"<{count}Q", frame, 8)
    view = memoryview(frame)
    parts = [view[start:end] for start, end in itertools.pairwise(offsets)]
    # As text: of bytes, the JSON module would first guess the encoding. Jupyter's own packers write what is
    # not UTF-8 for text that is no Unicode; the rest of such a message still counts.
    data: dict[str, Any] = {"channel": str(parts[0], "utf-8")}
    lost = 0
    for name, part in zip(("header", "parent_header", "metadata", "content"), parts[1:5], strict=True):
        known = name == "parent_header" and len(part) <= _SMALL_HEADER
        data[name], left_out = _header_of(bytes(part)) if known else _part(part)
        lost += left_out
    return _from_dict(data, parts[5:], lost, len(frame))


def _part(part: bytes | memoryview) -> tuple[Any, int]:
    return load_utf8(part, errors="replace") if part != b"{}" else ({}, 0)


@lru_cache(maxsize=256)  # all messages of a run have the same parent; what is given is only read
def _header_of(part: bytes) -> tuple[Any, int]:
    return _part(part)


def _read_whole(text: str, buffers: Sequence[memoryview] = ()) -> Message:
    """The message in a legacy frame's JSON."""
    data, lost = load(text, bundle=("content", "data"))
    return _from_dict(data, buffers, lost, len(text) + sum(map(len, buffers)))


def _decode_legacy_binary(frame: bytes | memoryview) -> Message:
    """Legacy frame with buffers: number of parts and offsets as u32, big endian; part 0 is the JSON."""
    (count,) = struct.unpack_from("!I", frame)
    offsets = [*struct.unpack_from(f"!{count}I", frame, 4), len(frame)]
    view = memoryview(frame)
    parts = [view[start:end] for start, end in itertools.pairwise(offsets)]
    return _read_whole(str(parts[0], "utf-8", "replace"), parts[1:])


def _from_dict(data: Mapping[str, Any], buffers: Sequence[memoryview], lost: int, size: int) -> Message:
    header, parent, content = data["header"], data.get("parent_header") or {}, data.get("content")
    metadata = data.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if lost:
        known = metadata.get(DROPPED_BYTES)
        metadata[DROPPED_BYTES] = lost + (known if type(known) is int else 0)
    msg_type = header["msg_type"]
    if not isinstance(msg_type, str) or not isinstance(content, dict):
        raise BadMessageError("no message type or content")
    return Message(
        channel=str(data.get("channel") or "iopub"),
        msg_type=msg_type,
        msg_id=str(header.get("msg_id") or ""),
        parent_id=str(parent.get("msg_id") or ""),
        content=content,
        metadata=metadata,
        buffers=buffers,
        size=size,
    )
