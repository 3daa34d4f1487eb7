"""Outputs and runs as a terminal shows them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from interpreter.cli.dates import local_time
from interpreter.cli.output import counted, harmless
from interpreter.models import JSON, Run
from interpreter.outputs import strip_ansi
from interpreter.record import SessionRecord

PLAIN = "text/plain"
_UNITS = ((1024**2, "MB"), (1024, "kB"))


def size_text(size: int) -> str:
    """Bytes for people: ``12 bytes``, ``5.2 kB``."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return counted(size, "byte")


def plain_of(output: Mapping[str, Any]) -> str | None:
    """The text of a display or a result, None when it has none."""
    text = _data(output).get(PLAIN)
    return text if isinstance(text, str) else None


def unshown(output: Mapping[str, Any]) -> list[str]:
    """A phrase for each value that text does not stand for: an image always, the rest without text."""
    data = _data(output)
    found = [mime for mime in data if mime.startswith(("image/", "audio/", "video/"))]
    if PLAIN not in data:
        found = list(data)
    return [f"{mime}, {size_text(_size(mime, data[mime]))}" for mime in found]


def traceback_of(error: Mapping[str, Any]) -> str:
    """The traceback of an error output or of a run's error, or its one line when it has none."""
    lines = error.get("traceback")
    text = "\n".join(map(str, lines)) if isinstance(lines, list) else ""
    return text or f"{error.get('ename')}: {error.get('evalue')}"


def output_text(output: Mapping[str, Any]) -> str:
    """An output as plain text, without ANSI codes; ends with a newline unless it is empty."""
    kind = output.get("output_type")
    if kind == "stream":
        text = str(output.get("text", ""))
    elif kind == "error":
        text = traceback_of(output)
    else:
        parts = [plain_of(output) or "", *(f"[{phrase}]" for phrase in unshown(output))]
        text = "\n".join(part for part in parts if part)
    text = strip_ansi(text)
    return text if not text or text.endswith("\n") else f"{text}\n"


def _data(output: Mapping[str, Any]) -> JSON:
    data = output.get("data")
    return data if isinstance(data, dict) else {}


def _size(mime: str, value: Any) -> int:
    text = value if isinstance(value, str) else str(value)
    is_base64 = mime.startswith(("image/", "audio/", "video/")) and not mime.endswith("+xml")
    return len(text) * 3 // 4 if is_base64 else len(text.encode("utf-8", "replace"))


def statuses_text(record: SessionRecord) -> str:
    """How the runs of a session ended: ``3 ok, 1 error``."""
    return ", ".join(f"{count} {status}" for status, count in sorted(record.statuses.items())) or "-"


def session_text(record: SessionRecord, runs: Sequence[Run]) -> str:
    """A session to read in a terminal; nothing in it can steer the terminal."""
    info = record.info
    lines = [
        f"Session {info.id}",
        f"    {info.kernel_name}, by {info.owner_name}, from {local_time(info.created_at)}",
    ]
    if record.ended_at is not None:
        lines.append(f"    ended {local_time(record.ended_at)}: {record.ended_reason}")
    lines += [f"    {name}: {value}" for name, value in info.metadata.items()]
    return harmless("\n".join(lines)) + "".join(f"\n\n{_run_text(run)}" for run in runs)


def _run_text(run: Run) -> str:
    count = run.folded.execution_count
    label = f"In[{' ' if count is None else count}]"
    facts = [run.status.value, local_time(run.started_at or run.created_at)]
    if run.duration_ms is not None:
        facts.append(f"{run.duration_ms} ms")
    if run.tool_call_id:
        facts.append(f"tool call {run.tool_call_id}")
    parts = [f"{label}  {run.id}  ({', '.join(facts)})\n", _indented(run.code)]
    shown = "".join(map(output_text, run.folded.outputs))
    if run.folded.error is not None and not any(o.get("output_type") == "error" for o in run.folded.outputs):
        shown += traceback_of(run.folded.error.as_json())
    if shown:
        parts.append(f"Out:\n{_indented(shown)}")
    parts += [f"({sentence})\n" for sentence in (*run.folded.notices, *run.notices)]
    parts += [f"({file.change} {file.path}, {size_text(file.size)})\n" for file in run.files]
    return harmless("".join(parts)).rstrip("\n")


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.rstrip("\n").split("\n"))
