"""The processes of a sandbox stand still, and make system calls for us (ptrace).

They find everything as it was, also a system call that they waited in; but some of those end early when a process is
stopped, as by SIGSTOP: see signal(7), "Interruption of system calls by stop signals".
"""

import contextlib
import ctypes
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from signal import SIGTRAP
from types import TracebackType
from typing import Self

from interpreter.gateway_extension.sandbox.processes import read, walk

MAX_THREADS = 2048
TIME_TO_STOP, TIME_TO_ANSWER = 2.0, 3.0  # seconds
TIME_TO_LEAVE = 0.3  # seconds for who does something in the system that can't be stopped
_PAUSE = 0.001

_CONTINUE, _DETACH, _TO_SYSTEM_CALL, _SET_OPTIONS, _SEIZE, _INTERRUPT = 7, 17, 24, 0x4200, 0x4206, 0x4207
_GET_REGISTERS, _SET_REGISTERS, _GET_MASK, _SET_MASK = 0x4204, 0x4205, 0x420A, 0x420B
_GENERAL_REGISTERS = 1  # NT_PRSTATUS
_MARK_SYSTEM_CALLS, _STOP_AT_FILTER = 0x1, 0x80
_WITH_ITS_CHILDREN = 0x2 | 0x4 | 0x8  # of fork, vfork, clone: from their first moment on
_STOPPED_AT_FILTER, _STOPPED_AT_SYSTEM_CALL = SIGTRAP | 7 << 8, SIGTRAP | 0x80
_STOPPED_AS_ASKED = 128  # PTRACE_EVENT_STOP
_ANY_KIND_OF_CHILD = 0x40000000  # __WALL
_MASK_BYTES, _ALL_SIGNALS = 8, b"\xff" * 8
_VDSO = re.compile(rb"^(\w+)-(\w+) \S+ \S+ 00:00 0 +\[vdso\]$", re.MULTILINE)
_MAX_VDSO_BYTES = 64 * 1024
_MAX_ERRNO = 4095
_WORD = 2**64

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.process_vm_readv.restype = ctypes.c_ssize_t


@dataclass(frozen=True, slots=True)
class Machine:
    """Places in the list of registers, the instruction for a system call, and the numbers of some."""

    registers: int
    number: int
    arguments: Sequence[int]
    result: int
    at: int
    waits_in: int | None  # the system call to be gone on with
    instruction: bytes
    numbers: dict[str, int]


_MACHINES = {
    "x86_64": Machine(
        registers=27, number=10, arguments=(14, 13, 12, 7, 9, 8), result=10, at=16, waits_in=15,
        instruction=b"\x0f\x05",
        numbers={"mmap": 9, "mprotect": 10, "munmap": 11, "mremap": 25, "mincore": 27, "remap_file_pages": 216},
    ),
    "aarch64": Machine(
        registers=34, number=8, arguments=range(6), result=0, at=32, waits_in=None,
        instruction=b"\x01\x00\x00\xd4",
        numbers={"mmap": 222, "mprotect": 226, "munmap": 215, "mremap": 216, "mincore": 232, "remap_file_pages": 234},
    ),
}  # fmt: skip


class _Part(ctypes.Structure):
    """A part of memory (struct iovec)."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def stopped(
    roots: Callable[[], Sequence[int]], seconds: float = TIME_TO_STOP
) -> Iterator[dict[int, list[int]]]:
    """All threads of these processes and their descendants stand still after so long at most: process → its threads.

    The calling thread has to end soon: only then the system lets go of those that were not to be stopped.
    Raises OSError, TimeoutError also at the end of the block: if somebody did something meanwhile, what was seen is
    not sure.
    """
    stop = _Stop(seconds)
    try:
        yield stop.find_and_stop(roots)
        stop.check()
    finally:
        stop.let_go()


def is_allowed(pid: int) -> bool:
    """Whether the system lets us do that with the processes of this one's user. In a thread that ends soon."""
    if os.uname().machine not in _MACHINES:
        return False
    try:
        _trace(pid, _SEIZE)
    except PermissionError:
        return False
    except OSError:
        pass  # it has ended
    return True


class _Stop:
    """Of the processes of one sandbox, which may fork and end all the time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seized, self._standing, self._ended = set[int](), set[int](), set[int]()
        self._stood = set[int]()  # when all had been found
        self._started = time.monotonic()

    def find_and_stop(self, roots: Callable[[], Sequence[int]]) -> dict[int, list[int]]:
        """Who stood before they were looked for, with nobody new among them, are all: who stands does not fork.

        What leaves its place while it is looked for was found before, or is at the end of the list where its parent's
        children go. Raises OSError.
        """
        all_stood = False
        while True:
            known = len(self._seized) + len(self._ended)
            threads = {pid: self._seize_each(pid, found) for pid, found in walk(*roots())}
            is_new = len(self._seized) + len(self._ended) > known
            if all_stood and not is_new:
                self._stood = set(self._standing)
                return {pid: [t for t in found if t in self._standing] for pid, found in threads.items()}
            all_stood = {self._stands(thread) for found in threads.values() for thread in found} <= {True}
            if not is_new:
                time.sleep(_PAUSE)

    def check(self) -> None:
        """What those were about who could not be stopped may be done now. Raises TimeoutError."""
        if any(not self._waits(thread) or thread in self._standing for thread in self._seized - self._stood):
            raise TimeoutError

    def let_go(self) -> None:
        for thread in self._standing:
            with contextlib.suppress(OSError):  # it has ended
                _trace(thread, _DETACH)

    def _seize_each(self, pid: int, threads: Sequence[int]) -> list[int]:
        """Those that have not ended, each seized as soon as it is found."""
        living = [thread for thread in threads if thread in self._standing or _runs(thread)]
        if not living:
            self._ended.add(pid)
        for thread in living:
            if thread not in self._seized:
                (self._seized if _seize(thread) else self._ended).add(thread)
        if len(self._seized) > MAX_THREADS or time.monotonic() > self._started + self._seconds:
            raise TimeoutError
        return living

    def _stands(self, thread: int) -> bool:
        """Whether it does not run: stopped, or after a while in the system, where it is stopped before it leaves."""
        if thread in self._standing:
            return True
        is_late = time.monotonic() > self._started + TIME_TO_LEAVE
        return self._waits(thread) and (is_late or thread in self._standing or not _runs(thread))

    def _waits(self, thread: int) -> bool:
        """Whether it is stopped, waits in the system for what can't be broken off, or has ended."""
        with contextlib.suppress(ChildProcessError):
            self._wait(thread)
        with contextlib.suppress(OSError):
            return thread in self._standing or _state(thread) in b"DZX"
        return True

    def _wait(self, thread: int) -> None:
        _, status = os.waitpid(thread, _ANY_KIND_OF_CHILD | os.WNOHANG)
        if not os.WIFSTOPPED(status):
            return
        if status >> 16 == _STOPPED_AS_ASKED:
            self._standing.add(thread)
            return
        # At a signal, which it gets, or amid the making of a child: it is stopped again soon.
        signal = os.WSTOPSIG(status) if status >> 16 == 0 else 0
        with contextlib.suppress(ProcessLookupError):
            _trace(thread, _CONTINUE, 0, signal)


def _seize(thread: int) -> bool:
    """Whether it will stop; it may have ended."""
    try:
        _trace(thread, _SEIZE, 0, _MARK_SYSTEM_CALLS | _WITH_ITS_CHILDREN)
        _trace(thread, _INTERRUPT)
    except ProcessLookupError:
        return False
    except PermissionError:
        if _is_ours(thread):
            return True
        if _runs(thread):
            raise
        return False
    return True


def _is_ours(thread: int) -> bool:
    """Whether it was seized with its parent."""
    with contextlib.suppress(OSError):
        return b"\nTracerPid:\t%d\n" % threading.get_native_id() in read(f"/proc/{thread}/status")
    return False


def _runs(thread: int) -> bool:
    """Whether it has not ended."""
    with contextlib.suppress(OSError):
        return _state(thread) not in b"ZX"
    return False


def _state(thread: int) -> bytes:
    return read(f"/proc/{thread}/stat").rpartition(b")")[2].split()[0]


class Caller:
    """A stopped thread of a process that makes system calls within the block, for `TIME_TO_ANSWER` at most.

    All methods raise OSError.
    """

    def __init__(self, pid: int, thread: int) -> None:
        machine = _MACHINES.get(os.uname().machine)
        if machine is None:
            raise OSError("not known how on this kind of machine")
        self._pid, self._thread, self._machine = pid, thread, machine
        self._instruction = self._find_instruction()
        self._deadline = time.monotonic() + TIME_TO_ANSWER

    def __enter__(self) -> Self:
        # Only now: else who stands at the filter makes a refused call when we let go of it.
        _trace(self._thread, _SET_OPTIONS, 0, _MARK_SYSTEM_CALLS | _STOP_AT_FILTER)
        self._before = self._registers()
        self._mask = ctypes.create_string_buffer(_MASK_BYTES)
        _trace(self._thread, _GET_MASK, _MASK_BYTES, ctypes.addressof(self._mask))
        self._set_mask(_ALL_SIGNALS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._set_registers(self._before)
            self._set_mask(self._mask.raw)
            _trace(self._thread, _SET_OPTIONS, 0, _MARK_SYSTEM_CALLS)
            # The system looks again how to go on with what it waited in.
            _trace(self._thread, _INTERRUPT)
            _trace(self._thread, _CONTINUE)
            self._wait()

    def call(self, name: str, *arguments: int) -> int:
        """What the system call gives back, also one that the filter refuses to who is not traced."""
        if time.monotonic() > self._deadline and name != "munmap":  # which gives back what others have made
            raise TimeoutError
        machine, registers = self._machine, list(self._before)
        if machine.waits_in is not None:
            registers[machine.waits_in] = _WORD - 1
        registers[machine.at], registers[machine.number] = self._instruction, machine.numbers[name]
        for place, value in zip(machine.arguments, arguments, strict=False):
            registers[place] = value
        self._set_registers(registers)
        stops = [self._go_on(), self._go_on()]  # before it and after it
        if stops[-1] == _STOPPED_AT_FILTER:
            stops[-1] = self._go_on()
        if stops != [_STOPPED_AT_SYSTEM_CALL] * 2:
            raise OSError("something else happened")
        result = self._registers()[machine.result]
        if result >= _WORD - _MAX_ERRNO:
            raise OSError(_WORD - result, os.strerror(_WORD - result))
        return result

    def read(self, address: int, size: int) -> bytes:
        """Memory of its process, which gets it now where it was not used before."""
        buffer = ctypes.create_string_buffer(size)
        ours, theirs = _Part(ctypes.addressof(buffer), size), _Part(address, size)
        one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
        done = _libc.process_vm_readv(self._pid, ctypes.byref(ours), one, ctypes.byref(theirs), one, none)
        if done != size:
            raise _error()
        return buffer.raw

    def _find_instruction(self) -> int:
        """In what the system itself gives each process."""
        found = _VDSO.search(read(f"/proc/{self._pid}/maps"))
        if found is None:
            raise OSError("it has given back what the system gives each process")
        start, end = (int(text, 16) for text in found.groups())
        if end - start > _MAX_VDSO_BYTES:
            raise OSError("that is not what the system gives each process")
        return start + self.read(start, end - start).index(self._machine.instruction)

    def _go_on(self) -> int:
        """Until the next stop that belongs to a system call: who was stopped by a signal is so once more."""
        while True:
            _trace(self._thread, _TO_SYSTEM_CALL)
            if (stop := self._wait()) >> 8 != _STOPPED_AS_ASKED:
                return stop

    def _wait(self) -> int:
        _, status = os.waitpid(self._thread, _ANY_KIND_OF_CHILD)
        if not os.WIFSTOPPED(status):
            raise ProcessLookupError
        return status >> 8

    def _registers(self) -> list[int]:
        words = (ctypes.c_uint64 * self._machine.registers)()
        if self._exchange(_GET_REGISTERS, words) != ctypes.sizeof(words):
            raise OSError("a program of another kind of machine")
        return list(words)

    def _set_registers(self, values: Sequence[int]) -> None:
        self._exchange(_SET_REGISTERS, (ctypes.c_uint64 * self._machine.registers)(*values))

    def _exchange(self, request: int, words: "ctypes.Array[ctypes.c_uint64]") -> int:
        part = _Part(ctypes.addressof(words), ctypes.sizeof(words))
        _trace(self._thread, request, _GENERAL_REGISTERS, ctypes.addressof(part))
        return int(part.size)

    def _set_mask(self, mask: bytes) -> None:
        buffer = ctypes.create_string_buffer(mask, _MASK_BYTES)
        _trace(self._thread, _SET_MASK, _MASK_BYTES, ctypes.addressof(buffer))


def _trace(thread: int, request: int, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, thread, address, data) != 0:
        raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
