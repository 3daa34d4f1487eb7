"""What the seccomp filter refuses, tried by a process under it, or asked of the filter itself."""

import json
import os
import struct
import subprocess
import sys

import pytest

pyseccomp = pytest.importorskip("pyseccomp")

UNDER_THE_FILTER = """
import ctypes, errno, json, multiprocessing, sys
from interpreter.gateway_extension.sandbox.seccomp import seccomp_filter

class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]

libc = ctypes.CDLL(None, use_errno=True)
code = seccomp_filter()
program = Program(len(code) // 8, code)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no_new_privs
assert libc.prctl(22, 2, ctypes.byref(program)) == 0  # seccomp

def error(name, *args):
    return errno.errorcode.get(ctypes.get_errno()) if getattr(libc, name)(*args) == -1 else None

KEY = 0x5EC0FFEE  # of nobody: without a filter this is ENOENT, and nothing is made
answer = {
    "shmget": error("shmget", KEY, 4096, 0),
    "msgget": error("msgget", KEY, 0),
    "semget": error("semget", KEY, 1, 0),
    "semop": error("semop", -1, None, 1),
    "semctl": error("semctl", -1, 0, 12),
    "semtimedop": error("semtimedop", -1, None, 1, None),
}
with multiprocessing.Lock(), multiprocessing.Semaphore(1):
    answer["multiprocessing"] = None
print(json.dumps(answer))
"""


def test_what_is_of_system_v_is_refused_and_what_multiprocessing_uses_is_not() -> None:
    ran = subprocess.run([sys.executable, "-c", UNDER_THE_FILTER], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    assert found.pop("multiprocessing") is None
    assert set(found.values()) == {"EPERM"}, found


MACHINE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED, ERROR = 0x7FFF0000, 0x0005
COMPARE = {0x15: int.__eq__, 0x25: int.__gt__, 0x35: int.__ge__, 0x45: int.__and__}


def verdict(code: bytes, number: int, *arguments: int) -> int:
    """What the filter gives back for a system call: the instructions of Documentation/networking/filter.rst."""
    six = [*arguments, *[0] * 6][:6]
    data = struct.pack("=iIQ6Q", number, MACHINE[os.uname().machine], 0, *six)
    program = list(struct.iter_unpack("=HBBI", code))
    at = value = 0
    while True:
        kind, if_true, if_false, operand = program[at]
        at += 1
        if kind == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif kind == 0x54:
            value &= operand
        elif kind == 0x05:
            at += operand
        elif kind in COMPARE:
            at += if_true if COMPARE[kind](value, operand) else if_false
        else:
            assert kind == 0x06, hex(kind)
            return operand


# What many systems do not have, so that they refuse it themselves.
OFTEN_MISSING = {
    "a name for shared memory": ("prctl", 0x53564D41, 0, 0, 4096),
    "a processor of its own": ("prctl", 62, 1),
    "pages that become one": ("prctl", 67, 1),
    "the same, with more bits": ("prctl", 67 | 1 << 32, 1),
}


@pytest.mark.skipif(os.uname().machine not in MACHINE, reason="the filter is for another kind of machine")
@pytest.mark.parametrize("call", OFTEN_MISSING.values(), ids=OFTEN_MISSING)
def test_what_this_system_may_not_have_is_refused_wherever_it_is(call: tuple[str, int]) -> None:
    from interpreter.gateway_extension.sandbox.seccomp import seccomp_filter

    name, *arguments = call
    number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
    code = seccomp_filter()
    assert verdict(code, number, *arguments) >> 16 == ERROR
    assert verdict(code, number, 15) == ALLOWED  # PR_SET_NAME
