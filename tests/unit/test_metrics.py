"""What Prometheus is told."""

from prometheus_client import CollectorRegistry, generate_latest

from interpreter.metrics import Metrics


async def test_it_tells_how_many_sessions_live_and_how_many_kernels_wait_for_some() -> None:
    registry = CollectorRegistry()
    Metrics(registry, live_sessions=lambda: 3, ready_kernels=lambda: 2)
    lines = generate_latest(registry).decode().splitlines()
    assert {"interpreter_sessions 3.0", "interpreter_pool_kernels 2.0"} <= set(lines)
