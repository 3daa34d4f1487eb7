"""A run as Onyx's code interpreter answers it. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from interpreter.errors import InvalidRequestError
from interpreter.events import RunEvent
from interpreter.frontends.dialect import seconds_of, text_of
from interpreter.frontends.form_uploads import local_path
from interpreter.frontends.languages import exit_status
from interpreter.frontends.scripts import ended_as_script
from interpreter.frontends.texts import printed_text, texts_of
from interpreter.models import JSON, Run, RunStatus

MAX_FILES = 100
DEFAULT_TIMEOUT = 2.0  # seconds, of Onyx's own service


@dataclass(frozen=True, slots=True)
class FileRef:
    """An uploaded file, and the path under which code finds it."""

    path: str
    file_id: str


def timeout_of(body: Mapping[str, Any], default: float) -> float:
    """Seconds that the code may take. Raises InvalidRequestError."""
    return seconds_of(body, "timeout_ms", per_second=1000) or default


def read_files(body: Mapping[str, Any]) -> tuple[FileRef, ...]:
    """The files that a request names. Raises InvalidRequestError."""
    files = body.get("files", [])
    if not isinstance(files, list) or len(files) > MAX_FILES or not all(isinstance(f, dict) for f in files):
        raise InvalidRequestError(f"`files` must be a list of at most {MAX_FILES} files.", param="files")
    return tuple(FileRef(local_path(text_of(file, "path")), text_of(file, "file_id")) for file in files)


def outcome(run: Run, language: str = "py") -> JSON:
    """What the answers of all routes share, the stream's too."""
    run = _ended(run, language)
    timed_out = run.status is RunStatus.TIMEOUT
    failed = exit_status(language, run)
    code = failed[0] if failed else int(run.status is not RunStatus.OK)
    return {
        "exit_code": None if timed_out else code,
        "timed_out": timed_out,
        "duration_ms": run.duration_ms or 0,
    }


def answer(run: Run, language: str = "py", *, note: str = "") -> JSON:
    """The body of an answer, without files; ``note`` are lines that stderr ends with."""
    stdout, stderr = texts_of(_ended(run, language), language)
    return {"stdout": stdout, "stderr": stderr + note, **outcome(run, language)}


def _ended(run: Run, language: str) -> Run:
    return ended_as_script(run) if language == "py" else run


def refusal(sentence: str) -> JSON:
    """The answer to code that was not run.

    Not an HTTP error: of one the client shows the URL, with the key in it, to the model.
    """
    return {
        "stdout": "",
        "stderr": f"{sentence}\n",
        "exit_code": 1,
        "timed_out": False,
        "duration_ms": 0,
        "files": [],
    }


def printed(event: RunEvent) -> tuple[str, str] | None:
    """Stream and text of an event that prints; None for any other."""
    output = event.data.get("output") if event.kind == "output" else None
    if output is None or output.get("output_type") != "stream":
        return None
    name = "stderr" if output["name"] == "stderr" else "stdout"
    text = printed_text(output)
    return (name, text) if text else None


def rest_of(run: Run) -> tuple[str, str]:
    """stdout and stderr without what `printed` gave: values, tracebacks, notices."""
    run = ended_as_script(run)
    kept = [output for output in run.folded.outputs if output["output_type"] != "stream"]
    return texts_of(replace(run, folded=replace(run.folded, outputs=tuple(kept))), "py")


def event(kind: str, data: JSON) -> bytes:
    """A server-sent event. ASCII only: the client ends lines at U+2028 and its like."""
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
