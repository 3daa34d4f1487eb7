"""What the handlers work with: built once by the application, handed to every handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry

from ..settings import Settings
from ..tokens import TokenStore

if TYPE_CHECKING:
    from ..record import Recorder
    from ..runs import RunManager
    from ..sessions import Session, SessionManager
    from ..workspace import Files, Upload

Check = Callable[[], Awaitable[tuple[bool, str]]]
"""Looks at one part of the service: whether it is ready, and a sentence about it."""


class SessionFiles(Protocol):
    """Where the files of sessions are: on a disk of ours, or reached through their kernels."""

    def files(self, session: Session) -> Files:
        """The files of a session."""

    async def begin_upload(self, session: Session) -> Upload:
        """An upload of one file to a session. Raises NotFoundError, UnavailableError."""


@dataclass(frozen=True, slots=True)
class Services:
    """Everything below the handlers. ``readiness`` maps a part's name to its check."""

    settings: Settings
    tokens: TokenStore
    sessions: SessionManager
    runs: RunManager
    recorder: Recorder
    workspaces: SessionFiles
    readiness: Mapping[str, Check]
    registry: CollectorRegistry
    clock: Callable[[], datetime]
