"""The nouns of the service as frozen values. Pure: no I/O, no clock.

Times are aware UTC datetimes, durations are seconds, sizes are bytes, ids are opaque strings.
"""

import re
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

JSON = dict[str, Any]

_ID_ALPHABET = string.ascii_letters + string.digits
_ID_LENGTH = 21  # 125 bits; the length that code-API clients check for
_RUN_ID = re.compile(rf"run_([A-Za-z0-9]{{{_ID_LENGTH}}})_([1-9][0-9]{{0,9}})")


def new_id() -> str:
    """An unguessable id: 21 letters and digits."""
    number = secrets.randbits(192)  # so many more bits than needed that every id is as likely
    letters = []
    for _ in range(_ID_LENGTH):
        number, place = divmod(number, len(_ID_ALPHABET))
        letters.append(_ID_ALPHABET[place])
    return "".join(letters)


def is_id(text: str) -> bool:
    """Whether ``text`` has the form of a session id (and so is safe as a file name)."""
    return len(text) == _ID_LENGTH and text.isascii() and text.isalnum()


def run_id_of(session_id: str, number: int) -> str:
    """The id of the ``number``-th run (from 1) of a session.

    It holds the session's unguessable id, so a run is found without an index.
    """
    return f"run_{session_id}_{number}"


def parse_run_id(run_id: str) -> tuple[str, int] | None:
    """``(session_id, number)`` of a run id, None when it has not the form of one."""
    match = _RUN_ID.fullmatch(run_id)
    return (match[1], int(match[2])) if match else None


def to_iso(at: datetime | None) -> str | None:
    """ISO 8601 in UTC with microseconds and a ``Z``; None stays None."""
    if at is None:
        return None
    utc = at if at.tzinfo is UTC else at.astimezone(UTC)
    return utc.isoformat(timespec="microseconds")[: -len("+00:00")] + "Z"


def from_iso(text: str | None) -> datetime | None:
    """The aware datetime of what `to_iso` wrote."""
    return None if text is None else datetime.fromisoformat(text)


class Role(StrEnum):
    """What a token may do: run code, read every record, or all of it."""

    RUN = "run"
    REVIEW = "review"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the token's id and name (never its secret) and its role."""

    token_id: str
    name: str
    role: Role

    @property
    def may_run(self) -> bool:
        return self.role in (Role.RUN, Role.ADMIN)

    @property
    def may_review(self) -> bool:
        return self.role in (Role.REVIEW, Role.ADMIN)

    @property
    def is_admin(self) -> bool:
        return self.role is Role.ADMIN

    def owns(self, owner_id: str) -> bool:
        """Whether sessions and runs of ``owner_id`` may be used: its own, or all for an admin."""
        return self.is_admin or self.token_id == owner_id

    def reads(self, owner_id: str) -> bool:
        """Whether the record of ``owner_id`` may be read."""
        return self.may_review or self.token_id == owner_id


class SessionStatus(StrEnum):
    """What a session is doing."""

    IDLE = "idle"
    BUSY = "busy"
    STARTING = "starting"
    DEAD = "dead"
    EXPIRED = "expired"


class RunStatus(StrEnum):
    """Where a run stands; all but the first two are final."""

    QUEUED = "queued"
    RUNNING = "running"
    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    ABORTED = "aborted"
    KERNEL_DIED = "kernel_died"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in (RunStatus.QUEUED, RunStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class RunError:
    """An exception of user code (or why the kernel died), ANSI codes removed."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()
    line: int | None = None

    def as_json(self) -> JSON:
        return {
            "ename": self.ename,
            "evalue": self.evalue,
            "traceback": list(self.traceback),
            "line": self.line,
        }


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file of the workspace that a run created, modified or deleted."""

    path: str
    size: int
    mime_type: str
    change: str
    url: str

    def as_json(self) -> JSON:
        return {
            "path": self.path,
            "size": self.size,
            "mime_type": self.mime_type,
            "url": self.url,
            "change": self.change,
        }


@dataclass(frozen=True, slots=True)
class Folded:
    """What the outputs of one run come to, under the limits. Made by `outputs.OutputFolder`.

    ``outputs`` are nbformat 4.5 outputs (multi-line values one string, ANSI kept); ``stdout``,
    ``stderr`` and the error have ANSI removed. ``dropped_bytes`` counts what limits cut.
    """

    outputs: tuple[JSON, ...] = ()
    stdout: str = ""
    stderr: str = ""
    result: str | None = None
    error: RunError | None = None
    execution_count: int | None = None
    truncated: bool = False
    dropped_bytes: int = 0
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A validated wish to run code. ``timeout`` in seconds, None for the session's default."""

    code: str
    timeout: float | None = None
    tool_call_id: str | None = None
    background: bool = False
    idempotency_key: str | None = None
    told_at_end: bool = False
    """Whether nobody is told anything of the run before it has ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """One execute request: one cell of the record."""

    id: str
    session_id: str
    owner_id: str
    status: RunStatus
    code: str
    created_at: datetime
    timeout: float
    tool_call_id: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    duration_ms: int | None = None
    folded: Folded = field(default_factory=Folded)
    files: tuple[FileChange, ...] = ()
    kernel_restarted: bool = False
    recorded: bool = True
    notices: tuple[str, ...] = ()
    """Sentences about what the limits or the kernel did to this run, for people and models."""

    @property
    def number(self) -> int:
        """The run's place in its session, from 1."""
        parsed = parse_run_id(self.id)
        return parsed[1] if parsed else 0

    def as_json(self) -> JSON:
        """The run of the REST contract."""
        folded = self.folded
        return {
            "id": self.id,
            "session_id": self.session_id,
            "status": self.status.value,
            "code": self.code,
            "execution_count": folded.execution_count,
            "outputs": list(folded.outputs),
            "stdout": folded.stdout,
            "stderr": folded.stderr,
            "result": folded.result,
            "error": folded.error.as_json() if folded.error else None,
            "files": [f.as_json() for f in self.files],
            "truncated": folded.truncated,
            "dropped_bytes": folded.dropped_bytes,
            "kernel_restarted": self.kernel_restarted,
            "recorded": self.recorded,
            "notices": [*folded.notices, *self.notices],
            "created_at": to_iso(self.created_at),
            "started_at": to_iso(self.started_at),
            "ended_at": to_iso(self.ended_at),
            "duration_ms": self.duration_ms,
            "tool_call_id": self.tool_call_id,
            "notebook_url": notebook_url(self.session_id),
        }


def notebook_url(session_id: str) -> str:
    """The path of a session's notebook, below the service's base URL."""
    return f"/v1/notebooks/{session_id}"


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What a session is from birth to end; the journal's first entry holds it."""

    id: str
    owner_id: str
    owner_name: str
    kernel_name: str
    language: str
    created_at: datetime
    timeout: float
    idle_timeout: float
    network: str | None = None
    one_off: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> JSON:
        """For the journal; `from_json` reads it back."""
        return {
            "id": self.id,
            "owner_id": self.owner_id,
            "owner_name": self.owner_name,
            "kernel_name": self.kernel_name,
            "language": self.language,
            "created_at": to_iso(self.created_at),
            "timeout": self.timeout,
            "idle_timeout": self.idle_timeout,
            "network": self.network,
            "one_off": self.one_off,
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "SessionInfo":
        """The session of a journal's first entry; KeyError when a field is missing."""
        created_at = from_iso(data["created_at"])
        if created_at is None:
            raise KeyError("created_at")
        return cls(**{**data, "created_at": created_at})


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as the REST contract shows it."""

    info: SessionInfo
    status: SessionStatus
    last_activity_at: datetime
    expires_at: datetime
    run_count: int
    sandboxed: bool | None = None
    """None: that is an external gateway's matter."""

    def as_json(self) -> JSON:
        return {
            "id": self.info.id,
            "kernel_name": self.info.kernel_name,
            "status": self.status.value,
            "created_at": to_iso(self.info.created_at),
            "last_activity_at": to_iso(self.last_activity_at),
            "expires_at": to_iso(self.expires_at),
            "run_count": self.run_count,
            "metadata": dict(self.info.metadata),
            "timeout": self.info.timeout,
            "idle_timeout": self.info.idle_timeout,
            "network": self.info.network,
            "sandboxed": self.sandboxed,
            "notebook_url": notebook_url(self.info.id),
        }


def in_seconds(seconds: float) -> str:
    """A duration for people: ``1 second``, ``0.5 seconds``."""
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"
