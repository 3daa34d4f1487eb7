"""MIME bundles made valid and bounded. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from interpreter.jsontext import MAX_VALUES, Unread, dump
from interpreter.models import JSON
from interpreter.outputs.streams import cut_clean
from interpreter.outputs.text import clean_text, sized_json, utf8_length

PLAIN = "text/plain"
_LARGE_CHARS = 1 << 17


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Bytes and counts kept of one run; the settings of the same names."""

    max_output_bytes: int
    max_mime_bytes: int
    max_display_bytes: int
    max_outputs: int


@dataclass(slots=True)
class Bundle:
    """Data and metadata of a display; ``size`` in bytes, ``values`` in its JSON, and what limits dropped."""

    data: JSON = field(default_factory=dict)
    metadata: JSON = field(default_factory=dict)
    size: int = 0
    values: int = 0
    dropped_values: int = 0
    dropped_crowds: int = 0
    dropped_bytes: int = 0

    def drop(self, size: int) -> None:
        """Count a value that was left out or cut."""
        self.dropped_values += 1
        self.dropped_bytes += size

    def values_cost(self, limit: int) -> int:
        """For how many bytes its values count, of ``limit`` bytes in which there may be `MAX_VALUES`."""
        return self.values * limit // MAX_VALUES


@dataclass(frozen=True, slots=True)
class Measured:
    """Stands for a value that was cleaned and measured before: ``size`` in bytes, and ``values`` in it."""

    value: Any
    size: int
    values: int


def measured(data: Any, metadata: Any) -> tuple[Any, Any]:
    """The data and metadata of a message for `read_bundle`, which then takes no time for JSON and large texts."""
    if isinstance(data, Mapping):
        data = {
            mime: Measured(*_read_value(mime, value))
            if isinstance(mime, str) and (isinstance(value, dict | list) or _is_large(value))
            else value
            for mime, value in data.items()
        }
    return data, Measured(*sized_json(metadata)) if isinstance(metadata, dict) else metadata


def read_bundle(data: Any, metadata: Any, max_mime_bytes: int) -> Bundle:
    """The valid bundle in whatever a message holds.

    A value over ``max_mime_bytes`` is left out, ``text/plain`` cut instead; if that leaves a bundle
    without text, a sentence takes its place.
    """
    bundle = Bundle()
    notice = ""
    for key, value in data.items() if isinstance(data, Mapping) else ():
        if not isinstance(key, str) or (value is None and not _may_be_json(key)):
            continue
        mime = clean_text(key)
        if isinstance(value, Unread):
            bundle.dropped_crowds += 1
            bundle.dropped_bytes += value.size
            notice = f"[{mime[:100]} of {value.size:,} bytes is not shown: it holds too many values]"
            continue
        clean, size, values = _read_value(mime, value)
        if size > max_mime_bytes and mime == PLAIN:
            clean, dropped = cut_clean(clean, size, max_mime_bytes)
            bundle.drop(dropped)
            size = max_mime_bytes
        elif size > max_mime_bytes:
            bundle.drop(size)
            notice = f"[{mime[:100]} of {size:,} bytes is not shown: the limit is {max_mime_bytes:,} bytes]"
            continue
        bundle.data[mime] = clean
        bundle.size += size + len(mime)
        bundle.values += values
    if notice:
        bundle.data.setdefault(PLAIN, notice)
    _read_metadata(bundle, metadata, max_mime_bytes)
    return bundle


def _is_large(value: Any) -> bool:
    return isinstance(value, str) and len(value) > _LARGE_CHARS


def _may_be_json(mime: str) -> bool:
    """Whether the type is one whose value may be any JSON: ``^application/(.*[+])?json$``.

    Source: nbformat.v4.5.schema.json, definitions/misc/mimebundle. Not by that pattern: a type may be very long.
    """
    if not mime.startswith("application/"):
        return False
    name = mime.removesuffix("\n")
    return name == "application/json" or (name.endswith("+json") and "\n" not in name)


def _read_value(mime: str, value: Any) -> tuple[Any, int, int]:
    """The clean value, its bytes and how many values it holds."""
    if isinstance(value, Measured):
        return value.value, value.size, value.values
    if _may_be_json(mime):
        return sized_json(value)
    text = value if isinstance(value, str) else _text_of(value)
    if mime.startswith("image/") and not mime.endswith("+xml"):
        text = text.replace("\n", "").replace("\r", "")
    clean = clean_text(text)
    return clean, utf8_length(clean), 0


def _text_of(value: Any) -> str:
    """A text that came as its lines, or the JSON of what is none."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    clean, _, _ = sized_json(value)
    return clean if isinstance(clean, str) else dump(clean).decode()


def _read_metadata(bundle: Bundle, metadata: Any, limit: int) -> None:
    if isinstance(metadata, Mapping) and metadata:
        metadata = Measured(*sized_json(dict(metadata)))
    if not isinstance(metadata, Measured) or not metadata.value:
        return
    if metadata.size > limit:
        bundle.drop(metadata.size)
    else:
        bundle.metadata = metadata.value
        bundle.size += metadata.size
        bundle.values += metadata.values


def refuse(bundle: Bundle, limit: int) -> Bundle:
    """What stands for a bundle that ``max_display_bytes`` has no room for."""
    of, values = f"{bundle.size:,} bytes", ""
    if bundle.values_cost(limit) > bundle.size:
        of, values = f"{of} and {bundle.values:,} values", f", or {MAX_VALUES:,} values"
    notice = f"[A display of {of} is not shown: the limit of a run is {limit:,} bytes{values}]"
    return Bundle(
        {PLAIN: notice},
        dropped_values=bundle.dropped_values,
        dropped_crowds=bundle.dropped_crowds,
        dropped_bytes=bundle.dropped_bytes,
    )
