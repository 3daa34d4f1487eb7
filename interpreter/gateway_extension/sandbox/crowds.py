"""A sandbox of very many processes, where no control group divides the processors among sandboxes.

The system shares their time out itself then: among process sessions (of `setsid`; the scheduler's autogroups), or,
in a container and where autogroups are off, among single threads. Which of the two it is can't be told. So of both
there may be only so many: many that run all go last, too many end the sandbox. To go last is not enough for those:
beside hundreds of threads who wakes up waits for his turn, up to half a second each time.
"""

import contextlib
import itertools
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from interpreter.gateway_extension.sandbox import processes
from interpreter.gateway_extension.sandbox.pace import SHORTEST_TICK, TICK

log = logging.getLogger(__name__)

UNWATCHED = "its limits could not be watched"
_PROCESSORS = max(2, len(os.sched_getaffinity(0)))
# Threads that wait burden nobody; but process sessions may all begin to run at once, and are found one by one.
MANY_BUSY_SESSIONS, MAX_PROCESS_SESSIONS = 4 * _PROCESSORS, 16 * _PROCESSORS
MANY_RUNNING, MAX_RUNNING = 12 * _PROCESSORS, 64 * _PROCESSORS  # threads
PATIENCE = 0.5  # seconds for which there may be more, as when all wake up together
MUCH_GROWTH = 16  # processes from one look to the next
LAST = 19  # nice; so is what a thread starts, and nothing in a sandbox can lower it
# Makes way at once for all that has another policy. The flag, of no effect here, is for threads that have set it
# themselves: their policy can't be changed without.
LAST_POLICY = os.SCHED_IDLE | os.SCHED_RESET_ON_FORK


class Crowd:
    """The threads of one sandbox, to be looked at again and again."""

    def __init__(self, init: int, roots: Callable[[], Sequence[int]], uid: int) -> None:
        self._init = init  # the sandbox's first process
        self._roots = roots
        self._uid = uid
        self._size = 0  # processes, at the last look
        self._grows = False
        self._goes_last = False  # for good
        self._too_many_since: float | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether the next look should come soon."""
        return self._grows or self._too_many_since is not None

    def look(self) -> str | None:
        """Have them go last if they are many; why the sandbox has to end now, or None.

        Each goes last as soon as it is found: beside a crowd there is hardly time to find the next one. The kernel's
        own are among them, or what it starts between two looks would not.
        """
        before, self._size = self._size, 0
        sessions, busy = dict[int, int](), set[int]()
        threads, running, held, unasked = 0, 0, list[int](), list[tuple[int, str]]()
        with processes.as_owner(self._uid):
            for pid, found in itertools.islice(processes.walk(*self._roots()), processes.MAX_PROCESSES):
                self._size += 1
                session = _session(pid)
                sessions[session] = pid
                if len(sessions) > MAX_PROCESS_SESSIONS:
                    return f"too many process sessions (limit {MAX_PROCESS_SESSIONS})"
                threads += len(found)
                unasked += [(session, f"/proc/{pid}/task/{thread}/stat") for thread in found]
                while unasked and (threads > MANY_RUNNING or len(sessions) > MANY_BUSY_SESSIONS):
                    session, stat = unasked.pop()
                    if _runs(stat):
                        running += 1
                        busy.add(session)
                self._goes_last |= running > MANY_RUNNING or len(busy) > MANY_BUSY_SESSIONS
                if pid != self._init:  # which has to end all others
                    held += found
                while held and self._goes_last:
                    _go_last(held.pop())
        for pid in sessions.values() if self._goes_last else ():
            _session_goes_last(pid)
        self._grows = self._size > before + MUCH_GROWTH
        return f"too many threads run at once (limit {MAX_RUNNING})" if self._stays_above(running) else None

    def _stays_above(self, running: int) -> bool:
        if running <= MAX_RUNNING:
            self._too_many_since = None
            return False
        now = time.monotonic()
        self._too_many_since = self._too_many_since or now
        return now - self._too_many_since > PATIENCE


def _runs(stat: str) -> bool:
    """Whether the thread of which this file tells has a processor or waits for one."""
    with contextlib.suppress(OSError):
        return processes.read(stat).rpartition(b")")[2].startswith(b" R")
    return False


def _go_last(thread: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        os.setpriority(os.PRIO_PROCESS, thread, LAST)
        os.sched_setscheduler(thread, LAST_POLICY, os.sched_param(0))


def _session(pid: int) -> int:
    """Its process session; 0 when it has ended."""
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return 0


def _session_goes_last(pid: int) -> None:
    """The one of this process. The system lets an ordinary user change ten a second in all."""
    path = f"/proc/{pid}/autogroup"
    with contextlib.suppress(OSError):
        if not processes.read(path).endswith(b" nice %d\n" % LAST):
            with open(path, "w") as autogroup:
                autogroup.write(str(LAST))


class CrowdWatch:
    """A thread that looks at a sandbox's crowd until the sandbox ends, or nobody wants it to any more.

    The watchdog's own looks take too long: what is in a process's memory can't be read while it forks, and beside a
    crowd that does not get on with it.
    """

    def __init__(self, crowd: Crowd, init_fd: int, stopped_fd: int) -> None:
        """``init_fd``: a pidfd of the sandbox's first process; ``stopped_fd`` is hung up when nobody wants it."""
        self._crowd = crowd
        self._init_fd = init_fd
        self._ended = select.poll()
        self._ended.register(init_fd, select.POLLIN)
        self._ended.register(stopped_fd, select.POLLHUP)
        self._reason: str | None = None
        self._thread = threading.Thread(target=self._run, name="sandbox-crowd", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> str | None:
        """For its end; why the crowd had the sandbox end, or None."""
        self._thread.join()
        return self._reason

    def _run(self) -> None:
        while not self._ended.poll((SHORTEST_TICK if self._crowd.is_urgent else TICK) * 1000):
            try:
                self._reason = self._reason or self._crowd.look()
            except Exception:
                log.exception("the watch on a sandbox failed, which ends it")
                self._reason = UNWATCHED
            if self._reason:
                processes.kill(self._init_fd)
