"""What a process holds: memory while something happens, descriptors, threads, children."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

MIB = 1024**2


@contextmanager
def peak_growth(pid: int) -> Iterator[Callable[[], int]]:
    """Sample the resident memory of a process meanwhile; bytes that its peak lies above the start."""
    process = psutil.Process(pid)
    start = highest = process.memory_info().rss
    done = threading.Event()

    def sample() -> None:
        nonlocal highest
        while not done.wait(0.01):
            highest = max(highest, process.memory_info().rss)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield lambda: highest - start
    finally:
        done.set()
        thread.join()


def eventually(claim: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether the claim came true within the time."""
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
