"""The rich outputs of a run: what a model can read of them, what it is only told of, what it can look at."""

import base64
import binascii
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from interpreter.models import JSON
from interpreter.toolcalls.readable import is_empty, names_only, noun_of, readable, text_field

MAX_PIXELS = 2000
"""Per side of an image that every model API takes."""
# First bytes of the image types that model APIs take; a wrong image would make them refuse the whole message.
_MAGIC: Mapping[str, tuple[bytes, ...]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


@dataclass(slots=True)
class Displays:
    """``texts`` to read; ``figures`` (MIME type) and ``others`` (noun) counted; the last value's text."""

    texts: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """An image that a model can look at; ``data`` is base64."""

    mime_type: str
    data: str


def read_displays(outputs: Sequence[JSON], result: str | None) -> Displays:
    """What the outputs hold beside streams and errors; ``result`` is the run's last value as text."""
    seen = Displays(result=None if result is None or is_empty(result) else result)
    values = [bundle for kind, bundle in _bundles(outputs) if kind == "execute_result"]
    for kind, bundle in _bundles(outputs):
        noun = noun_of(bundle)
        image = next((mime for mime in bundle if mime.startswith("image/")), None)
        if noun:
            seen.others[noun] += 1
        elif image:
            seen.figures[image] += 1
        text = readable(bundle)
        is_last_value = kind == "execute_result" and bundle is values[-1]
        if is_last_value and (seen.result is None or (text and names_only(seen.result))):
            seen.result = text
        elif text is not None and not is_last_value and not noun:
            seen.texts.append(text)
        if text is None and not noun and not image and "text/html" in bundle:
            seen.others["HTML output"] += 1
    return seen


def images(outputs: Sequence[JSON], max_bytes: int) -> list[Image]:
    """Sound PNG, JPEG, GIF and WebP images in order, as many as ``max_bytes`` of base64 hold."""
    found: list[Image] = []
    left = max_bytes
    for _, bundle in _bundles(outputs):
        image = next((i for mime_type in _MAGIC if (i := _image(bundle, mime_type, left))), None)
        if image is not None:
            left -= len(image.data)
            found.append(image)
    return found


def _bundles(outputs: Sequence[JSON]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for output in outputs:
        kind, data = output.get("output_type"), output.get("data")
        if kind in ("display_data", "execute_result") and isinstance(data, Mapping):
            yield kind, data


def _image(bundle: Mapping[str, Any], mime_type: str, max_bytes: int) -> Image | None:
    data = "".join((text_field(bundle, mime_type) or "").split())
    if not 0 < len(data) <= max_bytes:
        return None
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    is_sound = content.startswith(_MAGIC[mime_type]) and (mime_type != "image/png" or _is_sound_png(content))
    return Image(mime_type, data) if is_sound else None


def _is_sound_png(content: bytes) -> bool:
    """Whether it has its last chunk, and a size that Anthropic takes (2000 pixels where images are many)."""
    if len(content) < 45 or content[-8:-4] != b"IEND":
        return False
    width: int
    height: int
    width, height = struct.unpack_from(">II", content, 16)
    return 0 < width <= MAX_PIXELS and 0 < height <= MAX_PIXELS
