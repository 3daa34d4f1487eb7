"""Whose large message is read next: one at a time, and who cost much lately comes after those who did not.

To read large JSON holds up all threads, so all kernels together shall take no more of the service than one would: a
message of a kernel that owes is followed by as much peace, in which only small messages are read, and large ones of
kernels that owe nothing. While several wait, what one of these took is followed by as much rest for all: many kernels
that begin together owe nothing yet.
"""

import asyncio
import time
from collections.abc import Callable

COSTLY = 0.05
"""Seconds of the processor that large messages may take without consequence."""
MAX_SHARED_PEACE = 0.5
"""Seconds in which nothing large of those who owe is read after a message of one of them."""
SHARE = 0.02
"""What a kernel may always take: so many seconds per second are no debt."""
MAX_DEBT = 2.0
"""Seconds: nobody owes more. It is forgotten in ``MAX_DEBT / SHARE`` seconds."""


class Debts:
    """What kernels took beyond their share of late, in seconds of the processor. Times are of one monotonic clock."""

    def __init__(self) -> None:
        self._debts: dict[str, tuple[float, float]] = {}  # what was owed, and when

    def of(self, kernel_id: str, now: float) -> float:
        """What the kernel owes; 0 unless that is costly."""
        debt = self._owed(kernel_id, now)
        return debt if debt > COSTLY else 0.0

    def add(self, kernel_id: str, spent: float, now: float) -> None:
        """The kernel took so much."""
        debt = min(self._owed(kernel_id, now) + spent, MAX_DEBT)
        self._debts = {one: owed for one, owed in self._debts.items() if self._owed(one, now)}
        self._debts[kernel_id] = debt, now

    def _owed(self, kernel_id: str, now: float) -> float:
        debt, since = self._debts.get(kernel_id, (0.0, now))
        return max(0.0, debt - SHARE * (now - since))


class Turns:
    """One kernel at a time has its turn, from `begin` to `end`. The next is who owes least, then who came first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._debts = Debts()
        self._waiting: dict[asyncio.Future[None], str] = {}  # in the order in which they came
        self._taken = False
        self._peace_until = 0.0  # for those who owe
        self._rest_until = 0.0  # for all
        self._timer: asyncio.TimerHandle | None = None

    def owes(self, kernel_id: str) -> bool:
        """Whether the kernel cost much lately."""
        return self._debts.of(kernel_id, self._clock()) > 0

    def charge(self, kernel_id: str, spent: float) -> None:
        """The kernel took so many seconds of the processor without a turn."""
        self._debts.add(kernel_id, spent, self._clock())

    async def begin(self, kernel_id: str) -> None:
        """Wait for a turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = kernel_id
        self._go_on()
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(turn, None) is None:  # it had just become its turn
                self._taken = False
            self._go_on()
            raise

    def end(self, kernel_id: str, spent: float) -> None:
        """Give the turn back; it took so many seconds of the processor."""
        now = self._clock()
        self._debts.add(kernel_id, spent, now)
        if self._debts.of(kernel_id, now):
            self._peace_until = max(self._peace_until, now + min(spent, MAX_SHARED_PEACE))
        elif self._waiting:
            self._rest_until = now + min(spent, MAX_SHARED_PEACE)
        self._taken = False
        self._go_on()

    def _go_on(self) -> None:
        """Give the turn to whoever may have it now; while there is peace for all who wait, later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._taken:
            return
        now = self._clock()
        owed = {
            turn: self._debts.of(kernel_id, now)
            for turn, kernel_id in self._waiting.items()
            if not turn.cancelled()  # and not yet noticed
        }
        if not owed:
            return
        first = min(owed, key=lambda turn: owed[turn])
        begin = max(self._rest_until, self._peace_until if owed[first] else 0.0)
        if now < begin:
            self._timer = asyncio.get_running_loop().call_later(begin - now, self._go_on)
            return
        del self._waiting[first]
        self._taken = True
        first.set_result(None)
