"""Whether short work with files may be done on the event loop: a thread costs more than the work itself."""

import os
import threading
import time
from contextlib import suppress

SECONDS = 0.05  # what is short and waits longer has met a disk that is busy …
PAUSE = 10.0  # … so for so many seconds none is done on the event loop
_CLEARLY_LESS = 0.2
_WEIGHT = 1 / 16  # of the latest in the mean, in which it is …
_MOST = 4  # … no more than so many times the limit: a disk is seldom always quick


class Quickness:
    """Of one disk. Each piece of work is timed as ``with quickness:``, on one thread and not nested.

    Lost for a while when one waited for more than `SECONDS`, or all of late more than ``mean`` seconds each. To wait
    for the processor does not count: on a busy machine that takes long, whatever the disk. To tell the two apart is
    dear, so it is done only for what comes after one that took long by the clock.
    """

    def __init__(self, mean: float = SECONDS) -> None:
        self._limit = mean
        self._mean = self._slow_until = self._begin = 0.0
        self._doubted = False

    def __bool__(self) -> bool:
        return time.monotonic() >= self._slow_until

    def __enter__(self) -> None:
        self._begin = _asleep() if self._doubted else time.monotonic()

    def __exit__(self, *_: object) -> None:
        waited = (_asleep() if self._doubted else time.monotonic()) - self._begin
        if waited <= self._limit * _CLEARLY_LESS:
            self._doubted = False
        elif not self._doubted:
            self._doubted = True
            return
        self._mean += (min(waited, _MOST * self._limit) - self._mean) * _WEIGHT
        if waited > SECONDS or self._mean > self._limit:
            self._slow_until, self._mean = time.monotonic() + PAUSE, 0.0


class _Turns(threading.local):
    """How long this thread could run and had no processor; the kernel's Documentation/scheduler/sched-stats.rst."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):  # not on every system
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def waited(self) -> float:
        return int(os.pread(self._file, 64, 0).split()[1]) / 1e9 if self._file >= 0 else 0.0


_turns = _Turns()


def _asleep() -> float:
    """Seconds that this thread neither ran nor waited for a processor; only differences mean something."""
    return time.monotonic() - time.thread_time() - _turns.waited()
