"""Rendering: a session and its runs as an nbformat 4.5 notebook. Pure and deterministic.

The file is JSON with one cell per line, so that a run's cell can be replaced without reading the
others. Each cell is made valid by construction: an output that nbformat's schema does not allow is
shown as a text that says so (the journal keeps what came).

Sources: nbformat 4.5's JSON schema; nbclient's ``metadata.execution`` keys, here all from the run's two
times; "The Notebook file format" (nbformat.readthedocs.io).
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from interpreter.jsontext import dump
from interpreter.models import JSON, SessionInfo, to_iso
from interpreter.record.outcomes import RecordedRun

FORMAT = 1
"""Version of the rendering, in the notebook's ``metadata.interpreter.format``."""

START = b'{"cells": [\n'
SEPARATOR = b",\n"

_SURROGATES = re.compile("[\ud800-\udfff]")
_JSON_MIME = re.compile(r"application/(.*\+)?json")
_PYTHON = {
    "name": "python",
    "mimetype": "text/x-python",
    "file_extension": ".py",
    "pygments_lexer": "ipython3",
    "nbconvert_exporter": "python",
    "codemirror_mode": {"name": "ipython", "version": 3},
}


def render_cell(recorded: RecordedRun, info: SessionInfo) -> Iterator[bytes]:
    """The line (no newline) of a run's cell, in parts so that large outputs are not in memory twice."""
    run = recorded.run
    count = run.folded.execution_count
    cell = {
        "cell_type": "code",
        "execution_count": count if _is_count(count) else None,
        "id": run.id,
        "metadata": {"execution": _execution(recorded), "interpreter": _about(recorded, info)},
    }
    yield _dumps(cell)[:-1]
    yield b', "outputs": ['
    for position, output in enumerate(run.folded.outputs):
        if position:
            yield b", "
        yield _dumps(_valid_output(output))
    yield b'], "source": '
    yield _dumps(run.code)
    yield b"}"


def render_end(info: SessionInfo, *, ended_reason: str | None, entries: int, mac: bytes) -> bytes:
    """What follows the last cell: the notebook's metadata. It tells how much of the journal is rendered."""
    language = info.language or "python"
    about = {
        "format": FORMAT,
        "session": info.as_json(),
        "ended": ended_reason,
        "journal": {"entries": entries, "mac": mac.hex()},
    }
    metadata = {
        "kernelspec": {"name": info.kernel_name, "display_name": info.kernel_name, "language": language},
        "language_info": _PYTHON if language.lower() == "python" else {"name": language},
        "interpreter": about,
    }
    return b'\n],\n"metadata": ' + _dumps(metadata) + b',\n"nbformat": 4,\n"nbformat_minor": 5\n}\n'


def rendered_entries(notebook_end: bytes) -> int | None:
    """How many of the journal's entries a notebook says it shows, from its last bytes; None if it does not."""
    begin = notebook_end.rfind(b'\n"metadata": ')
    line = notebook_end[begin + len(b'\n"metadata": ') :].partition(b",\n")[0] if begin >= 0 else b""
    try:
        entries = json.loads(line)["interpreter"]["journal"]["entries"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return entries if type(entries) is int else None


def _execution(recorded: RecordedRun) -> JSON:
    run = recorded.run
    times: JSON = {}
    if run.started_at is not None:
        times["iopub.status.busy"] = times["iopub.execute_input"] = to_iso(run.started_at)
        if run.ended_at is not None:
            times["shell.execute_reply"] = times["iopub.status.idle"] = to_iso(run.ended_at)
    return times


def _about(recorded: RecordedRun, info: SessionInfo) -> JSON:
    run, folded = recorded.run, recorded.run.folded
    return {
        "run_id": run.id,
        "status": run.status.value,
        "owner": {
            "id": run.owner_id,
            "name": info.owner_name if run.owner_id == info.owner_id else None,
        },
        "created_at": to_iso(run.created_at),
        "started_at": to_iso(run.started_at),
        "ended_at": to_iso(run.ended_at),
        "duration_ms": run.duration_ms,
        "timeout": run.timeout,
        "tool_call_id": run.tool_call_id,
        "truncated": folded.truncated,
        "dropped_bytes": folded.dropped_bytes,
        "notices": [*folded.notices, *run.notices],
        "kernel_restarted": run.kernel_restarted,
        "files": [file.as_json() for file in run.files],
        "late_outputs": list(recorded.late),
    }


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _valid_output(output: Any) -> JSON:
    """``output`` if nbformat 4.5 allows it, else a stream that says that it does not."""
    if isinstance(output, dict):
        valid = _VALIDATORS.get(str(output.get("output_type")), _no_output)(output)
        if valid is not None:
            return valid
    text = "[An output that is not valid in a notebook is only in the journal.]\n"
    return {"output_type": "stream", "name": "stderr", "text": text}


def _no_output(_output: Mapping[str, Any]) -> JSON | None:
    return None


def _stream(output: Mapping[str, Any]) -> JSON | None:
    name, text = output.get("name"), output.get("text")
    if not isinstance(name, str) or not _is_text(text):
        return None
    return {"output_type": "stream", "name": name, "text": text}


def _display(output: Mapping[str, Any]) -> JSON | None:
    data, metadata = output.get("data"), output.get("metadata", {})
    if not isinstance(data, dict) or not isinstance(metadata, dict):
        return None
    if not all(_JSON_MIME.fullmatch(mime) or _is_text(value) for mime, value in data.items()):
        return None
    return {"output_type": "display_data", "data": data, "metadata": metadata}


def _result(output: Mapping[str, Any]) -> JSON | None:
    display, count = _display(output), output.get("execution_count")
    if display is None or not (count is None or _is_count(count)):
        return None
    return {**display, "output_type": "execute_result", "execution_count": count}


def _error(output: Mapping[str, Any]) -> JSON | None:
    ename, evalue, traceback = (output.get(name) for name in ("ename", "evalue", "traceback"))
    if not isinstance(ename, str) or not isinstance(evalue, str) or not isinstance(traceback, list):
        return None
    if not all(isinstance(line, str) for line in traceback):
        return None
    return {"output_type": "error", "ename": ename, "evalue": evalue, "traceback": traceback}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(line, str) for line in value)
    )


_VALIDATORS = {"stream": _stream, "display_data": _display, "execute_result": _result, "error": _error}


def _dumps(value: Any) -> bytes:
    try:
        return dump(value, allow_nan=False, sort_keys=True)
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)
        return _SURROGATES.sub("\ufffd", text).encode()
