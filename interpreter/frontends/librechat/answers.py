"""A run as LibreChat reads it: stdout, stderr, files. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interpreter.frontends.librechat.languages import exit_status
from interpreter.frontends.librechat.storage import object_id
from interpreter.models import JSON, FileChange, Run, RunStatus
from interpreter.outputs.text import strip_ansi

MAX_FILES = 100  # that the client is told of, and downloads one by one

_IMAGES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".bmp", ".avif", ".tif", ".tiff")
_STATUS = {RunStatus.TIMEOUT: "TO", RunStatus.KERNEL_DIED: "SG", RunStatus.ERROR: "RE"}
_OUTPUT_LIMIT = "OL"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that the code showed and did not save: base64, and the ending of its file's name."""

    data: str
    ending: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The uploaded file that a file of the session began as."""

    storage_id: str
    id: str
    read_only: bool


def pictures_of(run: Run) -> list[Picture]:
    """The pictures that are only shown; none when the code saved as many as it showed."""
    found = [picture for output in run.folded.outputs if (picture := _picture(output)) is not None]
    saved = sum(file.change != "deleted" and file.path.lower().endswith(_IMAGE_ENDINGS) for file in run.files)
    return [] if saved >= len(found) else found


def _picture(output: JSON) -> Picture | None:
    data = output.get("data", {})
    for kind, ending in _IMAGES.items():
        if isinstance(data.get(kind), str):
            return Picture(data[kind], ending)
    return None


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
    stdout, stderr = texts_of(run, code, notes)
    files, deleted, left_out = _files(run, figures, origins or {})
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


def texts_of(run: Run, code: str, notes: Sequence[str] = ()) -> tuple[str, str]:
    """What the client shows as stdout and stderr.

    Values that a notebook would show are in stdout. The traceback is in stderr, except for a bash
    script that failed: its own words are there already.
    """
    stdout, stderr = _Text(), _Text()
    told = False
    for output in run.folded.outputs:
        kind = output["output_type"]
        if kind == "stream":
            (stderr if output["name"] == "stderr" else stdout).add(strip_ansi(output["text"]))
        elif kind == "error":
            told = True
            if exit_status(code, run) is None:
                stderr.line(strip_ansi("\n".join(output["traceback"]) or _sentence(output)))
        elif _picture(output) is None and isinstance(text := output["data"].get("text/plain"), str):
            stdout.line(strip_ansi(text))
    sentences = (*run.folded.notices, *run.notices, *notes)
    if (error := run.folded.error) is not None and not told and error.evalue not in sentences:
        stderr.line(f"{error.ename}: {error.evalue}")
    for sentence in sentences:
        stderr.line(sentence)
    return stdout.text, stderr.text


class _Text:
    """Text that grows."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, text: str) -> None:
        self.text += text

    def line(self, text: str) -> None:
        """Add the text on lines of its own."""
        if self.text and not self.text.endswith("\n"):
            self.text += "\n"
        self.text += text if text.endswith("\n") else f"{text}\n"


def _sentence(output: JSON) -> str:
    return f"{output['ename']}: {output['evalue']}"


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
