"""A run as Azure's dynamic sessions answer it, in both forms of their API. Pure."""

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from interpreter.frontends.languages import exit_status
from interpreter.frontends.scripts import ended_as_script
from interpreter.frontends.texts import texts_of
from interpreter.models import JSON, Run, RunStatus, to_iso
from interpreter.toolcalls import best_text
from interpreter.toolcalls.displays import Image, images
from interpreter.workspace import FileInfo

_MAX_VALUE_CHARS = 100_000
_MAX_IMAGE_BYTES = 8 * 1024**2  # base64


@dataclass(frozen=True, slots=True)
class Outcome:
    """stdout, stderr and the result: a JSON value, or ``{"type": "image", …}``."""

    stdout: str
    stderr: str
    result: Any
    succeeded: bool
    duration_ms: int

    def as_properties(self) -> JSON:
        """The body of ``code/execute`` (until 2024-08-02-preview)."""
        return {
            "properties": {
                "status": "Success" if self.succeeded else "Failure",
                "stdout": self.stdout,
                "stderr": self.stderr,
                "result": self.result,
                "executionResult": self.result,
                "executionTimeInMilliseconds": self.duration_ms,
            }
        }

    def as_execution(self, run_id: str, identifier: str) -> JSON:
        """The body of ``executions`` (since 2024-10-02-preview)."""
        return {
            "id": run_id,
            "identifier": identifier,
            "executionType": "Synchronous",
            "status": "Succeeded" if self.succeeded else "Failed",
            "result": {
                "stdout": self.stdout,
                "stderr": self.stderr,
                "executionResult": self.result,
                "executionTimeInMilliseconds": self.duration_ms,
            },
        }


def pictures_of(run: Run) -> list[Image]:
    """The figures that the code showed; the result holds the last of them."""
    return images(run.folded.outputs, _MAX_IMAGE_BYTES)


def outcome_of(run: Run, saved: Sequence[str] = ()) -> Outcome:
    """What came of Python code; ``saved`` are the paths of figures that were saved beside the result."""
    run = ended_as_script(run)
    pictures = pictures_of(run)
    result: Any = None
    shown = run
    if pictures:
        last = pictures[-1]
        result = {
            "type": "image",
            "format": last.mime_type.removeprefix("image/"),
            "base64_data": last.data,
        }
    elif run.folded.result is not None:
        result = value_of(_readable_result(run, run.folded.result))
        others = [output for output in run.folded.outputs if output["output_type"] != "execute_result"]
        shown = replace(run, folded=replace(run.folded, outputs=tuple(others)))
    stdout, stderr = texts_of(shown, "py")
    if saved:
        stdout += f"Figures saved as {', '.join(saved)}\n"
    return Outcome(stdout, stderr, result, run.status is RunStatus.OK, run.duration_ms or 0)


def _readable_result(run: Run, result: str) -> str:
    """The last value as text; one that only names an object gives way to what is shown of it."""
    values = [output for output in run.folded.outputs if output["output_type"] == "execute_result"]
    return (best_text(values[-1]["data"]) if values else None) or result


def shell_answer(run: Run, identifier: str) -> JSON:
    """The body of ``executions`` for a shell command: ``status`` is the exit code as text."""
    stdout, stderr = texts_of(run, "bash")
    failed = exit_status("bash", run)
    status = failed[0] if failed else int(run.status is not RunStatus.OK)
    outcome = Outcome(stdout, stderr, None, run.status is RunStatus.OK, run.duration_ms or 0)
    return {**outcome.as_execution(run.id, identifier), "status": str(status)}


def value_of(text: str) -> Any:
    """The JSON value of a literal's repr; the text itself for any other value."""
    if len(text) > _MAX_VALUE_CHARS:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if _is_json(value) else text


def _is_json(value: Any) -> bool:
    match value:
        case None | bool() | str():
            return True
        case int():
            return abs(value) < 2**53
        case float():
            return math.isfinite(value)
        case list():
            return all(map(_is_json, value))
        case dict():
            return all(isinstance(name, str) and _is_json(item) for name, item in value.items())
    return False


def describe_file(file: FileInfo) -> JSON:
    """A file in both forms: under ``properties`` for the older one."""
    modified = to_iso(file.modified_at)
    folder, _, name = file.path.rpartition("/")
    return {
        "name": file.path,
        "type": "file",
        "contentType": file.mime_type,
        "sizeInBytes": file.size,
        "lastModifiedAt": modified,
        "properties": {
            "filename": file.path,
            "name": name,
            "folder": folder,
            "type": "file",
            "size": file.size,
            "lastModifiedTime": modified,
        },
    }
