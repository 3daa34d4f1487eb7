"""What Prometheus can ask about runs and sessions."""

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from interpreter.models import Run

log = logging.getLogger("interpreter.runs")

_DURATIONS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Metrics:
    """Counters of the runs, by status; and one canonical log line for each, without code or output."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        live_sessions: Callable[[], int],
        ready_kernels: Callable[[], int],
    ) -> None:
        self._runs = Counter("interpreter_runs", "Runs that have ended", ["status"], registry=registry)
        self._seconds = Histogram(
            "interpreter_run_duration_seconds",
            "Duration of the runs",
            buckets=_DURATIONS,
            registry=registry,
        )
        self._dropped = Counter(
            "interpreter_dropped_output_bytes", "Output that limits cut", registry=registry
        )
        sessions = Gauge("interpreter_sessions", "Sessions that are alive", registry=registry)
        sessions.set_function(live_sessions)
        ready = Gauge(
            "interpreter_pool_kernels", "Kernels of the warm pool that are ready", registry=registry
        )
        ready.set_function(ready_kernels)
        tasks = Gauge("interpreter_tasks", "Tasks of the event loop that have not ended", registry=registry)
        tasks.set_function(_count_tasks)

    def observe_run(self, run: Run) -> None:
        """Count a run that has ended."""
        self._runs.labels(run.status.value).inc()
        self._seconds.observe((run.duration_ms or 0) / 1000)
        self._dropped.inc(run.folded.dropped_bytes)
        log.info(
            "run id=%s session=%s token=%s status=%s ms=%s outputs=%d dropped_bytes=%d recorded=%s",
            run.id,
            run.session_id,
            run.owner_id,
            run.status.value,
            run.duration_ms,
            len(run.folded.outputs),
            run.folded.dropped_bytes,
            str(run.recorded).lower(),
        )


def _count_tasks() -> int:
    """Called by the handler of ``/metrics``, on the loop that runs the service."""
    return len(asyncio.all_tasks())
