"""What happened in a run, as numbered events that clients follow and resume."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from interpreter.models import JSON, Run

MAX_EVENTS = 10_000
COMPLETED = "run.completed"


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run; ``id`` rises from 1."""

    id: int
    kind: str
    data: JSON


class EventLog:
    """The events of one run, kept so that a client that lost its connection can go on.

    Stream text that nobody has read yet grows in its event, so a flood of prints costs no more than
    its text. What the folding lets through bounds the bytes; `MAX_EVENTS` bounds the rest: beyond it
    only the last event, which holds the whole run, still comes.
    """

    def __init__(self) -> None:
        self._events: list[RunEvent] = []
        self._unread_text: list[str] = []
        self._closed = False
        self._news = asyncio.Event()

    def append(self, kind: str, data: JSON) -> None:
        """Add an event, or let the newest one grow when it is unread and of the same kind."""
        if self._closed:
            return
        if kind == COMPLETED:
            self._closed = True
        elif len(self._events) >= MAX_EVENTS:
            return
        elif self._grows(kind, data):
            self._news.set()
            return
        self._settle()
        self._events.append(RunEvent(len(self._events) + 1, kind, data))
        if kind == "output" and data["output"].get("output_type") == "stream":
            self._unread_text = [data["output"]["text"]]
        self._news.set()

    async def follow(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """The events with an id above ``after``, as they come, up to `COMPLETED`."""
        position = max(after, 0)
        while True:
            while position < len(self._events):
                self._settle()
                event = self._events[position]
                position += 1
                yield event
            if self._closed:
                return
            news = self._news
            await news.wait()
            if news is self._news:
                self._news = asyncio.Event()

    def _grows(self, kind: str, data: JSON) -> bool:
        """Whether the unread newest event took the new one in."""
        if not self._unread_text or kind != "output":
            return False
        newest, output = self._events[-1].data, data["output"]
        if newest["index"] != data["index"] or output.get("output_type") != "stream":
            return False
        self._unread_text.append(output["text"])
        return True

    def _settle(self) -> None:
        """Write the collected text into the newest event, which then stays as it is."""
        if len(self._unread_text) > 1:
            event = self._events[-1]
            output = {**event.data["output"], "text": "".join(self._unread_text)}
            self._events[-1] = RunEvent(event.id, event.kind, {**event.data, "output": output})
        self._unread_text = []


async def replay_events(run: Run, after: int = 0) -> AsyncIterator[RunEvent]:
    """The events of a finished run that only the record remembers: one for each output."""
    kinds: list[tuple[str, JSON]] = [("run.started", {**run.as_json(), "outputs": []})]
    kinds += [("output", {"index": i, "output": o}) for i, o in enumerate(run.folded.outputs)]
    kinds.append((COMPLETED, run.as_json()))
    for number, (kind, data) in enumerate(kinds, start=1):
        if number > after or kind == COMPLETED:
            yield RunEvent(max(number, after + 1) if kind == COMPLETED else number, kind, data)
