"""What is gone before anybody looks at it counts all the same, and what takes long to look at hides nothing."""

import mmap

import pytest
from sandbox_kit import IS_ROOT, boxed

from interpreter.gateway_extension.sandbox import hidden, pace
from interpreter.gateway_extension.sandbox.crowds import UNWATCHED, Crowd
from interpreter.gateway_extension.sandbox.holdings import Holdings

MIB = 1024**2
PATIENCE = 60.0  # seconds: a busy machine takes long to fill memory
LIMITS = {"memory_bytes": 400 * MIB, "workspace_bytes": 300 * MIB, "use_cgroups": False}

PREPARE = """
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
PART, ENOUGH, HOPPERS = 8 << 20, 200 << 20, 7
def hop(hold):
    '''Each process hands all that it holds on to a child and ends, so that nobody finds it where it was.'''
    for _ in range(100):  # which are looked at first
        if libc.fork() == 0: time.sleep(90)
    if libc.fork() == 0:
        libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        for _ in range(HOPPERS):
            if libc.fork() == 0: hop_on(hold)
        time.sleep(90)
def hop_on(hold):
    end, held = time.monotonic() + 90, 0
    while time.monotonic() < end:
        if libc.fork(): libc._exit(0)
        if held < ENOUGH:
            hold()
            held += PART
    libc._exit(0)
"""
SHARED = """
def hold(): libc.memset(libc.mmap(None, PART, 3, 0x21, -1, 0), 1, PART)
"""
OWN = """
def hold(): libc.memset(libc.mmap(None, PART, 3, 0x22, -1, 0), 1, PART)
"""
MAPPED_FILE = """
def hold():
    fd = os.memfd_create('x')
    os.ftruncate(fd, PART)
    libc.memset(libc.mmap(None, PART, 3, 1, fd, 0), 1, PART)
    os.close(fd)
"""
WAYS = {"shared": SHARED, "of its own": OWN, "files in memory": MAPPED_FILE}


@pytest.mark.parametrize("hold", WAYS.values(), ids=WAYS)
def test_memory_that_goes_from_process_to_process_counts(hold: str) -> None:
    with boxed(LIMITS) as kernel:
        kernel.run(PREPARE + hold)
        kernel.start_run("hop(hold)")
        assert kernel.wait_for_death(PATIENCE) == "out of memory (limit 400 MiB)"


@pytest.mark.parametrize("group", [True, False], ids=["control group", "none"])
def test_deleted_files_that_go_from_process_to_process_fill_the_workspace(group: bool) -> None:
    code = """
import resource
def hold():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
    fd = os.open('x', os.O_RDWR | os.O_CREAT)
    os.unlink('x')
    os.write(fd, bytes(PART))
"""
    with boxed(LIMITS | {"memory_bytes": 2048 * MIB, "use_cgroups": group}) as kernel:
        kernel.run(PREPARE + code)
        kernel.start_run("hop(hold)")
        assert kernel.wait_for_death(PATIENCE).startswith("workspace full (limit 300 MiB)")


def test_who_starts_many_short_programs_goes_on_whatever_others_hold() -> None:
    code = f"""
import subprocess
end = time.monotonic() + {2 * hidden.PATIENCE}
while time.monotonic() < end: subprocess.run(['sh', '-c', 'true | true'], check=True)
print('alive')
"""
    with boxed(LIMITS) as kernel, mmap.mmap(-1, 900 * MIB) as of_others:
        kernel.run(PREPARE)
        request = kernel.start_run(code)
        of_others[:: mmap.PAGESIZE] = bytes(len(of_others) // mmap.PAGESIZE)
        kernel.wait_for_output(request, "alive", timeout=60)


def test_long_names_of_what_is_mapped_do_not_blind_the_watchdog() -> None:
    """Each line that tells of a mapping has the whole path of its file."""
    code = """
for depth in range(60):
    name = 'n' * 255
    os.mkdir(name)
    os.chdir(name)
fd = os.open('file', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 20_000 << 12)
for at in range(0, 20_000 << 12, 8192): libc.mmap(None, 4096, 1, 1, fd, at)
"""
    with boxed(LIMITS) as kernel:
        kernel.run(PREPARE)
        kernel.start_run(code + "time.sleep(90)")
        assert kernel.wait_for_death(PATIENCE) == "what its processes hold takes too long to look at"


def test_what_the_system_notes_of_long_lines_of_forks_is_memory() -> None:
    """Of each mapping that a process has written to it notes all processes that it came from by forks."""
    code = """
start = libc.mmap(None, 40_000 << 12, 3, 0x22, -1, 0)
for at in range(start, start + (40_000 << 12), 8192):
    libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(4096), 1)
for _ in range(60):
    if libc.fork(): time.sleep(90)
    libc.memset(start + 4096, 1, 1)
time.sleep(90)
"""
    with boxed(LIMITS | {"memory_bytes": 2048 * MIB}) as kernel:
        kernel.run(PREPARE)
        kernel.start_run(code)
        assert kernel.wait_for_death(PATIENCE) == "out of memory (limit 2 GiB)"


def test_the_folder_of_the_sockets_is_filled_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever becomes of the workspace, which is looked at less often: it may be on a small disk, or in memory."""
    monkeypatch.setattr(pace, "COUNT_INTERVAL", 3600.0)
    code = """
import json, ipykernel.connect
address = json.load(open(ipykernel.connect.get_connection_file()))['ip']
with open(os.path.dirname(address) + '/file', 'wb') as file: file.write(bytes(20 << 20))
time.sleep(90)
"""
    with boxed({}) as kernel:
        kernel.run(PREPARE)
        if IS_ROOT:  # it is closed to the kernel's user, who is another one
            assert "Permission denied" in kernel.run(code)
        else:
            kernel.start_run(code)
            assert kernel.wait_for_death(PATIENCE) == "the folder of the kernel's sockets was filled"


@pytest.mark.parametrize(("owner", "look"), [(Holdings, "memory_exceeds"), (Crowd, "look")])
def test_a_sandbox_that_can_not_be_watched_ends(
    monkeypatch: pytest.MonkeyPatch, owner: type, look: str
) -> None:
    """Say, for an error of ours that code found: without limits it does not go on."""
    with boxed(LIMITS) as kernel:

        def fails(*_: object) -> None:
            raise LookupError

        monkeypatch.setattr(owner, look, fails)
        assert kernel.wait_for_death(PATIENCE) == UNWATCHED
