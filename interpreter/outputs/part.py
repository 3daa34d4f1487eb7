"""The outputs of one part of a run's life: until it was complete, or after. Pure."""

from dataclasses import dataclass

from interpreter.models import JSON
from interpreter.outputs.streams import StreamText

_MAX_STREAMS = 4  # names; kernels know two
_MIN_STREAM_BYTES = 4096  # so that the last lines of a name are seen, however much was printed before


@dataclass(slots=True)
class Slot:
    """One output. ``size`` are its bytes; ``stream`` holds a stream's text; ``index`` is its place in its part.

    ``extra``: bytes by which it counts for more than its size, as what it holds takes memory.
    """

    output: JSON
    size: int = 0
    display_id: str | int | None = None
    stream: StreamText | None = None
    index: int = 0
    extra: int = 0

    @property
    def cost(self) -> int:
        """What it takes of ``max_display_bytes``."""
        return self.size + self.extra

    @property
    def kind(self) -> str:
        return str(self.output["output_type"])


@dataclass(slots=True)
class Tally:
    """What limits left out of a part."""

    values: int = 0
    crowds: int = 0
    displays: int = 0
    outputs: int = 0
    errors: int = 0
    bytes: int = 0


class Part:
    """Up to ``capacity`` outputs.

    The first outputs are kept. When there is no room, text goes on in the newest output of its
    stream; the first output of a stream, an error or an execute_result takes the place of the last
    display, or of an earlier output of its own kind.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slots: list[Slot] = []
        self.tally = Tally()
        self._streams: dict[str, Slot] = {}  # the newest output of each name
        self._settled_bytes: dict[str, int] = {}  # shown in the older outputs of each name
        self._left_out: set[str] = set()  # streams

    def reset(self) -> None:
        """Remove all outputs, and what is known of left out ones."""
        self.slots, self.tally = [], Tally()
        self._streams.clear()
        self._settled_bytes.clear()
        self._left_out.clear()

    def leave_out(self, size: int, stream: str | None = None) -> None:
        """Count an output of ``size`` bytes that is not kept; the texts of one stream are one output."""
        self.tally.bytes += size
        if stream in self._left_out:
            return
        self.tally.outputs += 1
        if stream is not None and len(self._left_out) < _MAX_STREAMS:
            self._left_out.add(stream)

    def open_stream(self, name: str) -> Slot | None:
        """The output that takes the text of a stream; None where it needs a `new_stream`.

        As front ends do, text is joined to the output directly before it only.
        """
        newest = self._streams.get(name)
        if newest is None or (newest is not self.slots[-1] and len(self.slots) < self.capacity):
            return None
        return newest

    def new_stream(self, name: str, limit: int) -> Slot | None:
        """An output for a stream that has none open, to `add`; None if there are too many streams.

        All outputs of a stream share ``limit`` bytes, of which live events get the first 3/4; but each
        output has at least 4096.
        """
        newest = self._streams.get(name)
        if newest is None and len(self._streams) >= _MAX_STREAMS:
            return None
        settled = self._settled_bytes.get(name, 0)
        if newest is not None and newest.stream is not None:
            settled += newest.stream.settle()
            self._settled_bytes[name] = settled
        room = max(limit - settled, min(limit, _MIN_STREAM_BYTES))
        text = StreamText(room, limit * 3 // 4 - settled)
        return Slot({"output_type": "stream", "name": name, "text": ""}, stream=text)

    def add(self, slot: Slot) -> int | None:
        """Append an output and return its index, or None when it was left out (which is counted).

        Look at `victim` first to know which output it will displace.
        """
        if len(self.slots) >= self.capacity:
            index = self.victim(slot.kind)
            if index is None:
                self.leave_out(slot.size, slot.output.get("name"))
                return None
            self.leave_out(self.slots[index].size)
            del self.slots[index]
            for moved in self.slots[index:]:
                moved.index -= 1
        slot.index = len(self.slots)
        self.slots.append(slot)
        if slot.stream is not None:
            self._streams[slot.output["name"]] = slot
        return slot.index

    def victim(self, kind: str) -> int | None:
        """Which output must go for a new one of this kind; None when none must or none may."""
        if len(self.slots) < self.capacity or kind == "display_data":
            return None
        for index in range(len(self.slots) - 1, -1, -1):
            if self.slots[index].kind in ("display_data", kind) and self.slots[index].stream is None:
                return index
        return None

    def render(self) -> tuple[list[JSON], list[tuple[str, int, int]]]:
        """The nbformat outputs, and per stream that was cut its name, bytes shown and bytes dropped."""
        outputs: list[JSON] = []
        counts: dict[str, tuple[int, int]] = {}
        for slot in self.slots:
            if slot.stream is None:
                outputs.append(slot.output)
                continue
            text, shown, dropped = slot.stream.snapshot()
            outputs.append({**slot.output, "text": text})
            before = counts.get(slot.output["name"], (0, 0))
            counts[slot.output["name"]] = (before[0] + shown, before[1] + dropped)
        return outputs, [(name, shown, dropped) for name, (shown, dropped) in counts.items() if dropped]
