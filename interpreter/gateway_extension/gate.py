"""Whether a kernel may send more now: not while much of it waits, nor for a while after what took the loop long."""

import asyncio
import time
import weakref
from collections.abc import Callable

CHUNK = 16 * 1024
"""Bytes that are read at once."""
CAREFUL_CHUNK = 8 * 1024
"""Of a kernel that once took long: with nothing but frames, so many bytes take about `COSTLY_FRAMES`."""
COSTLY = 0.02
"""Seconds of the loop's processor time from which on a message is costly: others shall have theirs first."""
COSTLY_FRAMES = 0.002
"""The same of one reading, and of a message of more than `MANY_PARTS`: only who wants to takes as long."""
MANY_PARTS = 32
MESSAGE_BYTES = 2048
"""What a message that waits counts beside its size: of tiny ones too many objects would wait."""
PEACE = 8
"""What took t seconds is followed by ``PEACE * t`` seconds in which a message counts as waiting, or nothing is read.

By as much for each other gate that rests, so that all of them together get their part of the time, not each.
"""
MAX_PEACE = 5.0
MAX_COURTESY = 0.05
"""Seconds that a large message of who sent many waits at most for those of others."""
LARGE_BYTES = 64 * 1024
"""A message of more is large."""
READ_RATE = 100e6
"""Bytes per second. So fast the client, which may be one for all kernels, takes in large messages beside its work."""


class Gate:
    """Of one connection to a kernel. ``go_on`` is called when it opens again.

    Sizes are the `cost` of messages, times seconds of the thread's processor time. Call from the event loop's
    thread. Ends with `close`.
    """

    def __init__(self, max_waiting_bytes: int, go_on: Callable[[], None]) -> None:
        self._max_waiting_bytes = max_waiting_bytes
        self._go_on = go_on
        self._loop = asyncio.get_running_loop()
        self._waiting = 0
        self._held = self._closed = False
        self._timers: list[asyncio.TimerHandle] = []
        self._rests: asyncio.TimerHandle | None = None
        self.chunk = CHUNK

    def came(self, size: int) -> None:
        """A message of this size waits now."""
        self._waiting += size + MESSAGE_BYTES

    def took(self, size: int, seconds: float = 0.0, parts: int = 1) -> None:
        """A message of this size waits no more; dealing with it took so many seconds."""
        if self._closed:
            return
        if parts > MANY_PARTS:
            self.read(seconds)
        if seconds > COSTLY:
            now = self._loop.time()
            self._timers = [timer for timer in self._timers if timer.when() > now]
            self._timers.append(
                self._loop.call_later(self._peace(seconds), self._rested, size + MESSAGE_BYTES)
            )
        else:
            self._release(size + MESSAGE_BYTES)

    def read(self, seconds: float) -> None:
        """It took so many seconds to read frames: if too many, none are read for a while, and then fewer at once."""
        if seconds <= COSTLY_FRAMES or self._closed:
            return
        self.chunk = CAREFUL_CHUNK
        end = min(self.rests_until + self._peace(seconds), self._loop.time() + MAX_PEACE)
        if self._rests is not None:
            self._rests.cancel()
        self._rests = self._loop.call_at(end, self._read_on)

    @property
    def rests_until(self) -> float:
        """When more is read, on the loop's clock: now, if it does not rest."""
        now = self._loop.time()
        return now if self._rests is None else max(now, self._rests.when())

    @property
    def is_open(self) -> bool:
        """Whether the kernel may send more now."""
        return not self._held and self._rests is None and self._waiting < self._max_waiting_bytes

    def hold(self, held: bool) -> None:
        """While held nothing more is read of the kernel, which then has to wait."""
        self._held = held
        self._release(0)

    def start_anew(self) -> None:
        """The next connection is to a kernel that has done nothing yet, and nothing of the last one waits."""
        self._end_rest()
        self._waiting = 0
        self.chunk = CHUNK

    def close(self) -> None:
        """Ends its timers; further calls do nothing."""
        self._closed = True
        self._end_rest()

    def _end_rest(self) -> None:
        for timer in (*self._timers, *([] if self._rests is None else [self._rests])):
            timer.cancel()
        self._timers, self._rests = [], None
        _resting.discard(self)

    def _peace(self, seconds: float) -> float:
        """How long this gate rests now; the others know it."""
        _resting.add(self)
        return min(PEACE * seconds * len(_resting), MAX_PEACE)

    def _read_on(self) -> None:
        self._rests = None
        self._rested(0)

    def _rested(self, size: int) -> None:
        if self._rests is None:
            _resting.discard(self)
        self._release(size)

    def _release(self, size: int) -> None:
        self._waiting = max(0, self._waiting - size)
        if not self._closed and self.is_open:
            self._go_on()


class Debt:
    """What the large messages of one kernel took lately: who owes lets others go first."""

    def __init__(self) -> None:
        self.until = 0.0
        self.wait = 0.0
        """Seconds that it waits longer than others until then."""

    def add(self, seconds: float, now: float) -> None:
        """One more took so long."""
        self.until = min(max(self.until, now) + PEACE * seconds, now + MAX_PEACE)
        self.wait = min(seconds, MAX_COURTESY)


class Peace:
    """Among all gates: what a large message took is followed by as much time in which no other large one is dealt with.

    Else many kernels that send such ones at once would keep those waiting that send small ones. Seconds, of the loop's
    clock.
    """

    def __init__(self) -> None:
        self._until = 0.0

    def ends_in(self, debt: Debt, now: float) -> float:
        """After how many seconds a large message of who has this debt may be dealt with."""
        courtesy = debt.wait if now < debt.until else 0.0
        return max(0.0, self._until + courtesy - now)

    def took(self, debt: Debt, size: int, seconds: float, now: float) -> None:
        """A large message took so long here; where it goes it takes longer, mostly."""
        seconds = max(seconds, size / READ_RATE)
        debt.add(seconds, now)
        if seconds > COSTLY_FRAMES:
            self._until = now + min(seconds, MAX_PEACE)


class Stopwatch:
    """How much processor time of its thread a block took, in seconds; 0 if that is not worth a look at the clock."""

    __slots__ = ("_start", "seconds")

    def __init__(self, is_needed: bool) -> None:
        self.seconds = 0.0
        self._start = time.thread_time() if is_needed else None

    def __enter__(self) -> "Stopwatch":
        return self

    def __exit__(self, *_: object) -> None:
        if self._start is not None:
            self.seconds = time.thread_time() - self._start


peace = Peace()
_resting: "weakref.WeakSet[Gate]" = weakref.WeakSet()
