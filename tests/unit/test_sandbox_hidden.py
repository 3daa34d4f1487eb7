"""What an ordinary user finds out about memory that processes have mapped, and that these go on as before."""

import ctypes
import mmap
import os
import pickle
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from interpreter.gateway_extension.sandbox import holdings, tracing
from interpreter.gateway_extension.sandbox.held import look_at
from interpreter.gateway_extension.sandbox.hidden import bytes_of_files
from interpreter.gateway_extension.sandbox.holdings import Holdings
from interpreter.gateway_extension.sandbox.processes import memory_sizes, read

USER = 65534
PAGE, MIB = mmap.PAGESIZE, 1024**2
PART = 16 * MIB
LEEWAY = 40 * PAGE  # to look for a file's end takes some
READ, WRITE, SHARED, PRIVATE, AT_ADDRESS, ANONYMOUS, NO_RESERVE = 1, 2, 1, 2, 0x10, 0x20, 0x4000

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for function in (libc.mprotect, libc.madvise):
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def as_ordinary_user(look: Callable[[], Any]) -> Any:
    """What this tells, in a process of its own that is not root."""
    result, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(USER, USER, USER)
                os.setresuid(USER, USER, USER)
                libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: it may look at its own children
            answer = (True, look())
        except BaseException:  # noqa: BLE001  (also what pytest raises)
            answer = (False, traceback.format_exc())
        with os.fdopen(tell, "wb") as file:
            file.write(pickle.dumps(answer))
        os._exit(0)
    os.close(tell)
    try:
        with os.fdopen(result, "rb") as file:
            is_good, told = pickle.loads(file.read())
    finally:  # also when the test took too long
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert is_good, told
    return told


@contextmanager
def child(work: Callable[[], object]) -> Iterator[tuple[int, Any]]:
    """A process that has begun with this; its pid, and the open end of what it tells."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        os.write(tell, pickle.dumps(work()))
        while True:
            signal.pause()
    os.close(tell)
    try:
        with os.fdopen(told, "rb") as file:
            yield pid, file
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def mapped(pid: int) -> list[tuple[int, int]]:
    """Where a process has files that nobody has open."""
    return [*look_at(pid, lambda _: None).mapped.values()]


def ask(pid: int, places: list[tuple[int, int]]) -> int:
    """Bytes of the files that a process has mapped there."""

    def look() -> int:
        with (
            tracing.stopped(lambda: [pid]) as threads,
            tracing.Caller(pid, threads[pid][0]) as caller,
        ):
            return bytes_of_files(caller, places)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(look).result()


def shared(size: int, used: int) -> int:
    start = int(libc.mmap(None, size, READ | WRITE, SHARED | ANONYMOUS | NO_RESERVE, -1, 0))
    libc.memset(start, 1, used)
    return start


def unused() -> int:
    return shared(PART, 0)


def sparse() -> int:
    start = shared(1024 * PART, PART // 2)
    libc.memset(start + 1000 * PART, 1, PART // 2)
    return start


def let_go() -> int:
    start = shared(2 * PART, PART)
    libc.madvise(start, PART, mmap.MADV_DONTNEED)
    return start


def only_its_begin() -> int:
    start = shared(PART, PART)
    libc.munmap(start + PAGE, PART - PAGE)
    return start


def only_its_end() -> int:
    start = shared(PART, PART)
    libc.munmap(start, PART - PAGE)
    return start + PART - PAGE


def not_to_be_read() -> int:
    start = shared(PART, PART)
    libc.mprotect(start, PART, 0)
    libc.munmap(start + PAGE, PART - PAGE)
    return start


def closed_file() -> int:
    fd = os.memfd_create("file")
    os.write(fd, bytes(PART))
    start = int(libc.mmap(None, PAGE, READ, SHARED, fd, 2 * PAGE))
    os.close(fd)
    return start


def read_only(offset: int) -> int:
    fd = os.memfd_create("file")
    os.write(fd, bytes(PART))
    only_to_read = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    start = int(libc.mmap(None, PAGE, READ, SHARED, only_to_read, offset))
    os.close(fd)
    os.close(only_to_read)
    return start


def read_only_file() -> int:
    return read_only(0)


def part_of_a_read_only_file() -> int:
    return read_only(2 * PAGE)


HELD = {
    read_only_file: PART, part_of_a_read_only_file: PART, unused: 0, sparse: PART, let_go: PART, only_its_begin: PART, only_its_end: PART, not_to_be_read: PART,
    closed_file: PART,
}  # fmt: skip


def left_to(pid: int) -> tuple[bytes, list[bytes]]:
    """What a process has mapped, and the signals that it blocks."""
    status = read(f"/proc/{pid}/status").splitlines()
    return read(f"/proc/{pid}/maps"), [line for line in status if line.startswith(b"SigBlk")]


@pytest.mark.parametrize("hold", HELD, ids=lambda hold: hold.__name__)
def test_it_is_known_exactly_how_much_a_mapped_file_has(hold: Callable[[], int]) -> None:
    def look() -> list[int]:
        with child(hold) as (pid, told):
            address = pickle.load(told)
            places = [place for place in mapped(pid) if place[0] == address]
            before = left_to(pid)
            sizes = [ask(pid, places), ask(pid, places)]
            assert left_to(pid) == before
            return sizes

    for size in as_ordinary_user(look):
        assert HELD[hold] <= size <= HELD[hold] + LEEWAY


def test_nobody_passes_a_file_off_as_what_the_system_gives_each_process() -> None:
    """It would be read as a whole, whatever its size."""

    def look() -> int:
        with tempfile.NamedTemporaryFile(suffix="[vdso]") as file:
            os.ftruncate(file.fileno(), 1 << 40)

            def hold() -> int:
                libc.mmap(0x10000000, 1 << 40, READ, PRIVATE | AT_ADDRESS | NO_RESERVE, file.fileno(), 0)
                return shared(PART, PART)

            with child(hold) as (pid, told):
                address = pickle.load(told)
                return ask(pid, [(address, 0)])

    assert PART <= as_ordinary_user(look) <= PART + LEEWAY


def test_what_processes_share_counts_once_and_what_others_use_for_nobody() -> None:
    def look() -> None:
        start = shared(8 * PART, 0)
        with child(int) as (one, _), child(int) as (other, _):
            pids = [one, other]
            enough, too_little = (anonymous(pids) + count * PART for count in (6, 3))
            watched = [Holdings({}, 1024**3, lambda: pids) for _ in range(2)]
            before, stops, stop = threading.active_count(), [], tracing.stopped
            # This process is one of its own.
            tracing.stopped = lambda roots: stops.append(roots) or stop(roots)  # type: ignore[func-returns-value]
            for each in watched:
                each.look(pids)
                each.memory_exceeds(pids, enough)
            libc.memset(start, 1, 4 * PART)
            shared(16 * PART, 16 * PART)  # by nobody of them
            assert not watched[0].memory_exceeds(pids, enough)
            while not stops or threading.active_count() > before:  # they are asked
                assert not watched[0].memory_exceeds(pids, enough)
            assert not watched[0].memory_exceeds(pids, enough)
            while not watched[1].memory_exceeds(pids, too_little):
                pass

    as_ordinary_user(look)


def test_who_is_never_found_counts_though_others_gave_back_as_much() -> None:
    """Whoever looked for him found a process that had ended; all by which the host tells of him is as before."""

    def look() -> None:
        def hold() -> int:
            start = int(libc.mmap(None, 8 * PART, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0))
            return int(libc.memset(start, 1, 8 * PART) and 0)

        # This process is one of its own.
        holdings.HASTE, holdings.used_memory = 0.0, lambda: 0
        with child(hold) as (pid, told):
            pickle.load(told)
            watched = Holdings({}, 1024**3, lambda: [pid])
            gone = os.fork()
            if gone == 0:
                os._exit(0)
            os.waitpid(gone, 0)
            deadline = time.monotonic() + 60
            while not watched.memory_exceeds([gone], 4 * PART):
                watched.look([gone])
                assert time.monotonic() < deadline

    as_ordinary_user(look)


def test_what_is_on_its_way_in_a_message_is_asked_for_again() -> None:
    """It is in sight of nobody. What would be known then is not, or it would be forgotten for good."""

    def look() -> None:
        def hold() -> int:
            ends = socket.socketpair()
            fd = os.memfd_create("sent")
            os.write(fd, bytes(8 * PART))
            socket.send_fds(ends[0], [b"x"], [fd])
            os.close(fd)

            def receive(*_: object) -> None:
                _, (received,), *_ = socket.recv_fds(ends[1], 1, 1)
                libc.mmap(None, PAGE, READ, SHARED, received, 0)
                os.close(received)
                done.send(b"x")

            signal.signal(signal.SIGUSR1, receive)
            return 0

        is_done, done = socket.socketpair()
        used = 0
        # This process is one of its own.
        holdings.used_memory, holdings.BUSY_INTERVAL, holdings.QUIET_INTERVAL = lambda: used, 0.0, 0.0
        with child(hold) as (pid, told):
            pickle.load(told)
            watched, before = Holdings({}, 1024**3, lambda: [pid]), threading.active_count()
            limit = anonymous([pid]) + 6 * PART
            assert not watched.memory_exceeds([pid], limit)
            used = 8 * PART
            assert not watched.memory_exceeds([pid], limit)
            while threading.active_count() > before:  # it is asked
                pass
            os.kill(pid, signal.SIGUSR1)
            assert is_done.recv(1) == b"x"
            deadline = time.monotonic() + 30
            while not watched.memory_exceeds([pid], limit):
                watched.look([pid])
                assert time.monotonic() < deadline

    as_ordinary_user(look)


def test_who_did_something_meanwhile_makes_a_look_unsure() -> None:
    """Who waits in the system for what can't be broken off goes on in it, as soon as it has come."""

    def look() -> None:
        wait = tracing._Stop._wait
        with child(int) as (pid, _):
            # This process is one of its own.
            tracing.TIME_TO_LEAVE = 0.0
            tracing._Stop._wait = lambda *_: None  # type: ignore[method-assign]
            tracing._state = lambda _: b"D"

            def stop() -> None:
                with tracing.stopped(lambda: [pid]):
                    while read(f"/proc/{pid}/stat").split()[2] != b"t":
                        os.sched_yield()
                    tracing._Stop._wait = wait  # type: ignore[method-assign]

            with ThreadPoolExecutor(1) as pool, pytest.raises(TimeoutError):
                pool.submit(stop).result()

    as_ordinary_user(look)


def test_who_may_not_be_looked_into_counts_by_what_all_are_told() -> None:
    """A program that may be run and not read makes such processes."""

    def look() -> tuple[int, bool]:
        def hold() -> int:
            start = int(libc.mmap(None, 8 * PART, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0))
            libc.memset(start, 1, 8 * PART)
            return int(libc.prctl(4, 0, 0, 0, 0))  # PR_SET_DUMPABLE

        with child(hold) as (pid, told):
            pickle.load(told)
            *_, size = memory_sizes([pid], os.getpid(), 60.0, unnamed=0)
            return size, look_at(pid, lambda _: None).closed

    size, is_closed = as_ordinary_user(look)
    assert size >= 8 * PART
    assert is_closed


def anonymous(pids: list[int]) -> int:
    lines = [line for pid in pids for line in read(f"/proc/{pid}/smaps_rollup").splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss_Anon"))


def wait_in(call: Callable[[], int]) -> Callable[[], tuple[int, int, float]]:
    """What the system call gave, its error, and how long it took."""

    def work() -> tuple[int, int, float]:
        started = time.monotonic()
        ctypes.set_errno(0)
        return call(), ctypes.get_errno(), time.monotonic() - started

    return work


WAIT = 1.0
CALLS = {
    "poll": lambda: libc.poll(None, 0, int(WAIT * 1000)),
    "nanosleep": lambda: libc.usleep(int(WAIT * 1e6)),
    "select": lambda: libc.select(0, None, None, None, ctypes.byref((ctypes.c_long * 2)(int(WAIT), 0))),
}


@pytest.mark.parametrize("name", CALLS)
def test_who_waits_in_a_system_call_goes_on_waiting(name: str) -> None:
    def look() -> tuple[int, int, float]:
        with child(wait_in(CALLS[name])) as (pid, told):
            while read(f"/proc/{pid}/stat").split()[2] != b"S":
                os.sched_yield()
            for _ in range(3):
                assert ask(pid, []) == 0
            return pickle.load(told)  # type: ignore[no-any-return]

    result, error, took = as_ordinary_user(look)
    assert (result, error) == (0, 0)
    assert took >= WAIT * 0.99


def test_threads_that_compute_or_wait_go_on() -> None:
    def work() -> int:
        event, done = threading.Event(), []
        signal.signal(signal.SIGUSR1, lambda *_: event.set())
        waiting = [threading.Thread(target=lambda: done.append(event.wait())) for _ in range(20)]
        busy = [threading.Thread(target=lambda: done.append(sum(range(300_000)) > 0)) for _ in range(4)]
        for thread in waiting + busy:
            thread.start()
        while not event.is_set():
            sum(range(1000))
        for thread in waiting + busy:
            thread.join()
        return sum(done)

    def look() -> int:
        with child(work) as (pid, told):
            while len(os.listdir(f"/proc/{pid}/task")) < 20:
                os.sched_yield()
            for _ in range(5):
                assert ask(pid, []) == 0
            os.kill(pid, signal.SIGUSR1)
            return pickle.load(told)  # type: ignore[no-any-return]

    assert as_ordinary_user(look) == 24


def state_at_rest(pid: int) -> bytes:
    """Of a process that does nothing: who was let go of runs for a moment, also to stand still again."""
    while (state := read(f"/proc/{pid}/stat").split()[2]) == b"R":
        os.sched_yield()
    return state


def test_who_was_stopped_stays_so() -> None:
    def look() -> list[bytes]:
        with child(lambda: 0) as (pid, _):
            states = []
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
            assert ask(pid, []) == 0
            states.append(state_at_rest(pid))
            os.kill(pid, signal.SIGCONT)
            os.waitpid(pid, os.WCONTINUED)
            states.append(state_at_rest(pid))
            return states

    assert as_ordinary_user(look) == [b"T", b"S"]


def test_signals_that_come_meanwhile_disturb_nothing() -> None:
    start = shared(PAGE, 0)

    def work() -> None:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        libc.memset(start, 1, 1)
        while True:
            signal.pause()

    def look() -> list[int]:
        with child(work) as (pid, _):
            while ctypes.string_at(start, 1) == b"\0":
                os.sched_yield()
            return [ask(pid, []) for _ in range(20)]

    assert as_ordinary_user(look) == [0] * 20
