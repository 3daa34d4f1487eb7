"""The live events of one run, bounded: the whole result comes when the run has ended. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

from interpreter.models import JSON
from interpreter.outputs.bundles import OutputLimits
from interpreter.outputs.text import clean_text, utf8_length

_MAX_EVENTS = 10_000
"""After so many of them, stream events are gathered into larger ones, and all others end."""

_REPEAT = 4
"""What clearing and carriage returns may add: stream events carry up to so many times the kept bytes."""


@dataclass(slots=True)
class _Tap:
    """What was sent, and waits, of one stream."""

    sent: int = 0
    stopped: bool = False
    spent: bool = False
    index: int = 0
    waiting: list[str] = field(default_factory=list)
    waiting_bytes: int = 0


class Live:
    """Sends ``output``, ``output.update`` and ``output.clear`` until a budget is spent."""

    def __init__(self, on_event: Callable[[str, JSON], None], limits: OutputLimits) -> None:
        self._on_event = on_event
        self._limits = limits
        self._taps: dict[str, _Tap] = {}
        self._stream_events = 0
        self._other_events = 0
        self._other_bytes = 0
        self._closed = False
        self._is_clear = True

    def stream(self, index: int, name: str, text: str, space: int) -> None:
        """New ``text`` of a stream that has ``space`` bytes for events; what is over it is not sent."""
        tap = self._taps.setdefault(name, _Tap())
        if self._closed or tap.stopped or not text:
            return
        size = utf8_length(text)
        left = _REPEAT * self._limits.max_output_bytes - tap.sent
        if size > min(space, left):
            tap.stopped = True
            tap.spent = size > left
            space = min(space, left)
            head = clean_text(text[:space]).encode()[:space].decode(errors="ignore")
            text = f"{head}\n[… the rest of {name} is not shown live …]\n"
            size = len(head)
        tap.sent += size
        tap.index = index
        tap.waiting.append(clean_text(text))
        tap.waiting_bytes += size
        due = self._limits.max_output_bytes // 1000
        if self._stream_events < _MAX_EVENTS or tap.waiting_bytes > due or tap.stopped:
            self._send_waiting(name, tap)

    def new_stream(self) -> None:
        """A stream has a new output: what was gathered before comes first."""
        self._count_event(0)

    def _send_waiting(self, name: str, tap: _Tap) -> None:
        if not tap.waiting:
            return
        output = {"output_type": "stream", "name": name, "text": "".join(tap.waiting)}
        tap.waiting, tap.waiting_bytes = [], 0
        self._stream_events += 1
        self._is_clear = False
        self._on_event("output", {"index": tap.index, "output": output})

    def flush(self) -> None:
        """Send what was gathered."""
        for name, tap in self._taps.items():
            self._send_waiting(name, tap)

    def output(self, index: int, output: JSON, size: int) -> None:
        """A new output of ``size`` bytes."""
        self._send("output", {"index": index, "output": output}, size)

    def update(self, index: int, output: JSON, size: int) -> None:
        """An output that takes the place of the one at ``index``."""
        self._send("output.update", {"index": index, "output": output}, size)

    def clear(self) -> None:
        """All outputs are gone."""
        for tap in self._taps.values():
            tap.waiting, tap.waiting_bytes, tap.stopped = [], 0, tap.spent
        if not self._is_clear:
            self._send("output.clear", {}, 0)
            self._is_clear = True

    def _send(self, kind: str, data: JSON, size: int) -> None:
        self._count_event(size)
        if not self._closed:
            self._is_clear = False
            self._on_event(kind, data)

    def _count_event(self, size: int) -> None:
        if self._closed:
            return
        self.flush()
        self._other_events += 1
        self._other_bytes += size
        allowed = self._limits.max_display_bytes + self._limits.max_output_bytes
        if self._other_events > _MAX_EVENTS or self._other_bytes > allowed:
            self._closed = True  # indexes would no longer be right for anything that follows

    def close(self) -> None:
        """Send what was gathered; nothing is sent after it."""
        if not self._closed:
            self.flush()
        self._closed = True
