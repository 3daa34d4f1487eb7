"""What hostile code tries from inside a sandbox, and does not get. One attack per test."""

import ast
import contextlib
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_kit import IS_ROOT, PROJECT, Boxed, boxed, new_workspace

from interpreter.gateway_extension.sandbox.removal import remove_tree

SECRET = "hunter2-not-for-kernels"

# In a session: call a system call by number; 0 or more, or minus the errno.
CALL = """
import ctypes, errno, os
_libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    ctypes.set_errno(0)
    result = _libc.syscall(number, *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Boxed]:
    with boxed(env={"SERVICE_TOKEN": SECRET}) as session:
        session.run(CALL)
        yield session


def test_no_file_of_the_host_but_system_and_python(kernel: Boxed) -> None:
    hidden = [
        str(PROJECT / "interpreter"),
        str(PROJECT / "pyproject.toml"),
        "/etc/shadow",
        "/var",
        "/sys",
        "/srv",
        "/root/.ssh",
    ]
    code = f"import os; print([p for p in {hidden!r} if os.path.exists(p)])"
    assert kernel.run(code) == "[]\n"
    assert kernel.run("print(sorted(os.listdir('/home')), os.listdir('/mnt'))") == "['user'] ['data']\n"


def test_the_parents_of_what_is_shown_hold_nothing_else(kernel: Boxed) -> None:
    code = f"""
path, seen = {str(PROJECT)!r}, []
while path != '/':
    seen += [e for e in os.listdir(path)] if os.path.isdir(path) else []
    path = os.path.dirname(path)
print(set(seen) - {{'.venv', '.venv-kernel'}} - set({str(PROJECT)!r}.split('/')))
"""
    assert kernel.run(code) == "set()\n"


def test_no_variable_of_the_gateway(kernel: Boxed) -> None:
    assert kernel.run(f"print({SECRET!r} in str(dict(os.environ)))") == "False\n"
    code = f"""
import glob
found = 0
for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):
    try: found += {SECRET[:7]!r} in open(path, errors='replace').read()
    except OSError: pass
print(found)
"""
    assert kernel.run(code) == "0\n"


def test_no_process_but_its_own(kernel: Boxed) -> None:
    code = (
        "print(sorted({open(f'/proc/{p}/comm').read().strip() for p in os.listdir('/proc') if p.isdigit()}))"
    )
    own = set(ast.literal_eval(kernel.run(code)))
    assert own - {"python", "python3", "python3.11"} in ({"bwrap"}, {"bwrap", "sh"})  # sh: see forking.py


@pytest.mark.parametrize(
    "path",
    [
        "/usr/x",
        "/etc/x",
        "/x",
        "/dev/x",
        "/proc/x",
        "/bin/x",
        "/mnt/x",
        "/home/x",
        "{prefix}/x",
        "{connection_file}",
        "/etc/passwd",
    ],
)
def test_nothing_of_the_system_can_be_written(kernel: Boxed, path: str) -> None:
    code = f"""
import sys
path = {path!r}.format(prefix=sys.prefix, connection_file={kernel.manager.connection_file!r})
try: open(path, 'a'); print('written')
except OSError as error: print(error.strerror)
"""
    assert kernel.run(code).strip() in {
        "Read-only file system",
        "Permission denied",
        "No such file or directory",
    }


def test_read_only_paths_are_seen_and_can_not_be_changed() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o777)
        (folder / "data").write_text("for all")
        (folder / "data").chmod(0o666)
        with boxed({"read_only_paths": [str(folder)]}) as session:
            file = f"{folder}/data"
            assert session.run(f"print(open({file!r}).read())") == "for all\n"
            for change in (
                f"open({file!r}, 'a')",
                f"import os; os.unlink({file!r})",
                f"open({file!r} + '2', 'w')",
            ):
                assert "Read-only file system" in session.run(change)
    finally:
        remove_tree(folder)


def test_no_kernel_parameter_can_be_written(kernel: Boxed) -> None:
    """bubblewrap under uid 0 of the host would leave core_pattern, and with it the host, open."""
    code = """
opened = []
for folder, _, names in [*os.walk('/proc/sys'), *os.walk('/proc/irq')]:
    for name in names:
        try: os.close(os.open(os.path.join(folder, name), os.O_WRONLY)); opened.append(name)
        except OSError: pass
for path in ('/proc/sysrq-trigger', '/proc/kcore', '/proc/kmsg', '/proc/keys', '/proc/cmdline'):
    try: print(os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 8)); opened.append(path)
    except OSError: pass
print(opened + os.listdir('/proc/fs'))
"""
    assert kernel.run(code) == "[]\n"


def test_no_capability_no_new_privileges_a_filter(kernel: Boxed) -> None:
    code = "print([l.split()[1] for l in open('/proc/self/status') if l.startswith(('Cap', 'NoNew', 'Seccomp:'))])"
    assert kernel.run(code) == f"{['0' * 16] * 5 + ['1', '2']}\n"


# name → (x86-64 number, arguments): what namespaces, tracing and modules would need
SYSCALLS = {
    "ptrace": (101, (16, 1)),
    "mount": (165, (0, 0, 0, 0, 0)),
    "umount2": (166, (0, 0)),
    "pivot_root": (155, (0, 0)),
    "chroot": (161, (0,)),
    "unshare(user)": (272, (0x10000000,)),
    "setns": (308, (0, 0)),
    "clone(user)": (56, (0x10000000 | 17, 0, 0, 0, 0)),
    "clone(net)": (56, (0x40000000 | 17, 0, 0, 0, 0)),
    "bpf": (321, (0, 0, 0)),
    "keyctl": (250, (0, 0, 0)),
    "add_key": (248, (0, 0, 0, 0, 0)),
    "userfaultfd": (323, (0,)),
    "perf_event_open": (298, (0, 0, 0, 0, 0)),
    "init_module": (175, (0, 0, 0)),
    "finit_module": (313, (0, 0, 0)),
    "kexec_load": (246, (0, 0, 0, 0)),
    "open_by_handle_at": (304, (0, 0, 0)),
    "process_vm_readv": (310, (1, 0, 0, 0, 0, 0)),
    "pidfd_getfd": (438, (0, 0, 0)),
    "open_tree": (428, (0, 0, 0)),
    "fsopen": (430, (0, 0)),
    "reboot": (169, (0, 0, 0, 0)),
    "sethostname": (170, (0, 0)),
    "clone(parent)": (56, (0x8000 | 17, 0, 0, 0, 0)),
    "mbind": (237, (0, 0, 0, 0, 0, 0)),
    "set_mempolicy": (238, (0, 0, 0)),
    "set_mempolicy_home_node": (450, (0, 0, 0, 0)),
}
MISSING = {"clone3": 435, "io_uring_setup": 425, "openat2": 437, "memfd_secret": 447}
MISSING |= {"io_setup": 206, "io_submit": 209, "seccomp": 317}  # one share of room for all of a host
MISSING |= {"inotify_init": 253, "inotify_init1": 294, "inotify_add_watch": 254}
MISSING |= {"cachestat": 451, "mincore": 27, "mseal": 462}
MISSING |= {"landlock_create_ruleset": 444, "landlock_add_rule": 445, "splice": 275, "sendfile": 40}
MISSING |= {"setxattrat": 463, "open_tree_attr": 467, "what is to come": 599, "x32": 0x40000000 | 39}

if os.uname().machine == "x86_64":

    @pytest.mark.parametrize("name", SYSCALLS)
    def test_system_call_is_refused(kernel: Boxed, name: str) -> None:
        number, args = SYSCALLS[name]
        assert kernel.run(f"print(call({number}, *{args}))") == "EPERM\n"

    @pytest.mark.parametrize("name", MISSING)
    def test_system_call_is_not_there(kernel: Boxed, name: str) -> None:
        assert kernel.run(f"print(call({MISSING[name]}, 0, 0, 0, 0))") == "ENOSYS\n"


@pytest.mark.parametrize("family", [17, 38, 40, 31, 9, 44])  # packet, alg, vsock, bluetooth, x25, xdp
def test_exotic_sockets_are_refused(kernel: Boxed, family: int) -> None:
    code = f"import socket\ntry: socket.socket({family}, socket.SOCK_DGRAM)\nexcept OSError as error: print(error.errno)"
    assert kernel.run(code) == "97\n"


def test_raw_sockets_and_other_netlink_protocols_are_refused(kernel: Boxed) -> None:
    code = """
import socket
for family, kind, protocol in ((2, 3, 1), (10, 3, 58), (16, 3, 9), (16, 3, 12)):
    try: socket.socket(family, kind, protocol); print('made')
    except OSError as error: print(error.errno)
"""
    assert kernel.run(code) == "93\n93\n97\n97\n"


def test_devices_and_set_id_bits_can_not_be_made(kernel: Boxed) -> None:
    code = """
import ctypes, os, stat
open('tool', 'w').close()
for attempt in (
    lambda: os.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(254, 0)),
    lambda: os.mknod('/tmp/mem', 0o600 | stat.S_IFCHR, os.makedev(1, 1)),
    lambda: os.chmod('tool', 0o4755),
    lambda: os.chmod('tool', 0o2755),
    lambda: os.open('tool2', os.O_CREAT | os.O_WRONLY, 0o4755),
    lambda: os.open('.', os.O_TMPFILE | os.O_RDWR, 0o4755),
    lambda: os.open('.', os.O_TMPFILE | os.O_RDWR, 0o2755),
    lambda: os.mkfifo('fifo'),
):
    try: attempt(); print('made')
    except OSError as error: print(error.errno)
libc = ctypes.CDLL(None, use_errno=True)
print(libc.renameat2(-100, b'tool', -100, b'moved', 4), ctypes.get_errno(), os.path.exists('tool'))
"""
    assert kernel.run(code) == "1\n" * 7 + "made\n-1 22 True\n"


def test_no_lease_lets_others_wait_for_a_file(kernel: Boxed) -> None:
    code = """
import fcntl
with open('leased', 'w') as file: pass
with open('leased') as file:
    for command, what in ((fcntl.F_SETLEASE, fcntl.F_WRLCK), (fcntl.F_SETLEASE | 1 << 32, fcntl.F_WRLCK), (1040, 0)):
        print(call(72, file.fileno(), command, what))
    fcntl.flock(file, fcntl.LOCK_EX)
    print(fcntl.fcntl(file, fcntl.F_GETFD))
"""
    number = {"x86_64": 72, "aarch64": 25}.get(os.uname().machine, 25)
    assert kernel.run(code.replace("72", str(number))) == "EPERM\n" * 3 + "1\n"


def test_no_room_on_the_disk_is_reserved(kernel: Boxed) -> None:
    code = """
with open('reserved', 'wb+') as file:
    for mode in (0, 1, 0x10, 0x11, 0x20, 0x40, 1 << 32, 1 << 32 | 1, 1 << 32 | 3):
        print(call(285, file.fileno(), mode, 0, 1 << 30))
    room = ctypes.create_string_buffer((1 << 30).to_bytes(8, 'little').rjust(24, bytes(1)).ljust(48, bytes(1)))
    for request in (0x40305828, 0x4030582a, 0x40305839, 1 << 32 | 0x4030582a):
        print(call(16, file.fileno(), request, ctypes.addressof(room)))
    print(os.fstat(file.fileno()).st_blocks)
    file.write(bytes(100_000)); file.flush()
    print(call(285, file.fileno(), 3, 0, 65536))
    os.posix_fallocate(file.fileno(), 0, 200_000)
    print(os.fstat(file.fileno()).st_size)
"""
    fallocate, ioctl = {"x86_64": ("285", "16")}.get(os.uname().machine, ("47", "29"))
    code = code.replace("call(285,", f"call({fallocate},").replace("call(16,", f"call({ioctl},")
    assert kernel.run(f"import os, ctypes\n{code}") == "ENOTSUP\n" * 9 + "ENOTTY\n" * 4 + "0\n0\n200000\n"


def _tries(address: str) -> str:
    return f"""
import socket
family, kind, address = {address}
with socket.socket(family, kind) as s:
    s.settimeout(2)
    try:
        s.connect(address)
        s.send(b'x')
        print('reached')
    except OSError as error: print('refused')
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_no_loopback_service_of_the_host(kernel: Boxed, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        assert kernel.run(_tries(f"{int(family)}, 1, ({host!r}, {port})")) == "refused\n"


@pytest.mark.parametrize(
    "address",
    [
        "2, 1, ('169.254.169.254', 80)",
        "2, 2, ('1.1.1.1', 53)",
        "2, 1, ('1.1.1.1', 443)",
        "10, 1, ('2606:4700:4700::1111', 443)",
        "10, 2, ('fd00:ec2::254', 53)",
    ],
)
def test_no_address_outside(kernel: Boxed, address: str) -> None:
    assert kernel.run(_tries(address)) == "refused\n"


def test_no_name_is_resolved(kernel: Boxed) -> None:
    code = "import socket\ntry: print(socket.getaddrinfo('pypi.org', 443))\nexcept OSError: print('refused')"
    assert kernel.run(code) == "refused\n"


def test_no_abstract_socket_of_the_host(kernel: Boxed) -> None:
    name = f"\0host-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert kernel.run(_tries(f"1, 1, {name!r}")) == "refused\n"


def test_only_loopback_is_there(kernel: Boxed) -> None:
    assert kernel.run("import socket; print([name for _, name in socket.if_nameindex()])") == "['lo']\n"


def test_no_port_is_listened_on(kernel: Boxed) -> None:
    """The kernel's channels are unix sockets; inside there may be ipykernel's own loopback pipe."""
    assert int(kernel.run("print(open('/proc/net/tcp').read().count(' 0A '))")) <= 1
    assert kernel.manager.transport == "ipc"


def test_no_other_session_is_seen(kernel: Boxed) -> None:
    with boxed() as other:
        other.run("open('secret.txt', 'w').write('x'); secret_variable = 1")
        names = [str(other.workspace), str(Path(other.manager.connection_file).parent), other.workspace.name]
        assert kernel.run(f"print([n for n in {names!r} if os.path.exists(n)])") == "[]\n"
        code = f"""
import subprocess
print(subprocess.run(['find', '/', '-name', 'secret.txt', '-o', '-name', {other.workspace.name!r}], capture_output=True, text=True).stdout)
"""
        assert kernel.run(code).strip() == ""


def test_the_gateway_never_follows_what_is_put_where_a_socket_was() -> None:
    with tempfile.TemporaryDirectory() as folder, boxed() as kernel, _accepting(f"{folder}/trap") as accepted:
        port = kernel.manager.shell_port
        inside = f"{kernel.manager.ip}-{port}"
        code = f"""
import os
try:
    os.unlink({inside!r}); os.symlink({folder + "/trap"!r}, {inside!r}); print('replaced')
except OSError as error: print('refused')
"""
        # The session's own folder may change; the one that the gateway connects through may not.
        assert kernel.run(code) == ("refused\n" if IS_ROOT else "replaced\n")
        published = Path(inside)
        assert published.is_socket()
        assert not published.is_symlink()
        kernel.connect()
        assert kernel.run("print('still here')") == "still here\n"
        assert accepted == []


@contextlib.contextmanager
def _accepting(path: str) -> Iterator[list[bool]]:
    accepted: list[bool] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()
                    accepted.append(True)

        thread = threading.Thread(target=accept)
        thread.start()
        yield accepted
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_forged_status_messages_aim_no_signal_at_others() -> None:
    """The first process keeps bubblewrap's status pipe open, where its own uid can write."""
    victim = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    try:
        with boxed() as kernel:
            code = f"""
import json, os
text = (json.dumps({{'child-pid': {victim.pid}}}) + chr(10)).encode()
for name in os.listdir('/proc/1/fd') if os.access('/proc/1/fd', os.R_OK) else []:
    try:
        fd = os.open('/proc/1/fd/' + name, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, text * 100)
    except OSError: pass
"""
            kernel.run(code)
            request = kernel.start_run("import time; open('up', 'w').close(); time.sleep(60)")
            kernel.wait_for_file("up")
            kernel.manager.interrupt_kernel()
            assert kernel.wait_for_reply(request) == "error"
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_odd_things_in_the_workspace_neither_stop_a_restart_nor_lead_out_of_it() -> None:
    outside = new_workspace() / "outside"
    outside.write_text("safe")
    outside.chmod(0o600)
    code = f"""
import os
os.symlink({str(outside)!r}, 'link')
os.symlink('/', 'root')
os.symlink('loop', 'loop')
os.mkfifo('fifo')
open('new' + chr(10) + 'line', 'w').close()
open(b'bad-\\xff-bytes', 'w').close()
os.makedirs('closed/in'); os.chmod('closed', 0)
path = 'deep'
for _ in range(50):
    os.mkdir(path); path += '/d'
os.link('fifo', 'hard')
os.chmod('.', 0)
"""
    workspace = new_workspace()
    with boxed(workspace=workspace) as kernel:
        assert kernel.run(code) == ""
        kernel.manager.restart_kernel()
        kernel.connect()
        assert kernel.run("print('up')") == "up\n"
    if IS_ROOT:  # as if another service had left it: given to the next kernel's uid, link by link
        os.chown(workspace, 0, 0)
        with boxed({"workspace_root": str(workspace.parent)}, workspace=workspace) as kernel:
            owner = workspace.stat().st_uid
            assert owner != 0
            assert (workspace / "link").lstat().st_uid == owner
            assert (workspace / "closed" / "in").stat().st_uid == owner
            assert kernel.run("print('up')") == "up\n"
    assert outside.stat().st_uid == os.geteuid()
    assert outside.read_text() == "safe"


def test_the_connection_file_can_not_be_replaced(kernel: Boxed) -> None:
    code = f"""
path = {kernel.manager.connection_file!r}
for attempt in (lambda: os.unlink(path), lambda: os.rename(path, path + '2'), lambda: os.symlink('/etc/passwd', path), lambda: os.chmod(path, 0o666)):
    try: attempt(); print('done')
    except OSError: pass
"""
    assert kernel.run(code) == ""


if IS_ROOT:

    def test_the_kernels_user_is_never_root_outside(kernel: Boxed) -> None:
        for line in Path(f"/proc/{kernel.init}/status").read_text().splitlines():
            if line.startswith(("Uid:", "Gid:")):
                assert len(set(line.split()[1:])) == 1
                assert int(line.split()[1]) >= 200_000
        assert kernel.run("print(open('/proc/self/uid_map').read().split()[0])") == "1000\n"
