"""Whether short work with files may be done on the event loop: a thread costs more than the work itself."""

import time
from resource import RUSAGE_THREAD, getrusage

SECONDS = 0.05  # what is short and takes longer has met a disk that is busy …
PAUSE = 10.0  # … so for so many seconds none is done on the event loop
_WEIGHT = 1 / 16  # of the latest in the mean


class Quickness:
    """Of one disk. Each piece of work is timed as ``with quickness:``, on one thread and not nested.

    Lost for a while when one took more than `SECONDS`, or all of late more than ``mean`` seconds each.
    """

    def __init__(self, mean: float = SECONDS) -> None:
        self._limit = mean
        self._mean = self._slow_until = self._begin = 0.0
        self._waits = 0

    def __bool__(self) -> bool:
        return time.monotonic() >= self._slow_until

    def __enter__(self) -> None:
        self._waits = getrusage(RUSAGE_THREAD).ru_nvcsw
        self._begin = time.monotonic()

    def __exit__(self, *_: object) -> None:
        end = time.monotonic()
        if getrusage(RUSAGE_THREAD).ru_nvcsw == self._waits:
            return  # a thread that only lost the processor to others has not waited for a disk
        spent = end - self._begin
        self._mean += (spent - self._mean) * _WEIGHT
        if spent > SECONDS or self._mean > self._limit:
            self._slow_until, self._mean = end + PAUSE, 0.0
