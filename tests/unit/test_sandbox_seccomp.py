"""What the seccomp filter refuses, tried by a process under it."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyseccomp")

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
