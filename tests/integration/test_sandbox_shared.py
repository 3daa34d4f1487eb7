"""What all sandboxes of a host have together: none takes it all, and none takes what is not counted."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyseccomp  # type: ignore[import-untyped]
import pytest
from sandbox_kit import IS_ROOT, Boxed, boxed
from test_sandbox_attacks import CALL

from interpreter.gateway_extension.sandbox import bubblewrap, processes, watchdog
from interpreter.gateway_extension.sandbox.command import MAX_TERMINALS
from interpreter.gateway_extension.sandbox.sockets import find_sockets

MIB = 1024**2
SMALL = {"memory_bytes": 300 * MIB}


@pytest.fixture(scope="module")
def plain() -> Iterator[Boxed]:
    with boxed() as session:
        session.run(CALL)
        yield session


def number(name: str) -> int:
    return int(pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name))


# In a session: start processes that each make a mess, tell when all have, and wait.
IN_PROCESSES = """
import os, socket, struct, time
def in_processes(count, mess):
    read, write = os.pipe()
    for _ in range(count):
        if os.fork() == 0:
            kept = []
            try: mess(kept)
            except OSError: pass
            os.write(write, b'x')
            time.sleep(60)
            os._exit(0)
    seen = b''
    while len(seen) < count: seen += os.read(read, count)
"""
NETLINK = """
def mess(kept):
    ask = struct.pack('=IHHIIBxHiII', 32, 18, 1, 1, 0, 0, 0, 1, 0, 0)  # RTM_GETLINK of lo
    for _ in range(800):
        kept.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
        for _ in range(80): kept[-1].send(ask)  # two thousand bytes each
"""
UDP = """
def mess(kept):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(900):
            kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            kept[-1].bind(('127.0.0.1', 0))
            for _ in range(8): sender.sendto(bytes(60_000), kept[-1].getsockname())
"""
TCP = """
def mess(kept):
    server = socket.create_server(('127.0.0.1', 0))
    for _ in range(400):
        kept += [socket.create_connection(server.getsockname()), server.accept()[0]]
        kept[-2].setblocking(False)
        try:
            while True: kept[-2].send(bytes(65_536))
        except BlockingIOError: pass
"""
FEW_TCP = """
import threading
def fill(stop):
    server = socket.create_server(('127.0.0.1', 0))
    ends = [socket.create_connection(server.getsockname()), server.accept()[0]]
    for end in ends: end.settimeout(0.1)
    def read():
        while time.monotonic() < stop:
            try: ends[1].recv(2**20)
            except TimeoutError: pass
    reader = threading.Thread(target=read)
    reader.start()  # who reads fast gets larger and larger buffers
    while True:
        try: ends[0].sendall(bytes(2**20))
        except TimeoutError:
            if time.monotonic() > stop: return ends
def mess(kept):
    for _ in range(7): kept += fill(time.monotonic() + 0.5)
"""
TOO_MUCH = "too much waits in sockets to be read (limit 37.5 MiB)"


@pytest.mark.parametrize("group", [True, False], ids=["control group", "none"])
@pytest.mark.parametrize("code", [NETLINK, UDP, TCP], ids=["netlink", "udp", "tcp"])
def test_what_waits_in_sockets_is_limited(code: str, group: bool) -> None:
    """No control group counts it all, and of what TCP and UDP may have there is one amount for a whole host."""
    with boxed(SMALL | {"use_cgroups": group}) as kernel:
        kernel.run(IN_PROCESSES + code)
        if code is UDP and "memory" in kernel.provisioner._sandbox.enforced:  # what is too much is dropped
            assert kernel.run("in_processes(1, mess)") == ""
            assert find_sockets(kernel.init, 0).size < 30 * MIB
        else:
            kernel.start_run("in_processes(1, mess)")
            assert kernel.wait_for_death() == TOO_MUCH


def test_few_sockets_hold_no_more() -> None:
    with boxed(SMALL | {"use_cgroups": False}) as kernel:
        kernel.run(IN_PROCESSES + FEW_TCP)
        kernel.start_run("in_processes(1, mess)")
        assert kernel.wait_for_death(30) == TOO_MUCH


def test_nobody_chooses_the_size_of_a_sockets_buffers(plain: Boxed) -> None:
    code = """
import socket
for family, kind in ((socket.AF_UNIX, 1), (socket.AF_INET, 1), (socket.AF_INET, 2), (socket.AF_NETLINK, 3)):
    with socket.socket(family, kind) as one:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            before = one.getsockopt(socket.SOL_SOCKET, option)
            one.setsockopt(socket.SOL_SOCKET, option, 2**22)
            print(one.getsockopt(socket.SOL_SOCKET, option) == before)
"""
    assert plain.run(code) == "True\n" * 8


def test_so_many_sockets_end_the_kernel() -> None:
    code = "def mess(kept):\n while True: kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))"
    with boxed(SMALL) as kernel:
        kernel.run(IN_PROCESSES + code)
        kernel.start_run("in_processes(6, mess)")
        limits = [f"too many sockets (limit {watchdog.MAX_SOCKETS})"]
        if not IS_ROOT:  # without a control group the memory that they may hold counts, too
            limits.append("out of memory (limit 300 MiB; unix sockets may hold as much)")
        assert kernel.wait_for_death() in limits


def test_nobody_takes_all_terminals_of_the_host() -> None:
    code = "def mess(kept):\n while True: kept.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))"
    with boxed(SMALL) as greedy, boxed(SMALL) as other:
        greedy.run(IN_PROCESSES + code)
        if IS_ROOT:
            assert (
                greedy.run("in_processes(6, mess); print(len(os.listdir('/dev/pts')))")
                == f"{MAX_TERMINALS + 1}\n"
            )
        else:
            greedy.start_run("in_processes(6, mess)")
            assert greedy.wait_for_death() == f"too many terminals (limit {MAX_TERMINALS})"
        assert other.run("import os; os.openpty(); print(os.listdir('/dev/pts'))") == "['0', 'ptmx']\n"


def test_protocols_that_nobody_needs_are_refused(plain: Boxed) -> None:
    code = """
import os, socket
made, errors = set(), set()
for family in (2, 10):
    for kind in range(11):
        for protocol in range(300):
            try: socket.socket(family, kind, protocol).close(); made.add((kind, protocol))
            except OSError as error: errors.add(errno.errorcode[error.errno])
print(sorted(made), sorted(errors))
ends = (ctypes.c_int * 2)()
for family, kind, protocol in ((2, 1, 0), (2, 1, 132), (2, 1, 262), (10, 2, 136), (16, 3, 0), (16, 3, 12), (40, 1, 0)):
    print(_libc.socketpair(family, kind, protocol, ends), ctypes.get_errno() == errno.EOPNOTSUPP)
socket.socket(2, 1 | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK).close()
for end in socket.socketpair(): end.close()
"""
    made = "[(1, 0), (1, 6), (2, 0), (2, 17)] ['EPROTONOSUPPORT']\n"
    assert plain.run(code) == made + "-1 True\n" * 7


def test_nobody_can_have_the_system_move_processes_again_and_again(plain: Boxed) -> None:
    code = """
import ast
import os
import os
before = os.sched_getaffinity(0)
for process in (0, os.getpid()):
    os.sched_setaffinity(process, {min(before)})
print(os.sched_getaffinity(0) == before)
"""
    if len(os.sched_getaffinity(0)) > 1:
        assert plain.run(code) == "True\n"


def test_no_filter_takes_the_room_that_all_sandboxes_need_for_theirs(plain: Boxed) -> None:
    code = """
import socket, struct
program = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0xFFFF))
filters = struct.pack('HxxxxxxQ', 1, ctypes.addressof(program))
with socket.socketpair()[0] as end:
    for option in (26, 50, 51, 52):
        try: end.setsockopt(1, option, filters); print('set')
        except OSError as error: print(error.errno)
    print(_libc.setsockopt(end.fileno(), 1 | 1 << 32, 26, filters, len(filters)))
    print(end.getsockopt(1, 7) > 0)
print(_libc.prctl(22, 2, filters), ctypes.get_errno(), call(317, 1, 0, ctypes.addressof(program)) if os.uname().machine == 'x86_64' else 'ENOSYS')
"""
    assert plain.run("import os" + code) == "92\n" * 4 + "-1\nTrue\n-1 22 ENOSYS\n"


def test_no_huge_page_of_the_hosts_is_taken(plain: Boxed) -> None:
    code = """
import mmap
for flags in (0x4, 0x4 | 21 << 26):
    try: os.memfd_create('huge', flags); print('made')
    except OSError as error: print(error.errno)
try: mmap.mmap(-1, 2**21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
except OSError as error: print(error.errno)
"""
    assert plain.run("import os" + code) == "38\n38\n12\n"


def test_no_dump_goes_to_the_hosts_program_for_dumps(plain: Boxed) -> None:
    """It gets them whatever their limit is, but for a limit of 1."""
    code = """
import resource
core = resource.RLIMIT_CORE
resource.setrlimit(core, (0, 0))
_libc.prlimit(0, core, ctypes.byref((ctypes.c_ulong * 2)(0, 0)), None)
try: resource.prlimit(0, core, (0, 0)); print('set')
except OSError as error: print(error.errno)
print(resource.getrlimit(core), resource.prlimit(0, core))
resource.setrlimit(resource.RLIMIT_STACK, resource.getrlimit(resource.RLIMIT_STACK))
"""
    assert plain.run(code) == "1\n(1, 1) (1, 1)\n"


def test_nobody_sees_what_others_do_with_the_files_that_all_have(plain: Boxed) -> None:
    code = """
import fcntl, os, signal
number = _libc.inotify_init1(0)
print(number, ctypes.get_errno() == errno.ENOSYS)
folder = os.open('/usr', os.O_RDONLY)
for command in (1026, 1026 | 1 << 32):
    print(_libc.fcntl(folder, ctypes.c_long(command), 0x20), ctypes.get_errno() == errno.EINVAL)
"""
    assert plain.run(code) == "-1 True\n" * 3


def test_nobody_takes_a_file_that_all_have_out_of_memory_or_sees_that_it_is_there(plain: Boxed) -> None:
    path = plain.run("import os, pydoc_data.topics as shared; print(shared.__file__)").strip()
    code = """
shared = os.open(shared.__file__, os.O_RDONLY)
for flag in (0, os.RWF_NOWAIT, 0x80):
    try: print(os.preadv(shared, [bytearray(1)], 0, flag))
    except OSError as error: print(error.errno == errno.EOPNOTSUPP)
print(_libc.madvise(None, ctypes.c_long(4096), ctypes.c_long(21 | 1 << 32)), ctypes.get_errno() == errno.EINVAL)
os.posix_fadvise(shared, 0, 0, os.POSIX_FADV_DONTNEED)
"""
    with open(path, "rb") as file:
        file.read()
        assert plain.run(code) == "1\nTrue\nTrue\n-1 True\n"
        assert os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1


def test_no_page_becomes_one_with_that_of_another_session(plain: Boxed) -> None:
    code = """
import mmap
own = mmap.mmap(-1, 4096)
address = ctypes.c_long(ctypes.addressof(ctypes.c_char.from_buffer(own)))
for advice in (12, 12 | 1 << 32):
    print(_libc.madvise(address, ctypes.c_long(4096), ctypes.c_long(advice)), ctypes.get_errno() == errno.EINVAL)
for option in (67, 67 | 1 << 32):
    print(_libc.prctl(ctypes.c_long(option), 1, 0, 0, 0), ctypes.get_errno() == errno.EINVAL)
"""
    assert plain.run(code) == "-1 True\n" * 4


def test_nobody_has_the_system_work_for_all_or_start_programs(plain: Boxed) -> None:
    """`sync` waits for what others wrote, `/proc/locks` stops all that lock, and some requests look for a module."""
    code = """
import os, pty, socket, struct
for path in ('/proc/locks', *(f'/proc/pressure/{name}' for name in ('cpu', 'io', 'memory'))):
    try: os.open(path, os.O_RDONLY)
    except (PermissionError, FileNotFoundError): print('closed')
print(os.sync(), _libc.syncfs(-1))
print(_libc.prctl(62, 1, 0, 0, 0), ctypes.get_errno() == errno.EINVAL)
plain, buffer = socket.socket(), ctypes.create_string_buffer(64)
terminal = pty.openpty()[1]
for fd, request in ((terminal, 0x5423), (plain.fileno(), 0x8940), (plain.fileno(), 0x8982)):
    print(_libc.ioctl(fd, ctypes.c_ulong(request), buffer), ctypes.get_errno() == errno.ENOTTY)
"""
    assert plain.run(code) == "closed\n" * 4 + "None 0\n" + "-1 True\n" * 4


def test_of_calls_that_are_many_in_one_there_is_only_what_programs_need(plain: Boxed) -> None:
    """Each Linux brings more of them: a table of 1 GiB for locks, pages that a socket keeps or shows, TLS …"""
    calls = {name: number(name) for name in ("prctl", "ioctl", "setsockopt", "getsockopt")}
    code = f"""
import socket, tempfile
calls = {calls}
end, file, buffer = socket.socket(), tempfile.TemporaryFile(), ctypes.create_string_buffer(4096)
size, at = ctypes.c_int(64), ctypes.addressof(buffer)
answers = set()
for high in (0, 1 << 32):
    answers |= {{call(calls['prctl'], high | option, 1, 1 << 10) for option in (0, 14, 26, 62, 67, *range(77, 300), 0x53564D41, 2**31)}}
    for level, names in (
        (1, (26, 29, 37, 50, 51, 52, 60, 61, 63, 64, 65, *range(68, 300))),
        (6, (14, 19, 31, 32, *range(35, 300))),
        (17, (100, 104)),
        (0, (64, 65)), (41, (64, 65)), *((level, range(80)) for level in (2, 58, 255, 282, 283, 284, 2**31)),
    ):
        for name in names:
            answers.add(call(calls['setsockopt'], end.fileno(), high | level, high | name, at, 64))
            answers.add(call(calls['getsockopt'], end.fileno(), high | level, high | name, at, ctypes.addressof(size)))
    for request in (0x40049409, 0x80045431, 0xC0506617, 0x4004662A, 0xC0686611, 0x5412, 0x541C, *range(0, 0x100)):
        answers.add(call(calls['ioctl'], file.fileno(), high | request, at))
print(sorted(answers))
"""
    assert plain.run(code) == "['EINVAL', 'ENOPROTOOPT', 'ENOTTY']\n"


def test_programs_find_the_options_that_they_need(plain: Boxed) -> None:
    code = """
import fcntl, os, pty, socket, termios, tty
with socket.create_server(('127.0.0.1', 0), reuse_port=True) as server, socket.create_connection(server.getsockname()) as end:
    for level, names in (
        (socket.SOL_SOCKET, ('SO_REUSEADDR', 'SO_REUSEPORT', 'SO_KEEPALIVE', 'SO_BROADCAST', 'SO_OOBINLINE', 'SO_SNDBUF', 'SO_RCVBUF')),
        (socket.IPPROTO_TCP, ('TCP_NODELAY', 'TCP_KEEPIDLE', 'TCP_KEEPINTVL', 'TCP_KEEPCNT', 'TCP_CORK', 'TCP_USER_TIMEOUT', 'TCP_QUICKACK')),
        (socket.IPPROTO_IP, ('IP_TTL',)),
    ):
        for name in names:
            end.setsockopt(level, getattr(socket, name), 1)
            assert end.getsockopt(level, getattr(socket, name)), name
    end.settimeout(5)
    assert (end.getsockopt(1, socket.SO_ERROR), end.getsockopt(1, socket.SO_TYPE)) == (0, 1)
    assert len(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)) > 100
with socket.socket(socket.AF_INET6) as end:
    end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
main, terminal = pty.openpty()
tty.setraw(terminal)
termios.tcsetwinsize(main, (24, 80))
assert termios.tcgetwinsize(terminal) == (24, 80) and os.isatty(terminal) and os.ttyname(terminal)
ready, (read, write) = bytearray(4), os.pipe()
os.write(write, b'four')
fcntl.ioctl(read, termios.FIONREAD, ready)
assert ready[0] == 4
assert _libc.prctl(15, b'name', 0, 0, 0) == _libc.prctl(36, 1, 0, 0, 0) == _libc.prctl(38, 1, 0, 0, 0) == 0
print(open('/proc/self/comm').read().strip())
_libc.prctl(15, b'python', 0, 0, 0)
"""
    assert plain.run(code) == "name\n"


def test_kernels_are_ended_before_the_gateway_when_the_host_has_no_memory(plain: Boxed) -> None:
    """Nor can a session undo it: what `/proc` has of its processes is read-only."""
    code = """
import os, subprocess
for name in ('oom_score_adj', 'oom_adj', 'autogroup', 'timerslack_ns', 'coredump_filter', 'mem'):
    try: os.open(f'/proc/self/{name}', os.O_WRONLY); print('open')
    except FileNotFoundError: pass
    except OSError as error: assert error.errno == errno.EROFS, error
print({int(open('/proc/self/oom_score_adj').read()), int(subprocess.check_output(['cat', '/proc/self/oom_score_adj']))})
"""
    score = min(1000, int(Path("/proc/self/oom_score_adj").read_text()) + bubblewrap.OOM_SCORE)
    pids = processes.tree(*plain.provisioner._sandbox._roots())
    assert {int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in pids} == {score}
    assert plain.run(code) == f"{{{score}}}\n"


def test_timers_are_few(plain: Boxed) -> None:
    """The system counts them, and signals that wait, for each user or, where that is the same, for each sandbox."""
    code = """
import signal
library, made = ctypes.CDLL('librt.so.1', use_errno=True), 0
while made < 5000 and library.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0: made += 1
print(512 < made <= 1024, ctypes.get_errno() == errno.EAGAIN)
signal.setitimer(signal.ITIMER_REAL, 0.01)
print(signal.sigtimedwait([signal.SIGALRM], 10) is not None)
"""
    mask = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])"
    with boxed() as other:
        other.run(CALL)
        assert plain.run(mask + code) == other.run(mask + code) == "True True\nTrue\n"
