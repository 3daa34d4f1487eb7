"""What a session holds counts, however it holds it: in processes, mappings, messages or nowhere to be seen."""

import mmap
import os
import tempfile
from collections.abc import Iterator

import pyseccomp  # type: ignore[import-untyped]
import pytest
from sandbox_kit import IS_ROOT, Boxed, boxed
from test_sandbox_attacks import CALL

from interpreter.gateway_extension.sandbox import hidden, holdings

MIB = 1024**2
PATIENCE = 60.0  # seconds: a busy machine takes long to make a million locks
SMALL = {"memory_bytes": 300 * MIB, "use_cgroups": False}

MEMORY = """
import ctypes, mmap, os, select, socket, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PART, READ, WRITE, SHARED, ANONYMOUS = 100 << 20, 1, 2, 1, 0x20
def memory_file():
    fd = os.memfd_create('hidden')
    for _ in range(100): os.write(fd, bytes(2**20))
    return fd
"""
FIRST_THREAD_GONE = """
def hold():
    libc.memset(libc.mmap(None, PART, READ | WRITE, 2 | ANONYMOUS, -1, 0), 1, PART)
    time.sleep(60)
for _ in range(6):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        libc.syscall(60 if os.uname().machine == 'x86_64' else 93, 0)  # exit, of this thread only
time.sleep(60)
"""
SHARED_AND_NOT_MAPPED = """
for _ in range(6):
    start = libc.mmap(None, PART, READ | WRITE, SHARED | ANONYMOUS, -1, 0)
    for at in range(start, start + PART, 10 << 20):
        libc.memset(at, 1, 10 << 20)
        libc.madvise(at, 10 << 20, mmap.MADV_DONTNEED)
time.sleep(60)
"""
MAPPED_IN_PART = """
for _ in range(6):
    fd = memory_file()
    libc.mmap(None, 4096, READ, SHARED, fd, 0)
    os.close(fd)
time.sleep(60)
"""
MAPPED_AT_ITS_BEGIN = """
for _ in range(6):
    start = libc.mmap(None, PART, READ | WRITE, SHARED | ANONYMOUS, -1, 0)
    libc.memset(start, 1, PART)
    libc.munmap(start + 4096, PART - 4096)
time.sleep(60)
"""
PAGE_TABLES = """
size = 250 << 30
start = libc.mmap(None, size, READ, 2 | ANONYMOUS | 0x4000, -1, 0)
libc.madvise(start, size, mmap.MADV_NOHUGEPAGE)
for at in range(start, start + size, 1 << 21): ctypes.c_char.from_address(at).value
time.sleep(60)
"""
MANY_MAPPINGS = """
for _ in range(25):
    if os.fork() == 0:
        size = 60_000 * 4096
        start = libc.mmap(None, size, 0, 2 | ANONYMOUS, -1, 0)
        for at in range(start, start + size, 8192): libc.mprotect(ctypes.c_void_p(at), 4096, READ)
        time.sleep(60)
time.sleep(60)
"""
LOCKS = """
import fcntl
for number in range(6):
    if os.fork() == 0:
        kept = [open(f'{number}-{count}', 'w') for count in range(60)]
        for file in kept:
            for at in range(10_000, 0, -2): fcntl.lockf(file, fcntl.LOCK_EX, 1, at)
        time.sleep(60)
time.sleep(60)
"""
FILES_WITHOUT_CONTENT = """
for folder in ('/tmp', os.path.expanduser('~'), '/dev/shm'):
    for number in range(3000):
        path = f'{folder}/{number}'
        os.close(os.open(path, os.O_CREAT))
        try: os.setxattr(path, 'user.kept', bytes(60_000))
        except OSError:  # before Linux 6.6
            for each in range(32): os.close(os.open(f'{path}-{each}', os.O_CREAT))
time.sleep(60)
"""
WAYS = {
    "locks": LOCKS,
    "files without content": FILES_WITHOUT_CONTENT,
    "first thread gone": FIRST_THREAD_GONE,
    "shared and not mapped": SHARED_AND_NOT_MAPPED,
    "mapped in part": MAPPED_IN_PART,
    "mapped at its begin": MAPPED_AT_ITS_BEGIN,
    "page tables": PAGE_TABLES,
    "many mappings": MANY_MAPPINGS,
}

SLOW_WAYS = ("locks", "many mappings")  # to fill memory

# What programs have mapped, and hold less of than a session of 512 MiB has.
SHARED_IN_PART = """
parts = [mmap.mmap(-1, 300 << 20) for _ in range(4)]
parts[0][:20 << 20] = bytes(20 << 20)
if os.fork() == 0: time.sleep(60)
parts[0].madvise(mmap.MADV_DONTNEED)
"""
SMALL_FILES_IN_MEMORY = """
for _ in range(30):
    fd = os.memfd_create('code')
    os.write(fd, bytes(65536))
    libc.mmap(None, 65536, READ, SHARED, fd, 0)
    os.close(fd)
"""
SHARED_BY_PROCESSES = """
from multiprocessing import get_context, shared_memory
kept = shared_memory.SharedMemory(create=True, size=150 << 20)
kept.buf[:] = bytes(150 << 20)
def sum_up(_):
    other = shared_memory.SharedMemory(name=kept.name)
    time.sleep(2)
    return sum(other.buf[::2**20])
flag = mmap.mmap(-1, 4096)
pool = get_context('fork').Pool(6)
waits = pool.map_async(sum_up, range(6))
"""
LARGE_FILES = """
import numpy, pyarrow.feather, pyarrow
mapped = numpy.memmap('large', dtype='u1', mode='w+', shape=(600 << 20,))
mapped[:] = 1
seen = numpy.memmap('large', dtype='u1', mode='r').sum()
pyarrow.feather.write_feather(pyarrow.table({'a': numpy.zeros(20 << 20)}), 'table', compression='uncompressed')
table = pyarrow.feather.read_table('table', memory_map=True)
total = table['a'].combine_chunks().to_numpy().sum()
flag = mmap.mmap(-1, 4096)
"""
JOBS = """
import joblib, numpy, subprocess
large = numpy.ones(10 << 20)
flag = mmap.mmap(-1, 100 << 20)
sums = joblib.Parallel(n_jobs=2)(joblib.delayed(numpy.sum)(large) for _ in range(4))
tree = subprocess.Popen(['sh', '-c', '(sleep 60 & sleep 60 | cat) & wait'])
"""
DATABASE = """
import sqlite3
data = sqlite3.connect('data')
data.execute('pragma journal_mode=wal')
data.execute('pragma mmap_size=1000000000')
data.execute('create table t(a)')
data.executemany('insert into t values(?)', (('x' * 1000,) for _ in range(50_000)))
count = data.execute('select count(*) from t').fetchall()
flag = mmap.mmap(-1, 4096)
"""
MUCH_IN_SIGHT = """
flag = mmap.mmap(-1, 4096)
with open('/tmp/kept', 'wb') as file:
    for _ in range(200): file.write(bytes(2**20))
"""
PROGRAMS = {
    "shared in part": SHARED_IN_PART,
    "small files in memory": SMALL_FILES_IN_MEMORY,
    "shared by processes": SHARED_BY_PROCESSES,
    "large files": LARGE_FILES,
    "jobs": JOBS,
    "database": DATABASE,
    "much in sight": MUCH_IN_SIGHT,
}


@pytest.fixture(scope="module")
def plain() -> Iterator[Boxed]:
    with boxed() as session:
        session.run(CALL)
        yield session


@pytest.mark.parametrize("way", WAYS)
def test_memory_counts_in_whatever_way_it_is_held(way: str) -> None:
    limit = 160 if way in SLOW_WAYS else 300
    with boxed(SMALL | {"memory_bytes": limit * MIB}) as kernel:
        kernel.run(MEMORY)
        kernel.start_run(WAYS[way])
        assert kernel.wait_for_death(PATIENCE) == f"out of memory (limit {limit} MiB)"


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS)
def test_who_holds_less_than_the_limit_goes_on_whatever_others_hold(code: str) -> None:
    """An ordinary user is told what all files in memory of the host have, and not whose they are."""
    limits = {"memory_bytes": 512 * MIB, "workspace_bytes": 2048 * MIB, "use_cgroups": False}
    with boxed(limits) as kernel, mmap.mmap(-1, 900 * MIB) as of_others:
        kernel.run(MEMORY)
        assert kernel.run(code, timeout=60) == ""
        of_others[:: mmap.PAGESIZE] = bytes(len(of_others) // mmap.PAGESIZE)
        assert kernel.run(f"time.sleep({1.5 * hidden.PATIENCE}); print('alive')") == "alive\n"


def test_what_is_kept_in_messages_ends_the_kernel() -> None:
    code = """
ends = socket.socketpair()
for _ in range(6):
    fd = memory_file()
    socket.send_fds(ends[0], [b'x'], [fd])
    os.close(fd)
time.sleep(60)
"""
    with boxed(SMALL) as kernel:
        kernel.run(MEMORY)
        kernel.start_run(code)
        assert kernel.wait_for_death(PATIENCE) == "open files were kept in messages that nobody received"


def test_what_unix_sockets_may_hold_is_limited() -> None:
    """Nobody else is told how much waits in one, so they are few."""
    code = """
def fill():
    kept = []
    for _ in range(450):
        kept += socket.socketpair()
        for end in kept[-2:]:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
            end.setblocking(False)
            try:
                while True: end.send(bytes(65_536))
            except BlockingIOError: pass
    time.sleep(60)
for _ in range(3):
    if os.fork() == 0: fill()
time.sleep(60)
"""
    with boxed(SMALL) as kernel:
        kernel.run(MEMORY)
        kernel.start_run(code)
        assert kernel.wait_for_death().startswith("out of memory (limit 300 MiB; unix sockets")


def test_a_process_that_can_not_be_looked_into_ends_the_kernel() -> None:
    """A program that may be run and not read makes processes that only root may look into."""
    code = """
import os, shutil, sys
program = shutil.copy('/bin/sleep', '/tmp/closed')
os.chmod(program, 0o111)
fds = [memory_file() for _ in range(6)]
for fd in fds: os.set_inheritable(fd, True)
os.spawnv(os.P_NOWAIT, program, [program, '60'])
"""
    with boxed(SMALL | {"memory_bytes": 2048 * MIB}) as kernel:
        kernel.run(MEMORY)
        kernel.run(code)
        if IS_ROOT:
            assert kernel.run("print('alive')") == "alive\n"
        else:
            assert kernel.wait_for_death(PATIENCE) == "a process hid what it has open"


def test_children_that_nobody_waited_for_hide_nothing() -> None:
    """Nobody but root may look into what has ended; programs often leave such children for long."""
    code = f"""
import subprocess, time
children = [subprocess.Popen(['true']) for _ in range({holdings.FEW_PROCESSES + 4})]
time.sleep({2 * holdings.PATIENCE})
"""
    with boxed({"use_cgroups": False}) as kernel:
        kernel.run(code)
        assert kernel.run("print('alive')") == "alive\n"


def test_small_deleted_files_that_are_only_mapped_are_no_large_ones() -> None:
    """Programs map what they have just written, or made in memory, close it and remove it."""
    code = f"""
for number in range(4):
    with open(f'{{number}}', 'wb+') as file:
        file.write(bytes(2**20))
        file.flush()
        libc.mmap(None, 4096, READ, SHARED, file.fileno(), 0)
    os.unlink(f'{{number}}')
fd = os.memfd_create('code')
os.write(fd, bytes(65536))
libc.mmap(None, 65536, READ, SHARED, fd, 0)
os.close(fd)
for _ in range({holdings.FEW_PROCESSES}):
    if os.fork() == 0: time.sleep(60)
for number in range(30):
    with open('other', 'ab') as file: file.write(bytes(2**18))
    time.sleep(0.1)
print('alive')
"""
    with boxed({"memory_bytes": 1024 * MIB, "workspace_bytes": 1024 * MIB, "use_cgroups": False}) as kernel:
        kernel.run(MEMORY)
        assert kernel.run(code) == "alive\n"


def test_a_deleted_file_that_is_mapped_is_no_larger_because_others_fill_the_disk() -> None:
    """Nor is one that has a name which only looks like that."""
    code = """
for name, size in (('kept', 20), ('kept (deleted)', 50)):
    with open(name, 'wb+') as file:
        file.write(bytes(size << 20))
        file.flush()
        libc.mmap(None, 4096, READ, SHARED, file.fileno(), 0)
os.unlink('kept')
open('ready', 'w').close()
"""
    limits = {"workspace_bytes": 100 * MIB, "max_file_bytes": 90 * MIB}
    with boxed(limits) as kernel, tempfile.TemporaryFile(dir=kernel.workspace.parent) as of_others:
        kernel.run(MEMORY + code)
        for _ in range(10):
            of_others.write(os.urandom(20 * MIB))
            of_others.flush()
            kernel.run("with open('more', 'wb') as file: file.write(bytes(2 << 20))")
        assert kernel.run("time.sleep(7); print(open('last', 'wb').write(bytes(10 << 20)))") == "10485760\n"


@pytest.mark.parametrize("group", [True, False], ids=["control group", "none"])
def test_deleted_files_that_are_only_mapped_still_fill_the_workspace(group: bool) -> None:
    code = """
try:
    for number in range(40):
        with open(f'{number}', 'wb+') as file:
            for _ in range(20):
                file.write(bytes(2**20))
                file.flush()
                time.sleep(0.02)
            libc.mmap(None, 4096, READ, SHARED, file.fileno(), 0)
        os.unlink(f'{number}')
except OSError as error:
    print(error.strerror)
"""
    with boxed({"workspace_bytes": 100 * MIB, "use_cgroups": group}) as kernel:
        kernel.run(MEMORY)
        assert kernel.run(code, timeout=60) == "File too large\n"


LOCKED = {
    "folders": "for number in range(260): os.mkdir(f'{number}'); lock(os.open(f'{number}', os.O_RDONLY), 2500)",
    "pipes": "for number in range(260): lock(os.pipe()[0], 2500)",
    "a file with many numbers": """
file = os.open('file', os.O_RDWR | os.O_CREAT)
for at in range(0, 4000, 2): fcntl.fcntl(file, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, at, 1, 0))  # F_OFD_SETLK
for _ in range(400): os.dup(file)
""",
}


@pytest.mark.parametrize("code", LOCKED.values(), ids=LOCKED)
def test_locks_are_limited_whatever_is_locked(code: str) -> None:
    """They are in the system's memory, and to be told of each takes long."""
    prepare = """
import fcntl, os, struct, time
def lock(fd, count):
    for at in range(2 * count, 0, -2): fcntl.lockf(fd, fcntl.LOCK_SH, 1, at)
"""
    with boxed(SMALL) as kernel:
        kernel.start_run(f"{prepare}\n{code}\ntime.sleep(60)")
        death = kernel.wait_for_death(PATIENCE)
        assert (
            death == f"too much is locked or watched with epoll in one process (limit {holdings.MAX_LINES})"
        )


def test_what_is_watched_with_epoll_is_limited() -> None:
    """Linux counts it for the host's user, who may be the same for all sandboxes."""
    code = """
files = [os.eventfd(0) for _ in range(20)]
kept = []
while True:
    kept.append(select.epoll())
    for file in files:
        for number in range(200, 900):
            os.dup2(file, number)
            kept[-1].register(number, 1)
            os.close(number)
"""
    with boxed(SMALL) as kernel:
        kernel.run(MEMORY)
        kernel.start_run(code)
        assert (
            kernel.wait_for_death(PATIENCE)
            == f"too much is watched with epoll (limit {holdings.MAX_WATCHES})"
        )


def test_pipes_and_open_files_of_all_processes_are_limited() -> None:
    code = """
def many(make):
    for _ in range(100):
        if os.fork() == 0:
            try:
                while True: make()
            except OSError: time.sleep(60)
    time.sleep(60)
"""
    pipes = ("os.pipe", f"too many pipes (limit {holdings.MAX_PIPES})")
    files = (
        "lambda: os.dup(1)",
        f"too many open files in all processes (limit {holdings.MAX_DESCRIPTORS})",
    )
    for make, reason in (pipes, files):
        with boxed(SMALL | {"memory_bytes": 1024 * MIB}) as kernel:
            kernel.run(MEMORY + code)
            kernel.start_run(f"many({make})")
            assert kernel.wait_for_death(PATIENCE) == reason


def number(name: str) -> int:
    return int(pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name))


def test_what_hides_from_the_watchdog_is_refused(plain: Boxed) -> None:
    """Threads that have other files open than their process, pages that a pipe keeps, processes to be seen by none."""
    code = f"""
print(call({number("close_range")}, 900, 901, 2), call({number("close_range")}, 900, 901, 0))
print(call({number("clone")}, 0x10000 | 0x800 | 0x100, 0, 0, 0, 0))
print(*(call(each, 1, 0, 0, 0) for each in {[number(name) for name in ("vmsplice", "splice", "sendfile")]}))
print(call({number("prctl")}, 0x53564D41, 0, 0, 0, 0))
print(call({number("prctl")}, 4, 0), call({number("prctl")}, 3))
signal = ctypes.c_int()
for wanted in (9, 0, 17): call({number("prctl")}, 1, wanted)
print(call({number("prctl")}, 2, ctypes.byref(signal)), signal.value)
"""
    assert plain.run(code) == "EINVAL 0\nEPERM\nENOSYS ENOSYS ENOSYS\nEINVAL\n0 1\n0 9\n"
