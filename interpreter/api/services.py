"""What the handlers work with: built once by the application, handed to every handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from interpreter.kernels.isolation import EXTERNAL, Isolation
from interpreter.settings import Settings
from interpreter.tokens import TokenStore

if TYPE_CHECKING:
    from interpreter.kernel_files import SessionFiles
    from interpreter.record import Recorder
    from interpreter.runs import RunManager
    from interpreter.sessions import SessionManager

Check = Callable[[], Awaitable[tuple[bool, str]]]
"""Looks at one part of the service: whether it is ready, and a sentence about it."""


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
    isolation: Isolation = EXTERNAL
