"""Server-sent events as a client reads them (WHATWG HTML, "Interpreting an event stream"). Pure."""

import codecs
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event; ``kind`` is ``message`` when the stream names none."""

    kind: str
    data: str


class EventParser:
    """Takes the bytes of a stream as they come; lines may end in CR, LF or both."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._rest = ""
        self._after_cr = False
        self._kind = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that are complete now."""
        found = (self._take(line) for line in self._lines(self._decoder.decode(chunk)))
        return [event for event in found if event is not None]

    def _lines(self, text: str) -> list[str]:
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        self._after_cr = self._after_cr or text.endswith("\r")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        head, newline, tail = text.rpartition("\n")
        if not newline:
            self._rest += tail
            return []
        lines = (self._rest + head).split("\n")
        self._rest = tail
        return lines

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            event = ServerEvent(self._kind or "message", "\n".join(self._data)) if self._data else None
            self._kind, self._data = "", []
            return event
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        return None
