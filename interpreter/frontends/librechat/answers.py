"""A run as LibreChat reads it: stdout, stderr, files. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interpreter.frontends.languages import exit_status
from interpreter.frontends.librechat.object_ids import object_id
from interpreter.frontends.scripts import ended_as_script
from interpreter.frontends.texts import texts_of
from interpreter.models import JSON, FileChange, Run, RunStatus

MAX_FILES = 100  # that the client is told of, and downloads one by one

_STATUS = {RunStatus.TIMEOUT: "TO", RunStatus.KERNEL_DIED: "SG", RunStatus.ERROR: "RE"}
_OUTPUT_LIMIT = "OL"
_LEFT_OUT = "Only the first {} files are handed over; {} more stay in the working directory."


@dataclass(frozen=True, slots=True)
class Origin:
    """The uploaded file that a file of the session began as."""

    storage_id: str
    id: str
    read_only: bool


def answer(
    run: Run,
    code: str,
    *,
    figures: Sequence[str] = (),
    notes: Sequence[str] = (),
    origins: Mapping[str, Origin] | None = None,
) -> JSON:
    """The body of the answer to ``/exec``.

    ``figures`` are the paths of the pictures that were saved for the client, ``notes`` sentences for
    the model, ``origins`` the uploaded files by path.
    """
    run = ended_as_script(run) if code == "py" else run
    files, deleted, left_out = _files(run, figures, origins or {})
    if left_out:
        notes = [*notes, _LEFT_OUT.format(MAX_FILES, left_out)]
    stdout, stderr = texts_of(run, code, notes)
    failed = exit_status(code, run)
    status = _OUTPUT_LIMIT if run.folded.truncated else _STATUS.get(run.status)
    body = {
        "session_id": run.session_id,
        "stdout": stdout,
        "stderr": stderr,
        "files": files,
        "deleted_files": deleted,
        "code": failed[0] if failed else int(run.status is not RunStatus.OK),
        "signal": failed[1] if failed else None,
        "status": status,
        "message": None if run.status is RunStatus.OK else run.status.value,
        "wall_time": run.duration_ms,
        "run_id": run.id,
    }
    if left_out:
        told = len(files)
        body["artifact_delivery"] = {
            "code": "artifact_delivery_failed",
            "status": "partial",
            "attempted": told + left_out,
            "delivered": told,
            "failed": left_out,
        }
    return body


def _files(
    run: Run, figures: Sequence[str], origins: Mapping[str, Origin]
) -> tuple[list[JSON], list[str], int]:
    """The files to tell of, the paths that are gone, and how many files were too many."""
    made = [file for file in run.files if file.change != "deleted" and not _is_read_only(file, origins)]
    paths = [*figures, *(file.path for file in made)]
    told = [_file(run.session_id, path, origins.get(path)) for path in paths[:MAX_FILES]]
    deleted = [file.path for file in run.files if file.change == "deleted"]
    return told, deleted, max(0, len(paths) - MAX_FILES)


def _is_read_only(file: FileChange, origins: Mapping[str, Origin]) -> bool:
    origin = origins.get(file.path)
    return origin is not None and origin.read_only


def _file(session_id: str, path: str, origin: Origin | None) -> JSON:
    file: dict[str, Any] = {
        "id": object_id(session_id, path),
        "name": path,
        "session_id": session_id,
        "storage_session_id": session_id,
    }
    if origin is not None:
        file["modified_from"] = {"id": origin.id, "storage_session_id": origin.storage_id}
    return file
