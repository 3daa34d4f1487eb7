"""Files that a count missed, since somebody moved them while it was under way.

A walk may never meet a folder that is moved again and again. But the disk tells what it has lost. When more of it has
gone than was found, and that could be too much for the sandbox, its files are counted once more while its processes
stand still.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from interpreter.gateway_extension.sandbox import tracing
from interpreter.gateway_extension.sandbox.pace import SMALLEST_STEP, Amounts
from interpreter.gateway_extension.sandbox.workspace import Usage

# Seconds for which its processes may not be brought to stand still (on a busy machine that takes long). Then what the
# disk has lost counts as the sandbox's, unless a count finds everything in its place. Nor is that believed when they
# did not stand still though there was the longest time for it: it is they who work on, and nothing else of theirs.
PATIENCE = 5.0
LONGEST_TIME = 8 * tracing.TIME_TO_STOP


class UnseenFiles:
    """Of one sandbox. ``count`` tells what its workspace holds, ``free`` what its disk has left.

    ``roots``: its first process, and others that are no descendants of that.
    """

    def __init__(
        self,
        limit: Amounts,
        count: Callable[[], Usage],
        free: Callable[[], Amounts],
        roots: Callable[[], Sequence[int]],
    ) -> None:
        self._limit = limit
        self._count = count
        self._free = free
        self._roots = roots
        self._base: Amounts | None = None  # the lowest level since the last sure count
        self._unsure_since: float | None = None
        self._time = tracing.TIME_TO_STOP  # for the next attempt
        self._hold_out = False  # in the longest time, too
        self.unseen: Amounts = (0, 0)  # at the last check: what there may be that was not found
        self.seconds = 0.0  # for which it had them stand still

    def check(self, found: Usage, free: Amounts) -> Usage:
        """What there is, if there could be more than was ``found`` and too much; ``free`` was asked before.

        Blocks for as long as the processes need to stand still, and for a count.
        """
        self.seconds, level = 0.0, _level(found, free)
        self._base = _smaller(self._base or level, level)
        self.unseen = unseen = _minus(level, self._base)
        if not _exceeds(unseen, self._room(found)):
            self._unsure_since = None
            return found
        if (sure := self._count_standing()) is not None:
            self._unsure_since, self._hold_out, self._time = None, False, tracing.TIME_TO_STOP
            return sure
        now = time.monotonic()
        self._unsure_since = self._unsure_since or now
        if (found.steady and not self._hold_out) or now - self._unsure_since < PATIENCE:
            return found
        return replace(found, size=found.size + unseen[0], files=found.files + unseen[1])

    def _room(self, found: Usage) -> Amounts:
        """How much there may be that was not found; above the limit still a little, as others write to the disk, too."""
        size, files = self._limit
        return max(size - found.size, size // SMALLEST_STEP), max(files - found.files, files // SMALLEST_STEP)

    def _count_standing(self) -> Usage | None:
        """None: they can't be stopped now."""
        counted: list[tuple[Usage, Amounts]] = []

        def count() -> None:
            try:
                with tracing.stopped(self._roots, self._time):
                    free = self._free()
                    sure = self._count()
                counted.append((sure, free))
            except TimeoutError:
                self._hold_out = self._time == LONGEST_TIME
                self._time = min(2 * self._time, LONGEST_TIME)
            except OSError:
                pass  # the system does not let us

        started = time.monotonic()
        thread = threading.Thread(target=count, name="sandbox-count", daemon=True)
        thread.start()  # one of its own: only with its end the system lets go of all that it stopped
        thread.join()
        self.seconds = time.monotonic() - started
        if not counted:
            return None
        sure, free = counted[0]
        self._base, self.unseen = _level(sure, free), (0, 0)
        return sure


def _used(usage: Usage) -> Amounts:
    return usage.size, usage.files


def _level(found: Usage, free: Amounts) -> Amounts:
    """What the disk has lost, to whomever, but for what was found. (A number below zero, of no meaning by itself.)"""
    return _minus((0, 0), _plus(free, _used(found)))


def _plus(one: Amounts, other: Amounts) -> Amounts:
    return one[0] + other[0], one[1] + other[1]


def _minus(one: Amounts, other: Amounts) -> Amounts:
    return one[0] - other[0], one[1] - other[1]


def _smaller(one: Amounts, other: Amounts) -> Amounts:
    return min(one[0], other[0]), min(one[1], other[1])


def _exceeds(amounts: Amounts, limit: Amounts) -> bool:
    return amounts[0] > limit[0] or amounts[1] > limit[1]
