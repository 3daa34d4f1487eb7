"""How often a workspace is looked at: sooner, the faster its disk fills and the less room is left. Pure.

Counting files costs processor time, asking the file system how much is free costs nothing. So that is asked at
each look, and files are counted when enough of the disk has gone for this session's room to be used up soon.
"""

TICK = 0.25  # seconds between two looks when nothing happens
SHORTEST_TICK = 0.03
COUNT_INTERVAL = 3.0  # seconds after which files are counted in any case
PEACE = 8  # a count that took t seconds of the processor is followed by PEACE * t seconds without one, …
FAR = 4  # … unless the disk loses what is left of the limit and a part of the limit like that
SMALLEST_STEP = 64  # as a part of the limit: less than that is not worth a count

Amounts = tuple[int, int]  # bytes and files


class Pace:
    """Tells from what is free on the disk when to count, and when to look again. Times are of one clock."""

    def __init__(self, limit: Amounts) -> None:
        self._limit = limit
        self._free: Amounts | None = None
        self._seen_at = 0.0
        self._filled = [0, 0]  # what the disk has lost since the last count; what others gave back hides none
        self._step = (0, 0)  # what it may lose before files are counted again, …
        self._far = (0, 0)  # … and before they are in any case
        self._count_at = self._not_before = 0.0
        self._soonest = TICK

    def see(self, now: float, free: Amounts) -> bool:
        """Whether files are to be counted now, that much being free on the disk."""
        before, self._free = self._free or free, free
        if free == before:  # as nearly always
            self._soonest = TICK
        else:
            lost = [max(0, old - new) for old, new in zip(before, free, strict=True)]
            self._filled = [sum(pair) for pair in zip(self._filled, lost, strict=True)]
            self._soonest = self._time_left(lost, now - self._seen_at)
        self._seen_at = now
        if now >= self._count_at or self._lost(self._far):
            return True
        return now >= self._not_before and self._lost(self._step)

    def counted(self, now: float, used: Amounts, *, seconds: float) -> None:
        """Files were counted and ``used`` was found, in so many seconds of the processor's time."""
        self._filled = [0, 0]
        self._step = _steps(used, self._limit)
        self._far = _far(used, self._limit)
        self._not_before = now + PEACE * seconds
        over = any(mine > most for mine, most in zip(used, self._limit, strict=True))
        self._count_at = self._not_before + (0.0 if over else COUNT_INTERVAL)

    def _lost(self, amounts: Amounts) -> bool:
        return any(filled >= most for filled, most in zip(self._filled, amounts, strict=True))

    @property
    def tick(self) -> float:
        """Seconds until the next look."""
        return self._soonest

    def _time_left(self, lost: list[int], seconds: float) -> float:
        """Half of the time in which the step is made, if it goes on like this."""
        times = [
            max(0, step - filled) * seconds / one / 2
            for one, filled, step in zip(lost, self._filled, self._step, strict=True)
            if one > 0
        ]
        return min(TICK, max(SHORTEST_TICK, min(times, default=TICK)))


def _steps(used: Amounts, limit: Amounts) -> Amounts:
    size, files = (
        max((most - mine) // 2, most // SMALLEST_STEP, 1) for mine, most in zip(used, limit, strict=True)
    )
    return size, files


def _far(used: Amounts, limit: Amounts) -> Amounts:
    size, files = (max(most - mine, 0) + max(most // FAR, 1) for mine, most in zip(used, limit, strict=True))
    return size, files
