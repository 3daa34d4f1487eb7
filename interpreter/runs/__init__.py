"""Runs: each one queued, executed under one deadline, and recorded."""

from interpreter.events import RunEvent
from interpreter.runs.active import ActiveRun, RecordedRun
from interpreter.runs.manager import RunManager

__all__ = ["ActiveRun", "RecordedRun", "RunEvent", "RunManager"]
