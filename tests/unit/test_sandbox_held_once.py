"""What several processes have together is counted once, and nothing of it is left out."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from interpreter.gateway_extension.sandbox import holdings
from interpreter.gateway_extension.sandbox.held import look_at
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


def test_a_deleted_folder_that_a_process_is_in_counts(watched: Holdings, tmp_path: Path) -> None:
    """It may be large by itself: it was made so by many long names."""
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder.stat().st_dev, folder.stat().st_ino
    with children(1, lambda _: os.chdir(folder)) as (pid,):
        folder.rmdir()
        assert file in look_at(pid, lambda _: None).files


def test_what_takes_too_long_to_add_up_is_too_much(
    watched: Holdings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code can have the system work long for what it tells of its memory."""
    monkeypatch.setattr(holdings, "MAX_SECONDS", 0.0)
    with children(1, lambda _: None) as pids:
        assert not watched.memory_exceeds(pids, 1024**4)
    assert watched.excess == holdings.TOO_LONG
