"""How often someone may ask: token buckets by key."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_MAX_KEYS = 10_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class RateLimiter:
    """Allows ``per_minute`` uses per key in a burst, refilled evenly; 0 allows everything."""

    def __init__(self, per_minute: int, now: Callable[[], float]) -> None:
        """``now`` is a monotonic clock in seconds."""
        self._capacity = float(per_minute)
        self._now = now
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait(self, key: str) -> float:
        """Seconds until the key may be used again, 0 when now. Takes nothing."""
        if not self._capacity:
            return 0.0
        left = self._refilled(key).left
        return 0.0 if left >= 1 else (1 - left) * 60 / self._capacity

    def take(self, key: str) -> float:
        """Use the key once if that is allowed now; else the seconds to wait."""
        seconds = self.wait(key)
        if self._capacity and not seconds:
            self._refilled(key).left -= 1
        return seconds

    def _refilled(self, key: str) -> _Bucket:
        now = self._now()
        bucket = self._buckets.setdefault(key, _Bucket(self._capacity, now))
        bucket.left = min(self._capacity, bucket.left + (now - bucket.at) * self._capacity / 60)
        bucket.at = now
        self._buckets.move_to_end(key)
        if len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        return bucket
