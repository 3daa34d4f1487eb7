"""Runs a recorded session again, in order, on fresh kernels, to see whether the same comes out."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from interpreter.cli.compare import differences
from interpreter.kernels.gateway import Gateway
from interpreter.kernels.kernel import Kernel
from interpreter.models import JSON, Run, RunStatus
from interpreter.outputs import Bundle, Displays, OutputLimits
from interpreter.record.outcomes import RecordedRun
from interpreter.runs.active import ActiveRun
from interpreter.runs.execute import Outcome, execute
from interpreter.settings import Settings

_STOPPED_FROM_OUTSIDE = (RunStatus.INTERRUPTED, RunStatus.CANCELLED)
_LEAST_TIMEOUT = 1.0  # seconds for a run that somebody stopped


class Comparison(StrEnum):
    """How a run compares with its replay."""

    EQUAL = "equal"
    DIFFERS = "differs"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A recorded run, how its replay ended (None when it was not run) and what differs."""

    run: Run
    status: RunStatus | None
    comparison: Comparison
    diff: tuple[str, ...] = ()
    reason: str = ""

    def as_json(self) -> JSON:
        return {
            "run_id": self.run.id,
            "execution_count": self.run.folded.execution_count,
            "status": self.run.status.value,
            "replayed_status": self.status.value if self.status else None,
            "comparison": self.comparison.value,
            "diff": list(self.diff),
            "reason": self.reason,
        }


class Replay:
    """Replays one session. `run` once; raises GatewayError and the like when no kernel can be had."""

    def __init__(self, gateway: Gateway, kernel_name: str, settings: Settings) -> None:
        self._gateway = gateway
        self._kernel_name = kernel_name
        self._settings = settings
        self._limits = OutputLimits(
            max_output_bytes=settings.max_output_bytes,
            max_mime_bytes=settings.max_mime_bytes,
            max_display_bytes=settings.max_display_bytes,
            max_outputs=settings.max_outputs,
        )
        self._displays = Displays()
        self._kernel: Kernel | None = None
        self._actives: dict[str, ActiveRun] = {}

    async def run(self, recorded: Sequence[RecordedRun]) -> list[ReplayedRun]:
        """All runs in their order, then compared: a later run may change what an earlier one shows."""
        statuses: dict[str, RunStatus] = {}
        last_count = 0
        try:
            for item in recorded:
                if item.run.started_at is None:
                    continue
                count = item.run.folded.execution_count
                if count is not None and count < last_count:
                    await self._end_kernel()  # the session's kernel was restarted here
                last_count = last_count if count is None else count
                statuses[item.run.id] = await self._replay(item.run)
        finally:
            await self._end_kernel()
        return [self._compare(item, statuses) for item in recorded]

    async def _replay(self, run: Run) -> RunStatus:
        if self._kernel is None:
            self._displays.clear()
            self._kernel = await Kernel.start(
                self._gateway, self._kernel_name, timeout=self._settings.kernel_start_timeout
            )
        active = self._actives[run.id] = ActiveRun(
            replace(run, status=RunStatus.RUNNING),
            self._limits,
            self._displays,
            on_amend=self._amend,
            on_late=lambda _: None,
        )
        timeout = run.timeout
        if run.status in _STOPPED_FROM_OUTSIDE:
            timeout = max(_LEAST_TIMEOUT, (run.duration_ms or 0) / 1000)
        outcome: Outcome = await execute(
            active, self._kernel, timeout=timeout, grace=self._settings.interrupt_grace
        )
        active.folder.close()
        active.complete(replace(run, status=outcome.status, ended_at=datetime.now(UTC)))
        if outcome.death is not None or outcome.kernel_is_stuck:
            await self._end_kernel()
        return outcome.status

    def _amend(self, run_id: str, index: int, bundle: Bundle) -> None:
        self._actives[run_id].folder.amend(index, bundle)

    def _compare(self, item: RecordedRun, statuses: Mapping[str, RunStatus]) -> ReplayedRun:
        run, status = item.run, statuses.get(item.run.id)
        if status is None:
            return ReplayedRun(run, None, Comparison.SKIPPED, reason="it never ran")
        if run.status in _STOPPED_FROM_OUTSIDE:
            return ReplayedRun(run, status, Comparison.SKIPPED, reason=f"it was {run.status.value}")
        folder = self._actives[run.id].folder
        before = _without(run.folded.outputs, item.late)
        after = _without(folder.folded().outputs, folder.late_indexes)
        diff = differences(before, after)
        if status is not run.status:
            diff = [f"status: recorded {run.status.value}, replayed {status.value}", *diff]
        return ReplayedRun(run, status, Comparison.DIFFERS if diff else Comparison.EQUAL, tuple(diff))

    async def _end_kernel(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            await asyncio.shield(kernel.shutdown())


def _without(outputs: Sequence[Any], late: Sequence[int]) -> list[Any]:
    """Outputs that came while the run went on; when late ones come is chance."""
    left_out = set(late)
    return [output for index, output in enumerate(outputs) if index not in left_out]
