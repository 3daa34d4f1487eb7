"""Runs: each one queued, executed under one deadline, and recorded."""

from interpreter.events import RunEvent
from interpreter.runs.active import ActiveRun, RecordedRun
from interpreter.runs.manager import RunManager
from interpreter.runs.replay import Replayed

__all__ = ["ActiveRun", "RecordedRun", "Replayed", "RunEvent", "RunManager"]
