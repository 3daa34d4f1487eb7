"""A sandbox of very many processes, where no control group divides the processors among sandboxes.

The system shares their time out itself then: among process sessions (of `setsid`; the scheduler's autogroups), or,
in a container and where autogroups are off, among single threads. Which of the two it is can't be told, so there
may be only so many sessions, and of very many threads each goes last.
"""

import contextlib
import itertools
import os
from collections.abc import Sequence

from interpreter.gateway_extension.sandbox import processes

_PROCESSORS = max(2, len(os.sched_getaffinity(0)))
# None can be made to go last in time: the system lets an ordinary user do so for ten a second in all.
MAX_PROCESS_SESSIONS = 16 * _PROCESSORS
MAX_EQUAL_THREADS = 32 * _PROCESSORS
LAST = 19  # nice; so is what a thread starts, and nothing in a sandbox can lower it


def hold_back(roots: Sequence[int], uid: int) -> tuple[list[int], str | None]:
    """Have all threads of a crowd go last, for good; its processes, and why the sandbox has to end now, or None.

    Each does as soon as it is found: beside a crowd there is hardly time to find the next one. The kernel's own are
    among them, or what it starts between two looks would not go last.
    """
    pids: list[int] = []
    sessions: set[int] = set()
    count, equal = 0, list[int]()
    with processes.as_owner(uid):
        for pid, threads in itertools.islice(processes.walk(*roots), processes.MAX_PROCESSES):
            pids.append(pid)
            with contextlib.suppress(OSError):
                sessions.add(os.getsid(pid))
            if len(sessions) > MAX_PROCESS_SESSIONS:
                return pids, f"too many process sessions (limit {MAX_PROCESS_SESSIONS})"
            count += len(threads)
            equal += threads
            while equal and count > MAX_EQUAL_THREADS:
                _go_last(equal.pop())
    return pids, None


def _go_last(thread: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        os.setpriority(os.PRIO_PROCESS, thread, LAST)
