"""Programs that wait for the results of the client's tools."""

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from interpreter.errors import NotFoundError
from interpreter.frontends.languages import Language
from interpreter.frontends.librechat.conversations import Prepared
from interpreter.frontends.librechat.requests import ExecRequest
from interpreter.models import new_id

if TYPE_CHECKING:
    from interpreter.runs import ActiveRun, RecordedRun

_MAX_WAITING = 1000
_FORGOTTEN = 60.0  # seconds after which a program gives way to other code of its session


@dataclass(slots=True)
class Program:
    """Code that runs, or waits for the results of tools. ``limit`` in seconds, for one stretch of it."""

    active: "ActiveRun | RecordedRun"
    request: ExecRequest
    language: Language
    prepared: Prepared
    folder: str
    limit: float
    seen: int = 0
    batches: int = 0


@dataclass(frozen=True, slots=True)
class _Waiting:
    owner_id: str
    program: Program
    since: float


class Programs:
    """The programs that wait, by their continuation token."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()

    def put(self, owner_id: str, program: Program) -> str:
        """The token with which the owner gets it back, once."""
        token = new_id()
        self._waiting[token] = _Waiting(owner_id, program, time.monotonic())
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.popitem(last=False)  # its code gives up after a while
        return token

    def take(self, owner_id: str, token: str) -> Program:
        """Raises NotFoundError."""
        waiting = self._waiting.get(token)
        if waiting is None or waiting.owner_id != owner_id:
            raise NotFoundError("There is no program with this continuation_token.")
        del self._waiting[token]
        return waiting.program

    def until_forgotten(self, session_id: str) -> float | None:
        """Seconds until `take_forgotten` gives a program of the session; None when none waits there."""
        begun = [w.since for w in self._waiting.values() if w.program.prepared.session.id == session_id]
        return max(0.0, min(begun) + _FORGOTTEN - time.monotonic()) if begun else None

    def take_forgotten(self, session_id: str) -> list[Program]:
        """The programs of a session whose client has not come back for a while."""
        now = time.monotonic()
        tokens = [
            token
            for token, waiting in self._waiting.items()
            if waiting.program.prepared.session.id == session_id and now - waiting.since >= _FORGOTTEN
        ]
        return [self._waiting.pop(token).program for token in tokens]
