"""The process that kernels are forked from, their zygote: what it holds, and what happens when it does not work."""

import ast
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from sandbox_kit import FORK, IS_ROOT, PROJECT, boxed, kernel_python, zygote_of
from watching import eventually

from interpreter.gateway_extension.sandbox.fork_command import Origin
from interpreter.gateway_extension.sandbox.zygote import ZygoteError, find_zygote


def environment_of(pid: int) -> set[str]:
    return {
        entry.partition("=")[0] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if entry
    }


def test_the_zygote_has_one_thread_no_secret_and_nothing_of_a_session() -> None:
    with boxed(
        FORK, env={"SERVICE_TOKEN": "secret-of-the-gateway", "KERNEL_NAME": "secret-of-the-session"}
    ) as kernel:
        pid = zygote_of(kernel)
        before = sorted(os.listdir(f"/proc/{pid}/fd"))
        assert kernel.run("import os; print(os.environ['KERNEL_NAME'])") == "secret-of-the-session\n"
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
        names = {
            "PATH",
            "LANG",
            "HOME",
            "MPLCONFIGDIR",
            "MPLBACKEND",
            "LC_CTYPE",
            "PYDEVD_DISABLE_FILE_VALIDATION",
        }
        assert environment_of(pid) <= names | {"JE_ARROW_MALLOC_CONF", "MIMALLOC_ARENA_EAGER_COMMIT"}
        assert not _memory_holds(pid, [b"secret-of-the-" + b"gateway", b"secret-of-the-" + b"session"])
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.findall(r"Cap(?:Prm|Eff|Bnd):\t(\w+)", status) == (
            ["00000000000000c0"] * 3 if IS_ROOT else ANY
        )
        assert len(before) == 4 + 2 * _kernels(pid)  # 0, 1, 2, the gateway's socket; two of each kernel


ANY = type("Any", (), {"__eq__": lambda *_: True, "__hash__": None})()


def _kernels(zygote: int) -> int:
    return len(Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split())


def _memory_holds(pid: int, texts: list[bytes]) -> bool:
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            start, end = (int(value, 16) for value in line.split()[0].split("-"))
            if "rw" in line:
                memory.seek(start)
                content = memory.read(end - start)
                if any(text in content for text in texts):
                    return True
    return False


def test_a_killed_zygote_is_replaced_and_its_kernels_live_on(caplog: pytest.LogCaptureFixture) -> None:
    with boxed(FORK) as kernel:
        zygote = zygote_of(kernel)
        kernel.run("x = 'kept'")
        os.kill(zygote, signal.SIGKILL)
        with boxed(FORK) as next_one:
            assert zygote_of(next_one) != zygote
            assert next_one.run("print(1)") == "1\n"
        assert kernel.run("print(x)") == "kept\n"
        assert [r for r in caplog.records if "fork server ended (-9)" in r.getMessage()]
        request = kernel.start_run("import time; open('up', 'w').close(); time.sleep(60)")
        kernel.wait_for_file("up")
        kernel.manager.interrupt_kernel()
        assert kernel.wait_for_reply(request) == "error"
        kernel.start_run("import os; os._exit(7)")
        assert kernel.wait_for_death() == "exit code 121"  # nobody was there to learn more
        kernel.manager.restart_kernel()
        kernel.connect()
        assert kernel.run("print(1)") == "1\n"


def test_a_zygote_that_can_not_start_means_slow_starts() -> None:
    python = kernel_python()
    script = (
        "import sys, runpy; sys.argv[1:2] = []; runpy.run_module('ipykernel_launcher', run_name='__main__')"
    )
    with boxed(FORK | {"fork_server_imports": ["antigravity_not"]}) as kernel:  # not installed: left out
        assert kernel.provisioner._sandbox.forking is not None
    with boxed(FORK, argv=[python, "-c", script, "x", "-f", "{connection_file}"]) as kernel:
        assert kernel.provisioner._sandbox.forking is None
        assert kernel.run("print(1)") == "1\n"


GATEWAY = """
import sys, time
sys.path.insert(0, {kit!r})
from sandbox_kit import boxed
with boxed({{"fork_server": True}}) as kernel:
    sandbox = kernel.provisioner._sandbox
    print([kernel.init, sandbox.forking.kernel.pid, sandbox.forking.zygote.pid], flush=True)
    time.sleep(600)
"""


def test_a_killed_gateway_leaves_neither_kernel_nor_zygote(tmp_path: Path) -> None:
    gateway = subprocess.Popen(
        [sys.executable, "-c", GATEWAY.format(kit=str(Path(__file__).parent))],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert gateway.stdout is not None
    handles = [os.pidfd_open(pid) for pid in ast.literal_eval(gateway.stdout.readline())]
    gateway.kill()
    gateway.communicate()
    for handle in handles:
        assert select.select([handle], [], [], 5)[0], "it lives on"
        os.close(handle)


THREADED = """#!{python}
import json, socket, sys
with socket.socket(fileno=int(sys.argv[2])) as gateway:
    gateway.send(json.dumps({{"missing": [], "threads": 2}}).encode())
    gateway.recv(1)
"""
BROKEN = "#!/bin/sh\necho started >> count; echo no numpy >&2; exit 1\n"


def program(folder: Path, text: str) -> Origin:
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return Origin(str(path), (), ())


if IS_ROOT:

    def test_files_of_the_kernelspec_are_loaded_in_the_zygote_which_serves_others_too(tmp_path: Path) -> None:
        extension, broken = tmp_path / "extension_of_spec.py", tmp_path / "broken_extension.py"
        extension.write_text("import os, sys; open('loaded', 'w').write(sys.modules[__name__].__file__)")
        broken.write_text("raise ImportError")
        python, folder = kernel_python(), tmp_path / "one"
        zygote = find_zygote(Origin(python, (), (), (str(extension), str(broken))), folder)
        try:
            assert (folder / "loaded").read_text() == str(extension)
            assert zygote.missing == ()
            assert find_zygote(Origin(python, (), ()), tmp_path / "two") is zygote
        finally:
            zygote.stop()

    def test_a_module_that_starts_threads_can_not_be_in_a_zygote(tmp_path: Path) -> None:
        origin = program(tmp_path, THREADED.format(python=sys.executable))
        with pytest.raises(ZygoteError, match="starts threads: 2 are there"):
            find_zygote(origin, tmp_path / "z")

    def test_one_that_does_not_start_says_why_and_is_left_alone_for_a_while(tmp_path: Path) -> None:
        origin, now = program(tmp_path, BROKEN), [100.0]
        for now[0] in (100.0, 110.0, 140.0):
            with pytest.raises(ZygoteError, match="did not start: no numpy"):
                find_zygote(origin, tmp_path / "z", clock=lambda: now[0])
        assert (tmp_path / "z" / "count").read_text() == "started\n" * 2

else:

    def test_a_program_that_the_kernels_user_could_change_is_refused(tmp_path: Path) -> None:
        with pytest.raises(ZygoteError, match="belongs to another user"):
            find_zygote(program(tmp_path, BROKEN), tmp_path / "z")


def test_a_zygote_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with boxed(FORK) as kernel:
        zygote = zygote_of(kernel)
        monkeypatch.setattr("interpreter.gateway_extension.sandbox.zygote.FORK_TIMEOUT", 0.5)
        os.kill(zygote, signal.SIGSTOP)
        with boxed(FORK) as slow:
            assert slow.provisioner._sandbox.forking is None
            assert slow.run("print(1)") == "1\n"
        monkeypatch.undo()
        assert eventually(lambda: not psutil.pid_exists(zygote))
        with boxed(FORK) as next_one:
            assert zygote_of(next_one) != zygote
            assert next_one.run("print(1)") == "1\n"


def test_a_zygote_that_is_only_slow_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with boxed(FORK) as kernel:
        zygote = kernel.provisioner._sandbox.forking.zygote
        monkeypatch.setattr("interpreter.gateway_extension.sandbox.zygote.FORK_TIMEOUT", 5)
        os.kill(zygote.pid, signal.SIGSTOP)
        with boxed(FORK) as slow:
            assert slow.provisioner._sandbox.forking is None
            os.kill(zygote.pid, signal.SIGCONT)
            assert eventually(lambda: not zygote._is_looked_at)
        with boxed(FORK) as next_one:
            assert zygote_of(next_one) == zygote.pid
            assert next_one.run("print(1)") == "1\n"
