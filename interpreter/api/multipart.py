"""Reading multipart/form-data piece by piece (RFC 7578). Pure: bytes in, parts out."""

import re
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from interpreter.errors import InvalidRequestError, UnsupportedMediaTypeError

_EXTENDED_NAME = re.compile(rb"filename\*\s*=\s*utf-8'[^']*'([^;\s]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PartBegin:
    """A part with its field's name; ``filename`` is None for what is no file."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class PartData:
    """The next bytes of the part."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The part is whole."""


Event: TypeAlias = PartBegin | PartData | PartEnd


class MultipartReader:
    """Feed it the body; it gives what is in there. It holds no more than what it was just fed."""

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data":
            raise UnsupportedMediaTypeError("Send the files as multipart/form-data, or one with PUT.")
        if not boundary:
            raise InvalidRequestError("The Content-Type has no boundary; let your HTTP client make it.")
        self._events: list[Event] = []
        self._header = b""
        self._value = b""
        self._disposition = b""
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._add_field,
                    "on_header_value": self._add_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                    "on_part_end": lambda: self._events.append(PartEnd()),
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _malformed() from error

    def feed(self, chunk: bytes) -> list[Event]:
        """What the next piece of the body brings. Raises InvalidRequestError."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _malformed() from error
        events, self._events = self._events, []
        return events

    def finish(self) -> None:
        """InvalidRequestError unless the body was whole."""
        if not self._ended:
            raise _malformed()

    def _begin(self) -> None:
        self._header = self._value = self._disposition = b""

    def _add_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _end_headers(self) -> None:
        kind, options = parse_options_header(self._disposition)
        if kind != b"form-data":
            raise _malformed()
        filename = options.get(b"filename")
        if filename is None and (extended := _EXTENDED_NAME.search(self._disposition)):
            filename = unquote_to_bytes(extended[1])  # as older clients write names beyond ASCII
        elif filename is not None:
            filename = filename.replace(b"%22", b'"')  # as browsers, urllib3 and Node's form-data write it
        self._events.append(
            PartBegin(
                options.get(b"name", b"").decode("utf-8", "replace"),
                None if filename is None else _utf8(filename),
            )
        )

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(PartData(data[start:end]))

    def _end(self) -> None:
        self._ended = True


def _utf8(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("A file's name is not UTF-8.", param="filename") from None


def _malformed() -> InvalidRequestError:
    return InvalidRequestError("The body is no whole multipart/form-data; let your HTTP client make it.")
