"""What is kept in memory of a journal: where its entries are, never what they hold. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from interpreter.models import JSON, RunStatus, SessionInfo, from_iso, notebook_url, to_iso
from interpreter.record.entries import (
    KERNEL_NOTED,
    RUN_ACCEPTED,
    RUN_AMENDED,
    RUN_ENDED,
    SESSION_ENDED,
    SESSION_STARTED,
    Entry,
)


@dataclass(frozen=True, slots=True)
class KernelNote:
    """The last thing that was noted about a session's kernel."""

    event: str
    detail: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What the record knows of a session, without its runs.

    ``ended_reason`` is None while the session is open, ``"damaged"`` when its journal can't be continued.
    ``statuses`` counts the ended runs by status; ``run_count`` counts the accepted ones. The next run's
    number must be above ``last_number``, which is more than ``run_count`` when a number was never used.
    """

    info: SessionInfo
    path: Path
    run_count: int
    statuses: Mapping[str, int]
    last_activity_at: datetime
    ended_at: datetime | None = None
    ended_reason: str | None = None
    kernel_note: KernelNote | None = None
    last_number: int = 0

    @property
    def notebook_path(self) -> Path:
        """Where the rendered notebook is."""
        return self.path.with_suffix(".ipynb")

    def as_json(self) -> JSON:
        """The session in the list of notebooks."""
        return {
            "session_id": self.info.id,
            "owner": {"id": self.info.owner_id, "name": self.info.owner_name},
            "kernel_name": self.info.kernel_name,
            "language": self.info.language,
            "created_at": to_iso(self.info.created_at),
            "last_activity_at": to_iso(self.last_activity_at),
            "ended_at": to_iso(self.ended_at),
            "ended_reason": self.ended_reason,
            "run_count": self.run_count,
            "statuses": dict(self.statuses),
            "one_off": self.info.one_off,
            "metadata": dict(self.info.metadata),
            "notebook_url": notebook_url(self.info.id),
        }


@dataclass(slots=True)
class SessionIndex:
    """Offsets (bytes from the journal's begin) of each run's entries, in the order of acceptance."""

    info: SessionInfo
    entries: int = 0
    mac: bytes = b""
    last_number: int = 0
    order: list[int] = field(default_factory=list)
    position: dict[int, int] = field(default_factory=dict)
    accepted: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    amended: dict[int, list[int]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    unended: dict[int, None] = field(default_factory=dict)
    succeeded: set[int] = field(default_factory=set)
    idempotency: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    last_activity_at: datetime | None = None
    ended_at: datetime | None = None
    ended_reason: str | None = None
    kernel_note: KernelNote | None = None

    def apply(self, entry: Entry, offset: int) -> None:
        """Take in the next entry. Raises KeyError or ValueError when it can't follow the earlier ones."""
        number, data = entry.number, entry.data
        if entry.kind == RUN_ACCEPTED:
            self._accept(number, data, offset)
        elif entry.kind == RUN_ENDED:
            self._end(number, data, offset)
        elif entry.kind == RUN_AMENDED:
            if number is None or number not in self.ended:
                raise ValueError("an amendment of a run that has not ended")
            self.amended.setdefault(number, []).append(offset)
        elif entry.kind == KERNEL_NOTED:
            self.kernel_note = KernelNote(data["event"], data["detail"], entry.at)
        elif entry.kind == SESSION_ENDED:
            self.ended_reason, self.ended_at = data["reason"], entry.at
        elif entry.kind == SESSION_STARTED and self.entries:
            raise ValueError("a second start of the session")
        if number is not None and self.ended_reason is None:
            self.last_activity_at = entry.at
        self.entries, self.mac = entry.seq, entry.mac

    def _accept(self, number: int | None, data: JSON, offset: int) -> None:
        if number is None or number in self.accepted:
            raise ValueError("a run that was accepted before")
        self.position[number] = len(self.order)
        self.order.append(number)
        self.last_number = max(self.last_number, number)
        self.accepted[number] = offset
        self.unended[number] = None
        if data["idempotency_key"] is not None:
            self.idempotency[data["idempotency_key"]] = (number, data["request_hash"])

    def _end(self, number: int | None, data: JSON, offset: int) -> None:
        if number is None or number not in self.unended:
            raise ValueError("an end of a run that does not run")
        self.ended[number] = offset
        self.statuses[data["status"]] += 1
        if data["status"] == RunStatus.OK:
            self.succeeded.add(number)
        del self.unended[number]

    def status_of_unended(self, number: int) -> RunStatus:
        """Runs of a session go first in, first out: the oldest without an end runs, the others wait."""
        if self.ended_reason is not None:
            return RunStatus.ABORTED
        return RunStatus.RUNNING if next(iter(self.unended), None) == number else RunStatus.QUEUED

    def summary(self) -> JSON:
        """What the entry of the session's end repeats, so that a start need not read the whole journal."""
        return {
            "runs": len(self.order),
            "last_number": self.last_number,
            "statuses": dict(sorted(self.statuses.items())),
            "last_activity_at": to_iso(self.last_activity_at or self.info.created_at),
        }

    def record(self, path: Path) -> SessionRecord:
        """The session as others see it."""
        return SessionRecord(
            info=self.info,
            path=path,
            run_count=len(self.order),
            statuses=dict(self.statuses),
            last_activity_at=self.last_activity_at or self.info.created_at,
            ended_at=self.ended_at,
            ended_reason=self.ended_reason,
            kernel_note=self.kernel_note,
            last_number=self.last_number,
        )


def start_index(entry: Entry) -> SessionIndex:
    """The index of a journal whose first entry is ``entry``; raises KeyError, TypeError or ValueError."""
    if entry.kind != SESSION_STARTED:
        raise ValueError("a journal that does not begin with its session")
    index = SessionIndex(SessionInfo.from_json(entry.data["session"]))
    index.apply(entry, 0)
    return index


def ended_record(first: Entry, last: Entry, path: Path) -> SessionRecord:
    """The session of a journal that has ended, from its first and last entry.

    Raises KeyError, TypeError or ValueError when they are not a session's start and end.
    """
    if first.kind != SESSION_STARTED or last.kind != SESSION_ENDED:
        raise ValueError("not a journal that has ended")
    info, data = SessionInfo.from_json(first.data["session"]), last.data
    return SessionRecord(
        info=info,
        path=path,
        run_count=data["runs"],
        statuses=data["statuses"],
        last_activity_at=from_iso(data["last_activity_at"]) or info.created_at,
        ended_at=last.at,
        ended_reason=data["reason"],
        last_number=data["last_number"],
    )
