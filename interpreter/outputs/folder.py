"""The messages of one run folded into its outputs. Pure.

The result equals that of nbclient (``nbclient/client.py``: ``process_message``, ``output``,
``clear_output``, ``_update_display_id``) with the texts of one stream that follow each other joined
and folded, as front ends show them; plus what nbclient passes over: the pager's text, errors known
only from the reply, limits. Message contents are those of "Messaging in Jupyter"
(jupyter-client.readthedocs.io).
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from interpreter.messages import DROPPED_AT, DROPPED_BYTES, Message
from interpreter.models import JSON, Folded, RunError
from interpreter.outputs.bundles import PLAIN, Bundle, OutputLimits, read_bundle, refuse
from interpreter.outputs.displays import Displays
from interpreter.outputs.failure import choose_error, read_error, run_error
from interpreter.outputs.live import Live
from interpreter.outputs.notices import notices, shown_errors
from interpreter.outputs.part import Part, Slot, Tally
from interpreter.outputs.text import clean_text, strip_ansi, utf8_length

_MAX_PAGERS = 16
MAX_VALUE_BYTES = (
    4 * 1024**2
)  # of an error's message, in which smolagents' final answers come; a run holds it twice
_MIN_ERROR_BYTES = 16 * 1024  # kept of an error when displays have used up their room


class OutputFolder:
    """Folds what one run prints, shows and raises; see `feed`, `close` and `folded`.

    ``on_event(kind, data)`` gets what clients see live, up to `close`: ``output`` (of a stream only
    the new text), ``output.update`` and ``output.clear``. An index is the place at that moment; the
    folded outputs decide. ``on_amend(run_id, index, bundle)`` gets an update of a display
    that an earlier run of the session made, for that run's `amend`.
    """

    def __init__(
        self,
        run_id: str,
        limits: OutputLimits,
        displays: Displays,
        *,
        code: str,
        on_event: Callable[[str, JSON], None],
        on_amend: Callable[[str, int, Bundle], None],
    ) -> None:
        self.ask_exit = False
        self._run_id = run_id
        self._limits = limits
        self._displays = displays
        self._code = code
        self._on_amend = on_amend
        self._live = Live(on_event, limits)
        self._main = self._part = Part(limits.max_outputs)
        self._late: Part | None = None
        self._clear_waits = False
        self._display_bytes = 0
        self._display_ids: set[str | int] = set()
        self._pagers: list[Slot] = []
        self._shown_errors: deque[JSON] = deque(maxlen=4)
        self._reply_status: str | None = None
        self._reply_error: JSON | None = None
        self._count: int | None = None
        self._reply_count: int | None = None
        self._lost_bytes = 0

    # Messages

    def feed(self, message: Message) -> None:
        """Take one iopub message or the execute reply of this run; odd ones never raise."""
        content = message.content if isinstance(message.content, Mapping) else {}
        if not self._is_late and message.msg_type in ("execute_input", "execute_result"):
            self._count = _count(content.get("execution_count"), self._count)
        handler = _HANDLERS.get(message.msg_type)
        if handler is None:  # of comms and the like nothing is shown, so nothing of them is lost
            return
        lost, place = _gap(message.metadata)
        if message.msg_type == "stream" and place is not None:
            self._on_stream(content, lost, place)
            return
        self._lost_bytes += lost
        handler(self, {**content, "output_type": message.msg_type})

    @property
    def _is_late(self) -> bool:
        return self._late is not None

    def _on_stream(self, content: Mapping[str, Any], lost: int = 0, place: int = 0) -> None:
        """Take text of which ``lost`` bytes are missing before the character number ``place``."""
        name, text = content.get("name", "stdout"), content.get("text", "")
        if isinstance(text, list):
            text = "".join(line for line in text if isinstance(line, str))
        if not isinstance(name, str) or not isinstance(text, str):
            return
        self._clear_if_waiting()
        name = clean_text(name[:100])
        slot = self._part.open_stream(name)
        if slot is None:
            slot = self._part.new_stream(name, self._limits.max_output_bytes)
            if slot is None or self._place(slot) is None:
                self._part.leave_out(utf8_length(text) + lost, name)
                return
        if lost:
            self._print(slot, name, text[:place])
            if slot.stream is not None:
                slot.stream.gap(lost)
            text = text[place:]
        self._print(slot, name, text)

    def _print(self, slot: Slot, name: str, text: str) -> None:
        if slot.stream is not None:
            self._live.stream(slot.index, name, text, slot.stream.live_space)
            slot.stream.append(text)

    def _on_display(self, content: Mapping[str, Any]) -> None:
        display_id = _display_id(content)
        bundle = read_bundle(content.get("data"), content.get("metadata"), self._limits.max_mime_bytes)
        if display_id is not None:
            self._update(display_id, bundle)
        self._clear_if_waiting()
        output = {"output_type": content["output_type"], "metadata": {}, "data": {}}
        if output["output_type"] == "execute_result":
            output["execution_count"] = _count(content.get("execution_count"))
        self._add(Slot(output, display_id=display_id), bundle)

    def _on_update(self, content: Mapping[str, Any]) -> None:
        display_id = _display_id(content)
        if display_id is not None and self._displays.find(display_id):
            bundle = read_bundle(content.get("data"), content.get("metadata"), self._limits.max_mime_bytes)
            self._update(display_id, bundle)

    def _on_error(self, content: Mapping[str, Any]) -> None:
        self._clear_if_waiting()
        room = max(self._limits.max_display_bytes - self._display_bytes, _MIN_ERROR_BYTES)
        output, dropped = self._read_error(content, room)
        if not self._is_late:
            self._shown_errors.append(output)
        if dropped:
            self._part.tally.errors += 1
            self._part.tally.bytes += dropped
        size = sum(map(len, output["traceback"])) + len(output["evalue"])
        self._place(Slot(output, size))

    def _read_error(self, content: Mapping[str, Any], room: int) -> tuple[JSON, int]:
        limits = self._limits
        value = min(limits.max_mime_bytes, MAX_VALUE_BYTES, room)
        return read_error(content, min(limits.max_output_bytes, room), value)

    def _on_clear(self, content: Mapping[str, Any]) -> None:
        if content.get("wait"):
            self._clear_waits = True
        else:
            self._clear()

    def _on_reply(self, content: Mapping[str, Any]) -> None:
        if self._is_late or self._reply_status is not None:
            return
        status = content.get("status")
        self._reply_status = status if isinstance(status, str) else ""
        self._reply_count = _count(content.get("execution_count"))
        if status == "error":
            error, _ = self._read_error(content, self._limits.max_display_bytes)
            told = (shown for shown in self._shown_errors if _names(shown) == _names(error))
            self._reply_error = next(told, error)  # which may be large
        payload = content.get("payload")
        for item in payload if isinstance(payload, list) else ():
            if not isinstance(item, Mapping):
                continue
            if item.get("source") == "ask_exit":
                self.ask_exit = True
            elif item.get("source") == "page" and len(self._pagers) < _MAX_PAGERS:
                self._on_pager(item.get("data"))

    def _on_pager(self, data: Any) -> None:
        bundle = read_bundle(data, None, self._limits.max_mime_bytes)
        if bundle.data:
            bundle = self._admit(bundle, 0, self._main.tally)
            output = {"output_type": "display_data", "metadata": {}, "data": bundle.data}
            self._pagers.append(Slot(output, bundle.size))

    # Outputs

    def _add(self, slot: Slot, bundle: Bundle) -> None:
        """Place a display, within the room for displays."""
        if len(self._part.slots) >= self._part.capacity and self._part.victim(slot.kind) is None:
            self._part.leave_out(bundle.size)
            return
        self._fill(slot, self._admit(bundle, 0, self._part.tally))
        index = self._place(slot)
        if index is not None and slot.display_id is not None:
            self._display_ids.add(slot.display_id)
            self._displays.add(slot.display_id, self._run_id, index)

    def _admit(self, bundle: Bundle, freed: int, tally: Tally) -> Bundle:
        """The bundle, or a sentence when all displays would be too much; its cuts are counted."""
        limit = self._limits.max_display_bytes
        if self._display_bytes - freed + bundle.size + bundle.values_cost(limit) > limit:
            tally.displays += 1
            tally.bytes += bundle.size
            bundle = refuse(bundle, limit)
        tally.values += bundle.dropped_values
        tally.crowds += bundle.dropped_crowds
        tally.bytes += bundle.dropped_bytes
        self._display_bytes += bundle.size + bundle.values_cost(limit) - freed
        return bundle

    def _fill(self, slot: Slot, bundle: Bundle) -> None:
        slot.output = {**slot.output, "data": bundle.data, "metadata": bundle.metadata}
        slot.size, slot.extra = bundle.size, bundle.values_cost(self._limits.max_display_bytes)

    def _place(self, slot: Slot) -> int | None:
        """Append an output; its index among all outputs of the run."""
        if slot.kind == "error":
            self._display_bytes += slot.cost
        self._displace(slot.kind)
        place = self._part.add(slot)
        if place is None:
            self._display_bytes -= slot.cost
            return None
        index = self._offset + place
        if slot.stream is None:
            self._live.output(index, slot.output, slot.cost)
        else:
            self._live.new_stream()
        return index

    def _displace(self, kind: str) -> None:
        """Account for the output that must go for one of this kind, and those that move up."""
        victim = self._part.victim(kind)
        if victim is not None:
            self._live.flush()
            self._display_bytes -= self._part.slots[victim].cost
            self._displays.forget(self._display_ids, self._run_id, self._offset + victim)

    @property
    def _offset(self) -> int:
        return len(self._main.slots) if self._is_late else 0

    def _clear_if_waiting(self) -> None:
        if self._clear_waits:
            self._clear_waits = False
            self._clear()

    def _clear(self) -> None:
        """Remove the outputs; of a complete run only those that came late."""
        self._display_bytes -= sum(slot.cost for slot in self._part.slots)
        self._displays.forget(self._display_ids, self._run_id, self._offset)
        if not self._is_late:
            self._display_ids.clear()
        self._part.reset()
        self._live.clear()

    # Displays shown before

    def _update(self, display_id: str | int, bundle: Bundle) -> None:
        shown = Bundle(bundle.data, bundle.metadata, bundle.size, bundle.values)  # what is lost is this run's
        for run_id, index in self._displays.find(display_id):
            if run_id == self._run_id:
                self._replace(index, bundle)
            else:
                self._on_amend(run_id, index, shown)

    def amend(self, index: int, bundle: Bundle) -> None:
        """Replace a display's data, as another run's folder found; nothing for an unknown index."""
        self._replace(index, bundle)

    def _replace(self, index: int, bundle: Bundle) -> None:
        part, place = self._main, index
        if self._late is not None and index >= len(part.slots):
            part, place = self._late, index - len(part.slots)
        if not 0 <= place < len(part.slots) or "data" not in part.slots[place].output:
            return
        slot = part.slots[place]
        self._fill(slot, self._admit(bundle, slot.cost, part.tally))
        self._live.update(index, slot.output, slot.cost)

    # Results

    def close(self) -> None:
        """The run is complete: the pager's text follows its outputs, and what comes now is late."""
        if self._is_late:
            return
        self._clear_waits = False
        for slot in self._pagers:
            self._place_pager(slot)
        self._pagers = []
        self._live.close()
        self._part = self._late = Part(max(self._limits.max_outputs - len(self._main.slots), 0))

    def _place_pager(self, slot: Slot) -> None:
        index = self._main.add(slot)
        if index is None:
            self._display_bytes -= slot.cost
        else:
            self._live.output(index, slot.output, slot.cost)

    @property
    def late_indexes(self) -> tuple[int, ...]:
        """Which of the folded outputs came after `close`."""
        if self._late is None:
            return ()
        start = len(self._main.slots)
        return tuple(range(start, start + len(self._late.slots)))

    def folded(self) -> Folded:
        """All outputs up to now."""
        outputs, cuts = self._main.render()
        result = _result(outputs)
        failures = shown_errors(outputs) if self._reply_status == "ok" else ()
        outputs += [slot.output for slot in self._pagers]
        tallies = [self._main.tally]
        if self._late is not None:
            late_outputs, late_cuts = self._late.render()
            outputs += late_outputs
            cuts += [(f"late {name}", shown, dropped) for name, shown, dropped in late_cuts]
            tallies.append(self._late.tally)
        dropped = sum(cut[2] for cut in cuts) + sum(tally.bytes for tally in tallies) + self._lost_bytes
        sentences = notices(cuts, tallies, self._lost_bytes, self._limits)
        stdout, stderr = _stream_text(outputs, "stdout"), _stream_text(outputs, "stderr")
        return Folded(
            outputs=tuple(outputs),
            stdout=stdout,
            stderr=stderr,
            result=result,
            error=self._error(stderr),
            execution_count=self._reply_count if self._count is None else self._count,
            truncated=bool(sentences),
            dropped_bytes=dropped,
            notices=sentences + failures,
        )

    def _error(self, stderr: str) -> RunError | None:
        error = choose_error(self._shown_errors, self._reply_status, self._reply_error)
        count = self._reply_count if self._count is None else self._count
        return run_error(error, self._code, count, stderr) if error else None


# Not in each folder, which would then hold itself, and its outputs, until the next search for cycles.
_HANDLERS: dict[str, Callable[[OutputFolder, Mapping[str, Any]], None]] = {
    "stream": OutputFolder._on_stream,
    "display_data": OutputFolder._on_display,
    "execute_result": OutputFolder._on_display,
    "update_display_data": OutputFolder._on_update,
    "error": OutputFolder._on_error,
    "clear_output": OutputFolder._on_clear,
    "execute_reply": OutputFolder._on_reply,
}


def _display_id(content: Mapping[str, Any]) -> str | int | None:
    transient = content.get("transient")
    display_id = transient.get("display_id") if isinstance(transient, Mapping) else None
    return display_id if display_id and isinstance(display_id, str | int) else None


def _gap(metadata: Any) -> tuple[int, int | None]:
    """How many bytes were cut from a message on its way, and before which character of its text.

    Source: ``gateway_extension/bounding.py``, and our kernels' IPython extension, which does the same.
    """
    if not metadata or not isinstance(metadata, Mapping):
        return 0, None
    return _count(metadata.get(DROPPED_BYTES)) or 0, _count(metadata.get(DROPPED_AT))


def _names(error: JSON) -> tuple[str, str]:
    return error["ename"], error["evalue"]


def _count(value: Any, default: int | None = None) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return int(value) if is_count else default


def _stream_text(outputs: list[JSON], name: str) -> str:
    return "".join(strip_ansi(output["text"]) for output in outputs if output.get("name") == name)


def _result(outputs: list[JSON]) -> str | None:
    for output in reversed(outputs):
        if output["output_type"] == "execute_result":
            text = output["data"].get(PLAIN)
            return strip_ansi(text) if isinstance(text, str) else None
    return None
