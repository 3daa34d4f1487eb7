"""Messages, a folder that notes its calls, and nbclient as the reference for the folding tests."""

import asyncio
from typing import Any

import nbformat
from nbclient import NotebookClient

from interpreter.messages import Message
from interpreter.models import JSON, Folded
from interpreter.outputs import Bundle, Displays, OutputFolder, OutputLimits

LIMITS = OutputLimits(
    max_output_bytes=1024**2, max_mime_bytes=8 * 1024**2, max_display_bytes=16 * 1024**2, max_outputs=500
)


def limits(**changes: int) -> OutputLimits:
    return OutputLimits(**{**{name: getattr(LIMITS, name) for name in LIMITS.__slots__}, **changes})


def message(msg_type: str, content: Any = None, *, channel: str = "iopub", **metadata: Any) -> Message:
    return Message(channel, msg_type, "m", "parent", content if content is not None else {}, metadata)


def stream(text: Any, name: str = "stdout") -> Message:
    return message("stream", {"name": name, "text": text})


def display(data: Any, display_id: Any = None, metadata: Any = None, kind: str = "display_data") -> Message:
    content: JSON = {"data": data, "metadata": metadata or {}, "transient": {}}
    if display_id is not None:
        content["transient"] = {"display_id": display_id}
    return message(kind, content)


def update(data: Any, display_id: Any) -> Message:
    return display(data, display_id, kind="update_display_data")


def result(data: Any, count: int = 1) -> Message:
    return message("execute_result", {"data": data, "metadata": {}, "execution_count": count})


def error(ename: str = "ValueError", evalue: str = "bad", traceback: Any = ()) -> Message:
    return message("error", {"ename": ename, "evalue": evalue, "traceback": list(traceback)})


def clear(wait: bool = False) -> Message:
    return message("clear_output", {"wait": wait})


def reply(status: str = "ok", **content: Any) -> Message:
    return message("execute_reply", {"status": status, "execution_count": 1, **content}, channel="shell")


IDLE = message("status", {"execution_state": "idle"})


class Kit:
    """A folder, its events and its amendments."""

    def __init__(
        self,
        run_id: str = "run_a_1",
        limits: OutputLimits = LIMITS,
        displays: Displays | None = None,
        code: str = "1",
    ) -> None:
        self.events: list[tuple[str, JSON]] = []
        self.amendments: list[tuple[str, int, Bundle]] = []
        self.displays = displays or Displays()
        self.folder = OutputFolder(
            run_id,
            limits,
            self.displays,
            code=code,
            on_event=lambda kind, data: self.events.append((kind, data)),
            on_amend=lambda *args: self.amendments.append(args),
        )

    def feed(self, *messages: Message) -> "Kit":
        for each in messages:
            self.folder.feed(each)
        return self

    @property
    def folded(self) -> Folded:
        return self.folder.folded()

    @property
    def outputs(self) -> list[JSON]:
        return list(self.folded.outputs)


def fold(*messages: Message, **options: Any) -> Folded:
    return Kit(**options).feed(*messages).folded


def texts(outputs: Any) -> list[Any]:
    """Each output as its text, or its text/plain, or its error's name."""
    return [
        o.get("text", o.get("ename")) if "data" not in o else o["data"].get("text/plain") for o in outputs
    ]


def validate(outputs: Any) -> None:
    """Whether they are the outputs of a valid nbformat 4.5 cell that strict JSON can hold."""
    cell = nbformat.v4.new_code_cell(source="x")
    cell["outputs"] = nbformat.from_dict(list(outputs))
    nbformat.validate(nbformat.v4.new_notebook(cells=[cell]))


class _Channel:
    def __init__(self, messages: list[JSON]) -> None:
        self._messages = iter(messages)

    async def get_msg(self, timeout: float | None = None) -> JSON:
        return next(self._messages)


class _Manager:
    async def is_alive(self) -> bool:
        return True


class _Client:
    def __init__(self, messages: list[JSON]) -> None:
        self.iopub_channel = _Channel(messages)
        self.shell_channel = _Channel(
            [{"parent_header": {"msg_id": "parent"}, "content": {"status": "ok"}, "header": {}}]
        )

    def execute(self, *args: Any, **options: Any) -> str:
        return "parent"


def nbclient_outputs(*messages: Message) -> list[JSON]:
    """What nbclient itself makes of these iopub messages: one output for each."""
    raw = [
        {
            "header": {"msg_type": m.msg_type},
            "msg_type": m.msg_type,
            "parent_header": {"msg_id": "parent"},
            "content": {**m.content},
        }
        for m in (*messages, IDLE)
    ]
    cell = nbformat.v4.new_code_cell(source="x")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    client = NotebookClient(notebook, coalesce_streams=False, allow_errors=True, record_timing=False)
    client.kc, client.km = _Client(raw), _Manager()
    asyncio.run(client.async_execute_cell(cell, 0))
    return [_plain(output) for output in cell.outputs]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
