"""What leaves the gateway is bounded: pure functions on the parts of an iopub message.

A message is a list of parts as on the wire, without identities and signature: header, parent header,
metadata, content (each JSON), then raw buffers. Where something was cut, the metadata says so:

- ``interpreter_dropped_bytes``: how many bytes (UTF-8) are missing
- ``interpreter_dropped_at``: before which character of a stream's text they are missing
"""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_client.session import DELIM

from interpreter.gateway_extension.activity import GATEWAY_STATES
from interpreter.gateway_extension.framing import left_out
from interpreter.gateway_extension.sharing import LITTLE_BYTES, kept
from interpreter.jsontext import has_too_many, load

Parts = list[bytes]

DROPPED_BYTES = "interpreter_dropped_bytes"
DROPPED_AT = "interpreter_dropped_at"

_BUNDLES = frozenset({"display_data", "execute_result", "update_display_data"})
_DROPPABLE = frozenset({"stream", "display_data", "update_display_data", "clear_output"})
_COMMS = frozenset({"comm_open", "comm_msg", "comm_close"})
_MAYBE_FORGED = re.compile("|".join([*GATEWAY_STATES, r"\\"]).encode())
_MAX_HEADER_BYTES = 65536
_MAX_PARENTS = 16
_MESSAGE_PARTS = 4
_LOST_REPLY = {
    "status": "error",
    "ename": "",
    "evalue": "[the reply was left out: too large]",
    "traceback": [],
}
_PLAIN = re.compile(r'"text/plain": ?("(?:[^"\\]|\\.){0,4000}+")')
_OVERWRITTEN = re.compile(r"^[^\n]*\r(?=[^\n])", re.MULTILINE)


@dataclass(frozen=True)
class Bounds:
    """Bytes. No message that was bounded is larger than ``max_message_bytes`` and a little."""

    max_stream_bytes: int = 4 * 1024**2
    max_message_bytes: int = 16 * 1024**2
    max_waiting_bytes: int = 32 * 1024**2
    max_parsed_bytes: int = 64 * 1024**2
    """A larger content is not even read: parsing it would hold up every other session."""


def is_forged(parts: Parts) -> bool:
    """Whether a kernel says what only the gateway says of it: that it is dead, and why, or restarting."""
    if b"status" not in parts[0] and b"\\" not in parts[0]:  # JSON can write the letters in other ways
        return False
    if len(parts[0]) > _MAX_HEADER_BYTES:
        return True
    if len(parts) < 4:
        return False
    too_large = len(parts[3]) > _MAX_HEADER_BYTES
    if not too_large and not _MAYBE_FORGED.search(parts[3]):  # nearly all: to parse them would cost more
        return False
    if _load(parts[0]).get("msg_type") != "status":
        return False
    return too_large or _load(parts[3]).get("execution_state") in GATEWAY_STATES


def split(wire: Parts) -> tuple[int, Parts]:
    """Where the signature is in what came over a socket, and the parts after it: none if that is no message at all."""
    if DELIM not in wire:
        return 0, []
    signature = wire.index(DELIM) + 1
    parts = wire[signature + 1 :]
    return signature, parts if len(parts) >= _MESSAGE_PARTS else []


def bounded(parts: Parts, bounds: Bounds) -> Parts | None:
    """The message itself, a cut copy of it, or None for a comm that is too large to be sent."""
    size = sum(map(len, parts))
    lost = left_out(parts[3]) if len(parts) > 3 else 0  # on the way to the gateway, see `framing`
    if size <= bounds.max_stream_bytes and not lost:
        return parts
    msg_type = _load(_short(parts[0])).get("msg_type")
    if msg_type != "stream" and size <= bounds.max_message_bytes and not lost:
        return parts
    if msg_type in _COMMS:
        return None
    if lost or size > bounds.max_parsed_bytes or has_too_many(_text(parts[3])):
        return _replaced(parts, str(msg_type), lost or size)
    if msg_type == "stream":
        cut = _cut_stream(parts, bounds.max_stream_bytes)
    elif msg_type in _BUNDLES:
        cut = _cut_bundle(parts, bounds.max_message_bytes)
    else:
        cut = _cut_strings(parts, bounds.max_message_bytes)
    fits = sum(map(len, cut)) <= bounds.max_message_bytes
    return cut if fits else _replaced(parts, str(msg_type), size)


def bounded_reply(parts: Parts, bounds: Bounds) -> Parts:
    """The same for the other channels, where nothing may be left out: long strings lose their middle."""
    size = sum(map(len, parts))
    if len(parts) > 3 and left_out(parts[3]):
        return [*map(_short, parts[:3]), _dump(_LOST_REPLY)]
    if size <= bounds.max_message_bytes:
        return parts
    if size > bounds.max_parsed_bytes or has_too_many(_text(parts[3])):
        return [_short(parts[0]), _short(parts[1]), b"{}", _dump(_LOST_REPLY)]
    cut = _cut_strings(parts, bounds.max_message_bytes)
    if sum(map(len, cut)) <= bounds.max_message_bytes:
        return cut
    return [_short(parts[0]), _short(parts[1]), b"{}", _dump({"status": _load(cut[3]).get("status")})]


def cut_text(text: str, max_bytes: int) -> tuple[str, str, int]:
    """Head and tail of `text`, together at most `max_bytes` of UTF-8, and the number of bytes between."""
    data = text.encode("utf-8", "surrogatepass")
    return _cut(data, data, len(data), max_bytes) if len(data) > max_bytes else (text, "", 0)


class Backlog:
    """Decides what may wait for a client that reads slowly or is away.

    As long as less than `limit` bytes wait, everything passes. Beyond, streams and displays
    are withheld and counted; statuses, replies, results and errors always pass. The count is
    delivered with the next message that passes, as an empty stream message.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._little = min(LITTLE_BYTES, bounds.max_waiting_bytes)
        self._withheld: dict[bytes, tuple[bytes, int]] = {}  # parent header → (header, bytes)

    @property
    def limit(self) -> int:
        """How many bytes may wait now before something is withheld: fewer while others have much that waits."""
        return kept.limit(self._bounds.max_waiting_bytes)

    def admit(self, parts: Parts, waiting_bytes: int) -> list[Parts]:
        """The messages to send now, in order, given how many bytes wait already."""
        if is_forged(parts):
            return []
        if waiting_bytes > self._little and waiting_bytes > self.limit:
            header = _load(parts[0])
            if header.get("msg_type") in _COMMS:  # nothing of them is ever shown, so nothing is missing
                return []
            if header.get("msg_type") in _DROPPABLE:
                self._withhold(parts)
                return []
        message = bounded(parts, self._bounds)
        return [*self._release(), *([] if message is None else [message])]

    def _withhold(self, parts: Parts) -> None:
        parent = _short(parts[1])
        if parent not in self._withheld and len(self._withheld) >= _MAX_PARENTS:
            parent = next(iter(self._withheld))  # only forged messages have so many parents
        header, count = self._withheld.get(parent, (_short(parts[0]), 0))
        self._withheld[parent] = header, count + sum(map(len, parts[3:]))

    def _release(self) -> list[Parts]:
        released = [
            [
                _dump(_load(header) | {"msg_type": "stream"}),
                parent,
                _dump({DROPPED_BYTES: count, DROPPED_AT: 0}),
                _dump({"name": "stdout", "text": ""}),
            ]
            for parent, (header, count) in self._withheld.items()
        ]
        self._withheld.clear()
        return released


def _cut_stream(parts: Parts, max_bytes: int) -> Parts:
    content = _load(parts[3])
    text = content.get("text")
    if not isinstance(text, str):
        return parts
    place, lost = _gap(parts[2])
    if lost:
        # One gap can be told of, so it grows around the one that the kernel made.
        before, after = _without_overwritten(text[:place]), _without_overwritten(text[place:])
        head, tail, dropped = _cut_between(before, after, max_bytes)
        dropped += lost
    else:
        head, tail, dropped = cut_text(_without_overwritten(text), max_bytes)
    if head + tail == text:
        return parts
    metadata = _noted(parts[2], {DROPPED_BYTES: dropped, DROPPED_AT: len(head)}) if dropped else parts[2]
    return [*parts[:2], metadata, _dump(content | {"text": head + tail})]


def _without_overwritten(text: str) -> str:
    """The text without what a carriage return takes back, so that a progress bar is not cut in two.

    A return stays at the start: what it takes back came in an earlier message.
    """
    return _OVERWRITTEN.sub(lambda found: "" if found.start() else "\r", text)


def _cut_between(before: str, after: str, max_bytes: int) -> tuple[str, str, int]:
    """The beginning of ``before`` and the end of ``after``, and the number of bytes that were cut."""
    first, last = before.encode("utf-8", "surrogatepass"), after.encode("utf-8", "surrogatepass")
    size = len(first) + len(last)
    return _cut(first, last, size, max_bytes) if size > max_bytes else (before, after, 0)


def _cut(first: bytes, last: bytes, size: int, max_bytes: int) -> tuple[str, str, int]:
    half = max_bytes // 2
    head = first[:half].decode("utf-8", "ignore")
    tail = last[max(len(last) - half, 0) :].decode("utf-8", "ignore")
    return head, tail, size - len(head.encode()) - len(tail.encode())


def _gap(metadata: bytes) -> tuple[int, int]:
    """Before which character of a text the kernel cut how many bytes; none for what says nonsense."""
    noted = _load(_short(metadata))
    place, lost = noted.get(DROPPED_AT), noted.get(DROPPED_BYTES)
    if type(place) is int and type(lost) is int and place >= 0 and lost > 0:
        return place, lost
    return 0, 0


def _replaced(parts: Parts, msg_type: str, size: int) -> Parts:
    notice = f"[an output of {size} bytes was left out: too large]"
    if msg_type in _BUNDLES:
        notice = "\n".join([*_plain_text(parts[3]), notice])
    contents: dict[str, dict[str, Any]] = {
        "stream": {"name": "stdout", "text": ""},
        "error": {"ename": "", "evalue": notice, "traceback": []},
        "execute_result": {"data": {"text/plain": notice}, "metadata": {}, "execution_count": None},
    }
    bundle = {"data": {"text/plain": notice}, "metadata": {}}
    content = contents.get(msg_type, bundle)
    note = {DROPPED_BYTES: size, DROPPED_AT: 0}
    return [_short(parts[0]), _short(parts[1]), _dump(note), _dump(content)]


def _plain_text(content: bytes) -> list[str]:
    """The text/plain of a bundle that is not parsed, where it is short and near the content's beginning or end."""
    for part in (content[:_MAX_HEADER_BYTES], content[-_MAX_HEADER_BYTES:]):
        if found := _PLAIN.search(_text(part)):
            with contextlib.suppress(ValueError):
                return [json.loads(found[1])]
    return []


def _cut_bundle(parts: Parts, max_bytes: int) -> Parts:
    content, dropped = _read(parts[3])
    data = content.get("data")
    kept: dict[str, Any] = {}
    notices: list[str] = []
    dropped += sum(map(len, parts[4:]))  # buffers of a bundle carry nothing that a notebook keeps
    room = max_bytes * 3 // 4
    values = data if isinstance(data, Mapping) else {}
    sizes = {mime: len(_dump(value)) for mime, value in values.items()}
    for mime, value in sorted(values.items(), key=lambda item: sizes[item[0]]):
        size = sizes[mime]
        if size > room:
            dropped += size
            notices.append(f"[{mime} of {size} bytes was left out: too large]")
        else:
            room -= size
            kept[mime] = value
    if notices:
        kept["text/plain"] = "\n".join([*([kept["text/plain"]] if "text/plain" in kept else []), *notices])
    metadata = content.get("metadata")
    if len(_dump(metadata)) > max_bytes // 8:
        content["metadata"] = {}
    return [*parts[:2], _noted(parts[2], {DROPPED_BYTES: dropped}), _dump(content | {"data": kept})]


def _cut_strings(parts: Parts, max_bytes: int) -> Parts:
    """For errors and anything else: each long string loses its middle, each long list its middle too."""
    before = len(parts[3])
    content = _shorten(_load(parts[3]), max_bytes // 16)
    cut = _dump(content)
    if len(cut) > max_bytes:
        cut = _dump({key: value for key, value in content.items() if len(_dump(value)) < max_bytes // 16})
    return [*parts[:2], _noted(parts[2], {DROPPED_BYTES: max(0, before - len(cut))}), cut]


def _shorten(value: Any, max_bytes: int) -> Any:
    if isinstance(value, str):
        head, tail, dropped = cut_text(value, max_bytes)
        return f"{head}\n[{dropped} bytes were left out]\n{tail}" if dropped else value
    if isinstance(value, list):
        if len(value) > 64:
            value = [*value[:32], *value[-32:]]
        return [_shorten(item, max_bytes // 8) for item in value]
    if isinstance(value, dict):
        return {key: _shorten(item, max_bytes) for key, item in value.items()}
    return value


def _noted(metadata: bytes, note: dict[str, int]) -> bytes:
    return _dump(_load(_short(metadata)) | note)


def _short(part: bytes) -> bytes:
    """A header as it is; one that no real kernel would send, as an empty one."""
    return part if len(part) <= _MAX_HEADER_BYTES else b"{}"


def _load(part: bytes) -> dict[str, Any]:
    """A kernel can send anything; what is no JSON object counts as an empty one.

    Without what holds too many values: parsing it would take much memory, and time of every session.
    """
    return _read(part)[0]


def _read(part: bytes) -> tuple[dict[str, Any], int]:
    """The same, and how many bytes of it were left out."""
    try:
        value, lost = load(_text(part))
    except (ValueError, RecursionError):
        return {}, 0
    return (value, lost) if isinstance(value, dict) else ({}, 0)


def _text(part: bytes) -> str:
    return str(part, "utf-8", "replace")


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()
