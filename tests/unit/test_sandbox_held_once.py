"""What several processes have together is counted once."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from interpreter.gateway_extension.sandbox import holdings
from interpreter.gateway_extension.sandbox.holdings import Holdings

WATCHES = 40


def new_epoll(stack: ExitStack) -> select.epoll:
    epoll = stack.enter_context(select.epoll())
    for _ in range(WATCHES):
        fd = os.eventfd(0)
        stack.callback(os.close, fd)
        epoll.register(fd, select.EPOLLIN)
    return epoll


@contextmanager
def children(count: int, prepare: Callable[[ExitStack], object]) -> Iterator[list[int]]:
    """Processes forked from this one, each of which has done something first."""
    ready, tell = os.pipe()
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            with ExitStack() as stack:
                prepare(stack)
                os.write(tell, b"x")
                signal.pause()
        pids.append(pid)
    seen = b""
    while len(seen) < count:
        seen += os.read(ready, count)
    try:
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ready)
        os.close(tell)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Holdings:
    monkeypatch.setattr(holdings, "MAX_WATCHES", 3 * WATCHES)
    # The mappings and locks of the process that runs the tests are no matter.
    monkeypatch.setattr(holdings, "SMALL_BYTES", 0)
    return Holdings({}, 1024**3, lambda: [os.getpid()])


def test_an_epoll_that_processes_inherited_counts_once(watched: Holdings) -> None:
    with ExitStack() as stack:
        new_epoll(stack)
        with children(6, lambda _: None) as pids:
            watched.look(pids)
    assert watched.excess is None


def test_epolls_of_their_own_count_each(watched: Holdings) -> None:
    with children(6, new_epoll) as pids:
        watched.look(pids)
    assert watched.excess == f"too much is watched with epoll (limit {3 * WATCHES})"


def test_memory_that_processes_share_counts_once(watched: Holdings) -> None:
    fd = os.memfd_create("shared")
    os.write(fd, bytes(5 * 1024**2))
    before = Holdings({}, 1024**3, lambda: [os.getpid()])
    with children(3, lambda _: None) as pids:
        before.look(pids)
        watched.look(pids[:1])
        assert before.memory_bytes == watched.memory_bytes >= 5 * 1024**2
    os.close(fd)
