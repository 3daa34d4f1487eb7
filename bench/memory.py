"""Memory: what floods of output cost the service, and what it needs when it is idle."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.report import Row
from bench.service import Service

FLOODS = {
    "200 MB in one print loop": "for _ in range(2000): print('x' * 100_000)",
    "a million small prints": "for i in range(1_000_000): print(i)",
    "one line of 100 MB": "print('x' * 100_000_000)",
    "5,000 displays": "for i in range(5000): display(i)",
    "a figure of 60 MB": "from IPython.display import Image; display(Image(bytes(60_000_000), format='png'))",
    "JSON of 10 MB in small values": "from IPython.display import JSON; display(JSON([{} for _ in range(2_500_000)]))",
    "JSON of 100,000 points": "from IPython.display import JSON; display(JSON([i / 3 for i in range(200_000)]))",
}
LARGE_RUNS = 25
LARGE_RUN = "from IPython.display import HTML; display(HTML('x' * 8_000_000))"
ENDLESS = "while True: print('endless')"


def floods(service: Service) -> list[Row]:
    """The most that the service's resident memory grew while a session printed, in MB."""
    client = service.client()
    session_id = client.new_session()
    client.run(session_id, "1+1")
    rows = []
    for name, code in {**FLOODS, "an endless loop of prints, 5 s": ENDLESS}.items():
        with _peak(service) as peak:
            run = client.run(session_id, code, timeout=5 if code is ENDLESS else 120)
        if client.run(session_id, "1+1")["result"] != "2":
            raise RuntimeError(f"the run after {name!r} failed")
        rows.append(Row(f"memory growth: {name}", f"service, {run['status']}", peak(), "MB", 1))
    client.delete(session_id)
    return rows + _reading(service)


def _reading(service: Service) -> list[Row]:
    """The same while a session of 200 MB is read."""
    client = service.client()
    session_id = client.new_session()
    for _ in range(LARGE_RUNS):
        client.run(session_id, LARGE_RUN)
    reads = {
        "the list of runs": (f"/v1/sessions/{session_id}/runs?limit=100", "*/*"),
        "the notebook": (f"/v1/notebooks/{session_id}", "*/*"),
        "the page": (f"/v1/notebooks/{session_id}", "text/html"),
    }
    rows = []
    for name, (path, accept) in reads.items():
        with _peak(service) as peak:
            client.drain(path, accept)
        rows.append(Row(f"memory growth: {name} of 25 runs of 8 MB", "service", peak(), "MB", 1))
    client.delete(session_id)
    return rows


@contextmanager
def _peak(service: Service) -> Iterator[Callable[[], float]]:
    """Sample the service's memory meanwhile; the growth of its peak over the start."""
    before = service.memory()[0]
    highest = before
    done = threading.Event()

    def sample() -> None:
        nonlocal highest
        while not done.wait(0.01):
            highest = max(highest, service.process.memory_info().rss / 1e6)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield lambda: highest - before
    finally:
        done.set()
        thread.join()


def idle(service: Service, sessions: int) -> list[Row]:
    """Memory of service and gateway without sessions, and what each idle session adds to them."""
    before = service.memory()
    client = service.client()
    begin = time.perf_counter()
    ids = [client.new_session() for _ in range(sessions)]
    seconds = time.perf_counter() - begin
    after = service.memory()
    for session_id in ids:
        client.delete(session_id)
    rows = [Row("start to ready", "service with its gateway", service.seconds_to_ready, "s", 1)]
    for part, first, last in zip(("service", "gateway"), before, after, strict=True):
        rows.append(Row("idle memory", part, first, "MB", 1))
        rows.append(Row("memory per idle session", part, (last - first) * 1000 / sessions, "kB", sessions))
    rows.append(Row("sessions started one after another", "service", sessions / seconds, "1/s", sessions))
    return rows
