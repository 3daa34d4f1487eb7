"""What changes in a run after its end: late output, and displays that later runs update."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from interpreter.kernels.background import Background
from interpreter.models import JSON, Folded, Run, parse_run_id
from interpreter.outputs import Bundle, strip_ansi
from interpreter.record import Recorder
from interpreter.runs.active import ActiveRun

FIRST_DELAY = 0.5  # seconds between a change and its recording
MAX_DELAY = 60.0  # seconds between two recordings of a run's late output, at the most

Change = tuple[JSON, JSON]
"""Data and metadata that take the place of a display's."""


class Amendments:
    """Collects changes of ended runs and puts them on record, soon at first, then less and less often."""

    def __init__(
        self,
        recorder: Recorder,
        background: Background,
        *,
        find: Callable[[str], ActiveRun | None],
    ) -> None:
        self._recorder = recorder
        self._background = background
        self._find = find
        self._recorded: dict[str, dict[int, Change]] = {}
        self._late: set[ActiveRun] = set()
        self._updated: set[ActiveRun] = set()
        """Those in ``_late`` of which a later run has updated a display."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def late(self, active: ActiveRun) -> None:
        """An ended run that is in memory has new output."""
        if self._closed or active in self._late:
            return
        self._late.add(active)
        loop = asyncio.get_running_loop()
        active.late_delay = min(max(active.late_delay * 2, FIRST_DELAY), MAX_DELAY)
        active.late_timer = loop.call_later(active.late_delay, self._record_late, active)

    def update_display(self, run_id: str, index: int, bundle: Bundle) -> None:
        """An update of a display that an earlier run made."""
        active = self._find(run_id)
        if active is not None:
            active.folder.amend(index, bundle)
            if active.finished:
                self._updated.add(active)
                self.late(active)
        elif not self._closed:
            self._recorded.setdefault(run_id, {})[index] = (bundle.data, bundle.metadata)
            if run_id not in self._timers:
                loop = asyncio.get_running_loop()
                self._timers[run_id] = loop.call_later(FIRST_DELAY, self._record_changes, run_id)

    async def record_updates(self, session_id: str) -> None:
        """Hand the updates of displays that the session's runs have made to the record.

        Called before a run's end is recorded, so that they are on disk with it.
        """
        writing = [
            self._record_late(active) for active in list(self._updated) if active.run.session_id == session_id
        ]
        changed = [run_id for run_id in self._timers if (parse_run_id(run_id) or ("",))[0] == session_id]
        writing += [self._record_changes(run_id) for run_id in changed]
        if tasks := [task for task in writing if task is not None]:
            await asyncio.wait(tasks)

    def flush(self) -> None:
        """Record at once what waits; nothing is taken any more."""
        self._closed = True
        for active in list(self._late):
            self._record_late(active)
        for run_id in list(self._timers):
            self._record_changes(run_id)

    def _record_late(self, active: ActiveRun) -> "asyncio.Task[None] | None":
        run = active.snapshot()
        self._late.discard(active)
        self._updated.discard(active)
        if active.late_timer is not None:
            active.late_timer.cancel()
            active.late_timer = None
        if run == active.run:
            return None
        active.run = run
        late = active.folder.late_indexes
        return self._background.spawn(
            self._recorder.amend_run(run, late=late, reason="its outputs changed after its end")
        )

    def _record_changes(self, run_id: str) -> "asyncio.Task[None]":
        self._timers.pop(run_id).cancel()
        return self._background.spawn(self._amend_recorded(run_id, self._recorded.pop(run_id)))

    async def _amend_recorded(self, run_id: str, changes: dict[int, Change]) -> None:
        recorded = await self._recorder.get_recorded(run_id)
        if recorded is not None:
            amended = with_displays(recorded.run, changes)
            await self._recorder.amend_run(
                amended, late=recorded.late, reason="a later run updated a display"
            )


def with_displays(run: Run, changes: dict[int, Change]) -> Run:
    """The run with other contents of some of its displays."""
    outputs = list(run.folded.outputs)
    for index, (data, metadata) in changes.items():
        if 0 <= index < len(outputs) and "data" in outputs[index]:
            outputs[index] = {**outputs[index], "data": data, "metadata": metadata}
    return replace(run, folded=_with_outputs(run.folded, outputs))


def _with_outputs(folded: Folded, outputs: list[JSON]) -> Folded:
    results = [output["data"] for output in outputs if output.get("output_type") == "execute_result"]
    text = results[-1].get("text/plain") if results else None
    result = strip_ansi(text) if isinstance(text, str) else folded.result
    return replace(folded, outputs=tuple(outputs), result=result)
