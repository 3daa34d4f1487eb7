"""Messages made to fit what a client can take and show. Pure but for the images.

Facts (Open WebUI 0.12.4, ``utils/code_interpreter.py``): the ``websockets`` package closes the socket
at a message over 1 MiB and loses what came before; of a display it shows ``image/png``, else
``text/plain``, else nothing. Real front ends (Tornado's client, v1) take 10 MiB and show everything.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from interpreter.frontends.jupyter.wire import Outgoing
from interpreter.models import JSON
from interpreter.outputs.streams import cut_text
from interpreter.outputs.text import strip_ansi
from interpreter.toolcalls.readable import best_text, names_only

PNG, PLAIN = "image/png", "text/plain"
_SMALL_FRAME = 1024**2
_LARGE_FRAME = 10 * 1024**2
_ROOM = 64 * 1024  # of a frame, for headers and what is not measured
_ESCAPED = 6  # bytes that JSON takes for a character at most
_RASTER = ("image/jpeg", "image/webp", "image/gif", "image/bmp")
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MAX_PLAIN = 16 * 1024  # bytes of text made from other types


@dataclass(frozen=True, slots=True)
class Profile:
    """What a client takes: the protocol, the largest frame in bytes, and whether it shows only text and PNG."""

    v1: bool
    max_frame: int
    simple: bool

    @classmethod
    def of(cls, *, v1: bool, user_agent: str, has_origin: bool = False) -> "Profile":
        """As the handshake tells.

        Tornado's own client, which gateways' clients use, takes 10 MiB. Who sends an origin knows no limit:
        websocket-client (smolagents, jupyter_kernel_client) and browsers. ``websockets`` sends none.
        """
        full = v1 or user_agent.startswith("Tornado/")
        large = full or (has_origin and " websockets/" not in user_agent)
        return cls(v1, _LARGE_FRAME if large else _SMALL_FRAME, not full)

    @property
    def room(self) -> int:
        """Bytes for the content of one message."""
        return self.max_frame - _ROOM


class Painter(Protocol):
    """Makes images small."""

    async def to_png(self, encoded: str, max_bytes: int) -> str | None:
        """The image (Base64) as a PNG (Base64) of at most ``max_bytes``; None when that can't be."""


async def fit(message: Outgoing, profile: Profile, painter: Painter) -> list[Outgoing]:
    """The message as the client can take it; long text becomes several messages."""
    content = message.content
    if message.msg_type == "stream":
        return _split_stream(message, profile)
    if "data" in content and message.channel == "iopub":
        data = await _fit_bundle(content["data"], profile, painter)
        metadata = content.get("metadata") or {}
        if json_size(metadata) > _ROOM // 2:
            metadata = {}
        fitted = replace(message, content={**content, "data": data, "metadata": metadata})
        return _split_plain(fitted, profile) if profile.simple else [fitted]
    if "traceback" in content:
        return [replace(message, content=_fit_error(content, profile.room))]
    if message.msg_type == "execute_input":
        return [replace(message, content={**content, "code": _cut(content["code"], profile.room)})]
    return [message]


def json_size(value: Any) -> int:
    """Bytes of the value as JSON in UTF-8."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _split_stream(message: Outgoing, profile: Profile) -> list[Outgoing]:
    text = message.content["text"]
    if profile.simple:
        text = strip_ansi(text)
    pieces = _cut_up(text, profile.room)
    return [replace(message, content={**message.content, "text": piece}) for piece in pieces]


def _fit_error(content: JSON, room: int) -> JSON:
    """The value whole if it can be (some clients carry answers in it), and what is left for the traceback."""
    if json_size(content) <= room:
        return content
    evalue = _cut(content["evalue"], room // 2)
    traceback = _cut("\n".join(content["traceback"]), room // 3)
    return {**content, "evalue": evalue, "traceback": traceback.split("\n")}


def _cut(text: str, room: int) -> str:
    """Head and tail of the text, so that it takes at most ``room`` bytes in JSON."""
    kept, limit = text, room
    while (size := json_size(kept)) > room:
        limit = int(limit * 0.9 * min(1, room / size)) if kept is not text else room
        kept, _ = cut_text(text, limit)
    return kept


def _split_plain(message: Outgoing, profile: Profile) -> list[Outgoing]:
    """Text that is too long for one frame, in several displays: its lines, where that can be."""
    data = message.content["data"]
    text = data.get(PLAIN)
    if not isinstance(text, str) or PNG in data or json_size(text) <= profile.room // 2:
        return [message]
    pieces = _cut_up(text, profile.room // 2)
    first, *others = [piece.removesuffix("\n") for piece in pieces[:-1]] + pieces[-1:]
    content = {**message.content, "data": {**data, PLAIN: first}}
    following = [{"data": {PLAIN: piece}, "metadata": {}, "transient": {}} for piece in others]
    return [
        replace(message, content=content),
        *(replace(message, msg_type="display_data", content=content) for content in following),
    ]


def _cut_up(text: str, room: int) -> list[str]:
    """Pieces of at most ``room`` bytes in JSON, as few as can be, and ends of lines at their ends."""
    pieces, start = [], 0
    while start < len(text):
        end = min(start + room, len(text))
        while (size := json_size(text[start:end])) > room:
            end = start + max((room - 2) // _ESCAPED, (end - start) * room // size - 1)
        if end < len(text):
            end = text.rfind("\n", (start + end) // 2, end) + 1 or end
        pieces.append(text[start:end])
        start = end
    return pieces


async def _fit_bundle(data: Mapping[str, Any], profile: Profile, painter: Painter) -> JSON:
    fitted = dict(data)
    if profile.simple:
        if PNG in fitted:
            _check_png(fitted)
        await _add_png(fitted, profile.room, painter)
        if PNG in fitted and profile.max_frame == _SMALL_FRAME:
            # AutoGen writes every type that it does not know into the text for its model.
            fitted = {mime: value for mime, value in fitted.items() if mime not in _RASTER}
        _add_plain(fitted)
    if json_size(fitted) <= profile.room:
        return fitted
    if isinstance(fitted.get(PNG), str):
        await _shrink_png(fitted, profile.room // 2, painter)
    splits = profile.simple and PNG not in fitted  # then long text goes into frames of its own
    others = sorted(fitted.keys() - {PNG, PLAIN}, key=lambda mime: json_size(fitted[mime]), reverse=True)
    for mime in others:
        if _size_without_plain(fitted) <= profile.room // 2:
            break
        size = json_size(fitted.pop(mime))
        if PNG not in fitted:
            fitted.setdefault(PLAIN, f"[{mime} of {size:,} bytes is too large to be shown here]")
    if isinstance(fitted.get(PLAIN), str) and not splits:
        fitted[PLAIN] = _cut(fitted[PLAIN], profile.room - _size_without_plain(fitted) - _ROOM // 2)
    return fitted


def _size_without_plain(data: JSON) -> int:
    return json_size({mime: value for mime, value in data.items() if mime != PLAIN})


async def _shrink_png(data: JSON, room: int, painter: Painter) -> None:
    """A smaller image, or a sentence in its place."""
    size = len(data[PNG])
    smaller = data[PNG] if size <= room else await painter.to_png(data[PNG], room)
    if smaller is not None:
        data[PNG] = smaller
        return
    del data[PNG]
    data[PLAIN] = f"[image/png of {size * 3 // 4:,} bytes is too large to be shown here]"


async def _add_png(data: JSON, room: int, painter: Painter) -> None:
    """A PNG beside another image."""
    if PNG in data:
        return
    for mime in _RASTER:
        if isinstance(data.get(mime), str):
            png = await painter.to_png(data[mime], room // 2)
            if png is not None:
                data[PNG] = png
            return


def _add_plain(data: JSON) -> None:
    """Text beside whatever there is, and in place of the name of an object: some clients show nothing else."""
    plain = data.get(PLAIN)
    if isinstance(plain, str) and (PNG in data or not names_only(plain)):
        data[PLAIN] = strip_ansi(plain)
    elif text := best_text(data):
        data[PLAIN], _ = cut_text(text, _MAX_PLAIN)
    else:
        names = ", ".join(data)
        data[PLAIN] = f"[{names}]" if names else ""


def _check_png(data: JSON) -> None:
    """Base64 on one line, as clients that read lines need it; none that is no PNG."""
    encoded = "".join(data[PNG].split()) if isinstance(data[PNG], str) else ""
    try:
        is_png = base64.b64decode(encoded, validate=True).startswith(_SIGNATURE)
    except ValueError:
        is_png = False
    if is_png:
        data[PNG] = encoded
    else:
        del data[PNG]
        if names_only(str(data.get(PLAIN, ""))) or PLAIN not in data:
            data[PLAIN] = "[image/png that is not valid]"
