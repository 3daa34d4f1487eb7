"""The code of a session's successful runs executed again, to bring back what its kernel knew."""

from dataclasses import dataclass

from interpreter.kernels.kernel import Kernel
from interpreter.models import RunStatus, run_id_of
from interpreter.outputs import Displays, OutputLimits
from interpreter.record import Recorder
from interpreter.runs.active import ActiveRun
from interpreter.runs.execute import Outcome, execute
from interpreter.runs.lanes import Lane
from interpreter.settings import Settings


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay came to.

    ``run_ids`` succeeded again; ``failed_run_id`` is the one at which it stopped, None when it reached
    the end. ``kernel_lost``: that run ended the kernel or would not stop, so nothing is left of it all.
    """

    run_ids: tuple[str, ...]
    failed_run_id: str | None
    sentence: str
    kernel_lost: bool = False


async def replay(
    lane: Lane, kernel: Kernel, recorder: Recorder, limits: OutputLimits, settings: Settings
) -> Replayed:
    """Execute them in order, each under its own timeout, up to the first that does not succeed.

    The caller has ``lane.turn``. Nothing is recorded, and what the code prints is dropped.
    """
    done: list[str] = []
    for number in range(1, lane.session.run_count + 1):
        run = await recorder.get_program(run_id_of(lane.session.id, number))
        if run is None:
            continue
        again = ActiveRun(run, limits, Displays(), on_amend=_ignore, on_late=_ignore)
        if lane.stop is not None:
            again.request_stop(lane.stop)
        lane.current = again
        try:
            outcome = await execute(again, kernel, timeout=run.timeout, grace=settings.interrupt_grace)
        finally:
            lane.current = None
            again.folder.close()
            again.complete(again.run)
        if outcome.status is not RunStatus.OK:
            return _stopped_at(done, run.id, again, outcome)
        done.append(run.id)
    return Replayed(
        tuple(done),
        None,
        f"The kernel is a fresh one, on which the code of {_runs(len(done))} was executed again.",
    )


def _stopped_at(done: list[str], run_id: str, again: ActiveRun, outcome: Outcome) -> Replayed:
    error = again.folder.folded().error
    why = f"{error.ename}: {error.evalue}" if error else " ".join(outcome.notices) or outcome.status.value
    number = run_id.rpartition("_")[2]
    if outcome.lost:
        kept = "so its state is empty"
    else:
        kept = f"on which the code of {_runs(len(done))} was executed again"
    sentence = f"The kernel is a fresh one, {kept}; the replay stopped at run {number} ({why})."
    return Replayed(tuple(done), run_id, sentence, kernel_lost=outcome.lost)


def _runs(count: int) -> str:
    return "1 earlier run" if count == 1 else f"{count} earlier runs"


def _ignore(*_: object) -> None:
    """What a replayed run changes elsewhere is not kept."""
