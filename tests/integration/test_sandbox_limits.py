"""Each limit holds, ends in a clear error or a clear reason of death, and leaves others alone."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from sandbox_kit import Boxed, boxed, kernel_argv

from interpreter.gateway_extension.sandbox import holdings, processes, watchdog, workspace

MIB = 1024**2
SMALL = {"memory_bytes": 300 * MIB}


def used_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def tight() -> Iterator[Boxed]:
    """A kernel that outlives its tests: these limits end in errors, not in its death."""
    config = SMALL | {
        "tmp_bytes": 8 * MIB,
        "shm_bytes": 8 * MIB,
        "max_open_files": 100,
        "max_file_bytes": 20 * MIB,
    }
    with boxed(config) as kernel:
        yield kernel


def test_too_large_an_allocation_is_a_memory_error_and_the_kernel_lives(tight: Boxed) -> None:
    assert "MemoryError" in tight.run("x = bytearray(400 * 1024**2)")
    assert tight.run("print('alive')") == "alive\n"


def test_what_libraries_only_reserve_takes_nothing_of_the_memory() -> None:
    code = """
import pandas as pd
names = pd.DataFrame({"name": ["a", "b"]})
x = bytearray(1500 * 1024**2)  # of 2 GiB, of which a kernel with pandas has about 200 MiB
print(len(names))
"""
    with boxed({}) as kernel:
        assert kernel.run(code, timeout=60) == "2\n"


def test_a_kernel_out_of_memory_says_so() -> None:
    """Shared memory is not in the process's data, so nothing but the session's limit stops it."""
    code = """
import mmap
m = mmap.mmap(-1, 600 * 1024**2)
for i in range(0, len(m), 4096): m[i] = 1
import time; time.sleep(60)
"""
    with boxed(SMALL) as kernel:
        kernel.start_run(code)
        assert kernel.wait_for_death() == "out of memory (limit 300 MiB)"


def test_a_program_that_gives_up_for_want_of_memory_names_the_limit() -> None:
    use_up = "import os, time\nheld = []\ntry:\n while True: held.append(b'x' * 2**20)\nexcept MemoryError: "
    with boxed(SMALL) as kernel:
        kernel.run(use_up + "pass")
        counts = "memory" in kernel.provisioner._sandbox.enforced
        deadline = time.monotonic() + 20
        while counts and not kernel.provisioner._sandbox.was_short_of_memory:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        kernel.start_run("os.abort()")
        nearly = ", nearly out of memory (limit 300 MiB)" if counts else ""
        assert kernel.wait_for_death() == f"killed by SIGABRT{nearly}"


def test_a_child_out_of_memory_is_no_reason_for_a_later_end() -> None:
    code = """
import mmap, os
if os.fork() == 0:
    m = mmap.mmap(-1, 600 * 1024**2)
    for i in range(0, len(m), 4096): m[i] = 1
    os._exit(0)
print(os.wait()[1])
"""
    with boxed(SMALL) as kernel:
        if "memory" in kernel.provisioner._sandbox.enforced:
            assert kernel.run(code) == "9\n"
            kernel.start_run("os._exit(4)")
            assert kernel.wait_for_death() == "exit code 4"
        else:  # the watchdog can't tell whose fault it is
            kernel.start_run(code)
            assert kernel.wait_for_death() == "out of memory (limit 300 MiB)"


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/home/user"])
def test_memory_file_systems_have_a_size(tight: Boxed, folder: str) -> None:
    assert "No space left on device" in tight.run(f"open('{folder}/x', 'wb').write(bytes(16 * 1024**2))")


def test_file_systems_of_the_host_are_not_counted_while_a_sandbox_is_being_made() -> None:
    assert processes.memory_files(os.getpid()) == processes.tmpfs_bytes(os.getpid()) == 0


def test_files_in_memory_without_a_name_count_as_memory() -> None:
    code = """
import os, time
fds = [os.memfd_create('hidden') for _ in range(6)]
for fd in fds:
    for _ in range(100): os.write(fd, bytes(2**20))
time.sleep(60)
"""
    with boxed(SMALL) as kernel:
        kernel.start_run(code)
        assert kernel.wait_for_death() == "out of memory (limit 300 MiB)"


def test_a_fork_bomb_stops_at_the_limit_and_the_kernel_lives() -> None:
    code = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60); os._exit(0)
        made += 1
except OSError as error:
    print(error.strerror, made <= 64)
"""
    with boxed({"max_processes": 64}) as kernel, boxed({"max_processes": 64}) as other:
        assert kernel.run(code) == "Resource temporarily unavailable True\n"
        # Counted per session, not per user: the neighbour still has all of its own.
        assert other.run("import subprocess; print(subprocess.run(['true']).returncode)") == "0\n"
        assert "True" in other.run(code)


def test_open_files_and_file_size_are_limited(tight: Boxed) -> None:
    assert "Too many open files" in tight.run("fs = [open('/dev/null') for _ in range(200)]")
    tight.run("fs = None")
    assert "File too large" in tight.run("open('big', 'wb').write(bytes(24 * 1024**2))")
    raised = tight.run("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**40, 2**40))")
    assert raised.startswith("ValueError")


FILL = """
import time
written = 0
try:
    for n in range(100000):
        with open(f'fill-{n % 50}-{n}', 'wb') as f: f.write(bytes(1024**2))
        written += 1
        time.sleep(0.02)  # at most 50 MiB a second: what the disk takes between two looks is over the limit
except OSError as error:
    print(error.strerror)
"""


def test_a_full_workspace_refuses_to_grow_and_recovers_when_files_go() -> None:
    with boxed({"workspace_bytes": 64 * MIB}) as kernel:
        assert kernel.run(FILL) == "File too large\n"
        used = used_bytes(kernel.workspace)
        assert 64 * MIB < used < 400 * MIB
        assert kernel.run(FILL.replace("fill-", "more-")) == "File too large\n"
        assert used_bytes(kernel.workspace) < used + MIB
        kernel.run("!rm -f fill-*")
        deadline = time.monotonic() + 10
        while kernel.run("open('again', 'wb').write(bytes(1024)); print('ok')") != "ok\n":
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_kernel_starts_in_a_full_workspace_and_can_clean_it_up() -> None:
    with boxed({"workspace_bytes": 32 * MIB}) as kernel:
        for number in range(3):
            (kernel.workspace / f"old-{number}").write_bytes(bytes(16 * MIB))
        kernel.manager.restart_kernel(now=True)
        kernel.connect()
        deadline = time.monotonic() + 20
        while "File too large" not in kernel.run("open('new', 'wb').write(bytes(2**20))"):
            assert time.monotonic() < deadline
        assert kernel.run("import tempfile; tempfile.mkstemp(); print('ok')") == "ok\n"
        assert kernel.run("!rm -f old-*") == ""
        assert [path.name for path in kernel.workspace.glob("old-*")] == []


def test_who_is_far_over_the_limit_is_ended_even_if_nothing_grows() -> None:
    with boxed({"workspace_bytes": 32 * MIB}) as kernel:
        with (kernel.workspace / "at-once").open(
            "wb"
        ) as file:  # between two looks, by whatever way there may be
            os.posix_fallocate(file.fileno(), 0, 33 * MIB + watchdog.OVERSHOOT)
        says = "workspace full (limit 32 MiB); no kernel can start before files are deleted through the API"
        assert kernel.wait_for_death() == says


def test_one_file_can_not_fill_more_than_the_workspace() -> None:
    with boxed({"workspace_bytes": 64 * MIB}) as kernel:
        big = "with open('big', 'wb', 0) as f:\n while True: f.write(bytes(2**20))"
        assert kernel.run(big).endswith("File too large")
        assert (kernel.workspace / "big").stat().st_size == 64 * MIB


HARD_TO_LOOK_AT = {
    "mappings of a deleted file": """
os.ftruncate(file, 60_000 * 4096)
for page in range(60_000): libc.mmap(None, 4096, 1, 1, file, page * 4096)
""",
    "mappings": """
for _ in range(30_000): libc.mmap(None, 4096, 1, 0x22, -1, 0), libc.mmap(None, 4096, 3, 0x22, -1, 0)
""",
    "descriptors of deleted files": """
for _ in range(900): os.dup(file)
""",
}


@pytest.mark.parametrize("code", HARD_TO_LOOK_AT.values(), ids=HARD_TO_LOOK_AT)
def test_nobody_makes_a_look_take_long_to_write_unseen_meanwhile(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holdings, "MAX_SECONDS", 0.05)
    code = f"""
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file = os.open('x', os.O_RDWR | os.O_CREAT)
os.unlink('x')
{code}
for _ in range(20):
    if os.fork() == 0: time.sleep(60)
time.sleep(60)
"""
    with boxed() as kernel:
        kernel.start_run(code)
        assert kernel.wait_for_death() == "what its processes hold takes too long to look at"


def test_who_is_far_above_the_limit_is_ended_although_a_look_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog, "OVERSHOOT", 8 * MIB)
    looks, tested = threading.Event(), threading.Event()

    def look_until_it_has_to_end(_: object, pids: Sequence[int], has_to_end: Callable[[], bool]) -> bool:
        looks.set()
        while not has_to_end() and not tested.wait(0.02):
            pass
        return False

    with boxed({"workspace_bytes": 16 * MIB}) as kernel:
        monkeypatch.setattr(holdings.Holdings, "look", look_until_it_has_to_end)
        try:
            assert looks.wait(10)
            (kernel.workspace / "far").write_bytes(bytes(64 * MIB))
            assert kernel.wait_for_death().startswith("workspace full (limit 16 MiB)")
        finally:
            tested.set()


def test_deleted_files_that_are_still_open_count() -> None:
    code = """
import os, time
files = []
while len(files) < 3000:
    f = open('x', 'wb')
    os.unlink('x')
    files.append(f)
    f.write(bytes(2**20))
    f.flush()
    time.sleep(0.005)
"""
    with boxed({"workspace_bytes": 64 * MIB, "max_open_files": 4096}) as kernel:
        assert "File too large" in kernel.run(code)
        assert int(kernel.run("print(len(files))")) < 400


@pytest.mark.parametrize(
    "code",
    [
        # blocks behind a size that was there before: no write makes the file larger
        "import mmap, time\nholes = [open(f'x{n}', 'wb+') for n in range(100)]\nfor f in holes: f.truncate(2**25)\nfor f in holes:\n m = mmap.mmap(f.fileno(), 0)\n for i in range(0, 2**25, 4096): m[i] = 1\n time.sleep(0.1)",
        # the limit set back by the program itself
        "import resource\nn = 0\nwhile True:\n try:\n  resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2); open(f'f{n}', 'wb').write(bytes(2**20)); n += 1\n except OSError: pass",
    ],
    ids=["mapped", "unlimited"],
)
def test_who_fills_the_disk_another_way_is_ended(code: str) -> None:
    with boxed({"workspace_bytes": 32 * MIB, "max_open_files": 4096}) as kernel:
        kernel.start_run(code)
        assert kernel.wait_for_death() == "workspace full (limit 32 MiB)"


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (
            "open(f'moved/{number}', 'wb').write(bytes(2**20)); time.sleep(0.02)",
            "workspace full (limit 48 MiB)",
        ),
        (
            "[open(f'moved/{number}-{each}', 'wb').close() for each in range(20)]",
            "too many or too deeply nested files in the workspace (limit 2000)",
        ),
    ],
    ids=["large", "many"],
)
def test_nobody_moves_files_out_of_the_way_of_a_count(
    write: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each time, when a count comes to their folder, that had just been moved to where it was before."""
    set_back = (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)"
    )
    code = f"""
import os, resource, time
os.mkdir('moved')
for number in range(1000):
    try: {set_back}; {write}
    except OSError: pass
time.sleep(60)
"""
    with boxed({"workspace_bytes": 48 * MIB, "max_workspace_files": 2000}) as kernel:
        open_folder = workspace.open_folder

        def dodge(path: str, parent: int | None) -> int:
            stands = "\nState:\tt" in Path(f"/proc/{kernel.init}/status").read_text()
            return open_folder(path if stands or path != "moved" else "gone", parent)

        monkeypatch.setattr(workspace, "open_folder", dodge)
        kernel.start_run(code)
        assert kernel.wait_for_death(30).startswith(reason)


@pytest.mark.parametrize(
    "code",
    [
        "n = 0\nwhile True:\n open(f'file-{n}\\n', 'w').close(); n += 1",
        "import os\nfor _ in range(5000): os.mkdir('d'); os.chdir('d')\nimport time; time.sleep(60)",
    ],
    ids=["many", "nested"],
)
def test_too_many_or_too_deeply_nested_files_end_the_kernel(code: str) -> None:
    with boxed({"max_workspace_files": 2000}) as kernel:
        kernel.start_run(code)
        assert kernel.wait_for_death().startswith(
            "too many or too deeply nested files in the workspace (limit 2000)"
        )


def test_too_many_files_in_memory_end_the_kernel() -> None:
    code = "n = 0\nwhile n < 10**6:\n open(f'/tmp/{n}', 'w').close(); n += 1"
    with boxed({"max_workspace_files": 2000}) as kernel:
        kernel.start_run(code)
        assert kernel.wait_for_death() == "too many files in memory (limit 2000)"


def test_cpu_time_and_age_are_limited_over_all_processes() -> None:
    with boxed({"cpu_seconds": 3}) as kernel, boxed({"wall_seconds": 5}) as old:
        kernel.start_run("import os\nfor _ in range(3): os.fork()\nwhile True: pass")
        assert old.wait_for_death() == "wall time limit reached (5 s)"
        assert kernel.wait_for_death() == "CPU time limit reached (3 s)"


def test_the_admins_bounds_win_and_a_session_can_only_lower() -> None:
    config = {"memory_bytes": 4 * 1024**3, "max_limits": {"memory_bytes": 600 * MIB}}
    wish = {"KERNEL_LIMITS": '{"max_open_files": 99, "memory_bytes": 99999999999}'}
    with boxed(config, env=wish) as kernel:
        assert kernel.provisioner.limits.memory_bytes == 600 * MIB
        assert (
            kernel.run("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))") == "(99, 99)\n"
        )


def test_a_wish_that_is_no_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown limit"), boxed(env={"KERNEL_LIMITS": '{"memory": 1}'}):
        pass


def slowest(kernel: Boxed, count: int = 6) -> float:
    times = []
    for _ in range(count):
        started = time.monotonic()
        assert kernel.run("print(sum(range(1000)))") == "499500\n"
        times.append(time.monotonic() - started)
    return max(times)


def test_a_neighbour_does_not_notice_a_session_at_its_limits() -> None:
    abuse = """
import os, threading, time
def fill():
    n = 0
    while True:
        try: open(f'f{n}', 'wb').write(bytes(2**20)); n += 1
        except OSError: time.sleep(0.01)
threading.Thread(target=fill, daemon=True).start()
for _ in range(40):
    try:
        if os.fork() == 0:
            x = []
            while True:
                try: x.append(bytearray(2**20))
                except MemoryError: pass
    except OSError: pass
while True: pass
"""
    config = {"memory_bytes": 256 * MIB, "max_processes": 48, "workspace_bytes": 32 * MIB, "cpu_share": 128}
    with boxed(config) as bad, boxed() as good:
        bad.start_run(abuse)
        time.sleep(0.5)
        assert slowest(good) < 2.0


def test_flooding_its_own_stderr_fills_nothing() -> None:
    argv = ["/bin/sh", "-c", 'cat /dev/zero >&2 & exec "$0" "$@"', *kernel_argv()]
    with boxed(argv=argv) as kernel:
        assert kernel.run("print('up')") == "up\n"
        assert len(kernel.provisioner._sandbox.log) <= 8192
