"""What happened in a run, as numbered events that clients follow and resume."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from interpreter.models import JSON, Run

MAX_EVENTS = 10_000
COMPLETED = "run.completed"
_BYTES_PER_VALUE = 60


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run; ``id`` rises from 1."""

    id: int
    kind: str
    says: JSON | Run

    @property
    def data(self) -> JSON:
        """What it says. That of a whole run is made only for those who ask: most runs are followed by nobody."""
        return self.says.as_json() if isinstance(self.says, Run) else self.says


class EventLog:
    """The events of one run, kept so that a client that lost its connection can go on.

    Stream text that nobody has read yet grows in its event, so a flood of prints costs no more than
    its text. What the folding lets through bounds the bytes; `MAX_EVENTS` bounds the rest: beyond it
    only the last event, which holds the whole run, still comes.
    """

    def __init__(self) -> None:
        self.size = 0
        """Bytes that the outputs in the events take, about."""
        self._events: list[RunEvent] = []
        self._unread_text: list[str] = []
        self._closed = False
        self._news = asyncio.Event()

    def append(self, kind: str, data: JSON | Run) -> None:
        """Add an event, or let the newest one grow when it is unread and of the same output."""
        if self._closed:
            return
        if kind == COMPLETED:
            self._closed = True
        elif self._grows(kind, data):
            self._tell()
            return
        elif len(self._events) >= MAX_EVENTS:
            return
        self._settle()
        self._events.append(RunEvent(len(self._events) + 1, kind, data))
        if not isinstance(data, Run):
            output = data.get("output")
            if kind == "output" and isinstance(output, dict) and output.get("output_type") == "stream":
                self._unread_text = [output["text"]]
            self.size += _weight(output)
        elif kind == COMPLETED:
            self.size += _weight_of_run(data)
        self._tell()

    async def follow(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """The events with an id above ``after``, as they come, up to `COMPLETED`.

        An id that no event has yet counts as the newest one; of a run that has ended, as the one before:
        the ids of its events in the record may differ.
        """
        position = min(max(after, 0), len(self._events))
        if self._closed and after > len(self._events):
            position -= 1
        if position:
            self._settle()  # who has seen the newest event must not miss what it would grow by
        while True:
            while position < len(self._events):
                self._settle()
                event = self._events[position]
                position += 1
                yield event
            if self._closed:
                return
            await self._news.wait()

    def _tell(self) -> None:
        """Wake all followers that wait now."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _grows(self, kind: str, data: JSON | Run) -> bool:
        """Whether the unread newest event took the new one in."""
        if not self._unread_text or kind != "output" or isinstance(data, Run):
            return False
        newest, output = self._events[-1].data, data["output"]
        if newest["index"] != data["index"] or output.get("output_type") != "stream":
            return False
        self._unread_text.append(output["text"])
        self.size += _weight_of_text(output["text"])
        return True

    def _settle(self) -> None:
        """Write the collected text into the newest event, which then stays as it is."""
        if len(self._unread_text) > 1:
            event = self._events[-1]
            output = {**event.data["output"], "text": "".join(self._unread_text)}
            self._events[-1] = RunEvent(event.id, event.kind, {**event.data, "output": output})
        self._unread_text = []


def _weight(output: Any) -> int:
    """About how many bytes an output takes."""
    if not isinstance(output, dict):
        return 0
    if isinstance(output.get("text"), str):
        return _weight_of_text(output["text"])
    data = output.get("data")
    if not isinstance(data, dict):
        return sum(map(_weight_of_text, (output.get("evalue", ""), *output.get("traceback", ()))))
    return sum(
        _weight_of_text(value) if isinstance(value, str) else _weight_of_json(value)
        for value in data.values()
    )


def _weight_of_text(text: str) -> int:
    """One emoji makes four bytes of each character."""
    return len(text) if text.isascii() else sys.getsizeof(text)


def _weight_of_json(value: Any) -> int:
    """About what JSON takes in memory, which is much more than its text when it holds small values."""
    if isinstance(value, str):
        return _weight_of_text(value)
    size, left = 0, [value] if isinstance(value, dict | list) else []
    for holder in left:
        size += _BYTES_PER_VALUE * (1 + len(holder))
        items = holder.values() if isinstance(holder, dict) else holder
        left += [item for item in items if type(item) is dict or type(item) is list]
        size += sum([_weight_of_text(item) for item in items if type(item) is str])
    return size


def _weight_of_run(run: Run) -> int:
    """What a run's text takes besides its events; its displays are the same objects as theirs."""
    folded = run.folded
    streams = [output for output in folded.outputs if output.get("output_type") == "stream"]
    return sum(map(_weight, streams)) + len(run.code) + len(folded.stdout) + len(folded.stderr)


async def replay_events(run: Run, after: int = 0) -> AsyncIterator[RunEvent]:
    """The events of a finished run that only the record remembers: one for each output."""
    kinds: list[tuple[str, JSON | Run]] = [("run.started", {**run.as_json(), "outputs": []})]
    kinds += [("output", {"index": i, "output": o}) for i, o in enumerate(run.folded.outputs)]
    kinds.append((COMPLETED, run))
    for number, (kind, data) in enumerate(kinds, start=1):
        if number > after or kind == COMPLETED:
            yield RunEvent(max(number, after + 1) if kind == COMPLETED else number, kind, data)
