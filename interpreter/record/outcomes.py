"""A run as entries of the journal, and back. Pure.

Text that the outputs already hold (stdout, stderr, the result, the error) is stored once: it is left
out when it can be derived from the outputs exactly, and stored beside them when limits made it differ.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from interpreter.models import (
    JSON,
    FileChange,
    Folded,
    Run,
    RunError,
    RunStatus,
    SessionInfo,
    from_iso,
    run_id_of,
    to_iso,
)

# Part of the journal's format: it decides what is derived, so it must not follow changes elsewhere.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run as the journal tells it; ``late`` are the indexes of outputs that came after its end."""

    run: Run
    late: tuple[int, ...] = ()


def accepted_data(run: Run, *, idempotency_key: str | None, request_hash: str | None) -> JSON:
    """Data of ``run_accepted``: who asked to run what, when. The code is exactly what was sent."""
    return {
        "run": run.number,
        "owner_id": run.owner_id,
        "created_at": to_iso(run.created_at),
        "timeout": run.timeout,
        "tool_call_id": run.tool_call_id,
        "idempotency_key": idempotency_key,
        "request_hash": request_hash,
        "code": run.code,
    }


def ended_data(run: Run, *, late: Sequence[int]) -> JSON:
    """Data of ``run_ended``: how the run ended, and all that came out of it."""
    return {
        "run": run.number,
        "status": run.status.value,
        "started_at": to_iso(run.started_at),
        "ended_at": to_iso(run.ended_at),
        "duration_ms": run.duration_ms,
        "kernel_restarted": run.kernel_restarted,
        "notices": list(run.notices),
        "files": [file.as_json() for file in run.files],
        "late": list(late),
        "outputs": list(run.folded.outputs),
        "folded": folded_data(run.folded),
    }


def aborted_data(number: int, *, ended_at: datetime, notice: str) -> JSON:
    """Data of ``run_ended`` for a run whose end nobody saw."""
    return {
        "run": number,
        "status": RunStatus.ABORTED.value,
        "started_at": None,
        "ended_at": to_iso(ended_at),
        "duration_ms": None,
        "kernel_restarted": False,
        "notices": [notice],
        "files": [],
        "late": [],
        "outputs": [],
        "folded": folded_data(Folded()),
    }


def amended_data(before: Run, after: Run, *, late: Sequence[int], reason: str) -> JSON:
    """Data of ``run_amended``: the outputs of ``after`` that ``before`` does not have the same."""
    old, new = before.folded.outputs, after.folded.outputs
    changes = [
        [index, output] for index, output in enumerate(new) if index >= len(old) or old[index] != output
    ]
    return {
        "run": after.number,
        "reason": reason,
        "late": list(late),
        "count": len(new),
        "changes": changes,
        "folded": folded_data(after.folded),
    }


def folded_data(folded: Folded) -> JSON:
    """A `Folded` without its outputs and without what they tell anyhow."""
    derived = _derive(folded.outputs)
    data: JSON = {
        "execution_count": folded.execution_count,
        "truncated": folded.truncated,
        "dropped_bytes": folded.dropped_bytes,
        "notices": list(folded.notices),
    }
    for name in ("stdout", "stderr", "result"):
        if getattr(folded, name) != getattr(derived, name):
            data[name] = getattr(folded, name)
    error = folded.error
    if error is not None and derived.error is not None and replace(error, line=None) == derived.error:
        data["line"] = error.line
    else:
        data["error"] = error.as_json() if error else None
    return data


def _folded_from(data: Mapping[str, Any], outputs: Iterable[JSON]) -> Folded:
    derived = _derive(tuple(outputs))
    if "error" in data:
        value = data["error"]
        error = RunError(**{**value, "traceback": tuple(value["traceback"])}) if value else None
    else:
        error = replace(derived.error, line=data["line"]) if derived.error else None
    return replace(
        derived,
        stdout=data.get("stdout", derived.stdout),
        stderr=data.get("stderr", derived.stderr),
        result=data.get("result", derived.result),
        error=error,
        execution_count=data["execution_count"],
        truncated=data["truncated"],
        dropped_bytes=data["dropped_bytes"],
        notices=tuple(data["notices"]),
    )


def _plain(text: Any) -> str:
    return _ANSI.sub("", text) if isinstance(text, str) else ""


def _derive(outputs: Sequence[JSON]) -> Folded:
    """What outputs that no limit has cut say about the rest of a `Folded`."""
    texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
    result: str | None = None
    error: RunError | None = None
    for output in outputs:
        kind = output.get("output_type")
        if kind == "stream" and output.get("name") in texts:
            texts[output["name"]].append(_plain(output.get("text")))
        elif kind == "execute_result":
            data = output.get("data")
            text = data.get("text/plain") if isinstance(data, dict) else None
            result = _plain(text) if isinstance(text, str) else None
        elif kind == "error":
            lines = output.get("traceback")
            traceback = tuple(map(_plain, lines)) if isinstance(lines, list) else ()
            error = RunError(_plain(output.get("ename")), _plain(output.get("evalue")), traceback)
    return Folded(
        outputs=tuple(outputs),
        stdout="".join(texts["stdout"]),
        stderr="".join(texts["stderr"]),
        result=result,
        error=error,
    )


def rebuild(
    info: SessionInfo,
    accepted: Mapping[str, Any],
    ended: Mapping[str, Any] | None,
    amendments: Iterable[Mapping[str, Any]] = (),
    *,
    unended: RunStatus = RunStatus.RUNNING,
) -> RecordedRun:
    """The run that its entries' data tell; ``unended`` is its status while it has no end.

    Raises KeyError, TypeError or ValueError for data that this module did not write.
    """
    created_at = from_iso(accepted["created_at"])
    if created_at is None:
        raise ValueError("created_at")
    run = Run(
        id=run_id_of(info.id, accepted["run"]),
        session_id=info.id,
        owner_id=accepted["owner_id"],
        status=unended,
        code=accepted["code"],
        created_at=created_at,
        timeout=accepted["timeout"],
        tool_call_id=accepted["tool_call_id"],
    )
    if ended is None:
        return RecordedRun(run)
    outputs, folded, late = list(ended["outputs"]), ended["folded"], ended["late"]
    for amendment in amendments:
        outputs, folded, late = _amend(outputs, amendment), amendment["folded"], amendment["late"]
    run = replace(
        run,
        status=RunStatus(ended["status"]),
        started_at=from_iso(ended["started_at"]),
        ended_at=from_iso(ended["ended_at"]),
        duration_ms=ended["duration_ms"],
        folded=_folded_from(folded, outputs),
        files=tuple(FileChange(**file) for file in ended["files"]),
        kernel_restarted=ended["kernel_restarted"],
        notices=tuple(ended["notices"]),
    )
    return RecordedRun(run, tuple(late))


def _amend(outputs: list[JSON], amendment: Mapping[str, Any]) -> list[JSON]:
    amended = outputs[: amendment["count"]]
    for index, output in amendment["changes"]:
        amended[index : index + 1] = [output]
    return amended
