"""The process that forks for each sandbox: what it starts is ours, and needs it no more."""

import contextlib
import marshal
import os
import resource
import select
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sandbox_kit import boxed

from interpreter.gateway_extension.sandbox.bubblewrap import memory_file
from interpreter.gateway_extension.sandbox.launching import LaunchedProcess, Launcher

PATIENCE = 30.0


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    started = Launcher()
    yield started
    started.stop()


@dataclass
class Started:
    """A shell that was launched, and the pipes of its standard streams."""

    process: LaunchedProcess
    stdin: int
    stdout: int

    def end(self) -> tuple[str, int]:
        """Closes its stdin; what it wrote, and its exit code."""
        os.close(self.stdin)
        with os.fdopen(self.stdout) as output:
            text = output.read()
        return text, self.process.wait(PATIENCE)


def launch(launcher: Launcher, script: str, **changes: object) -> Started:
    plan = {
        "cgroup_procs": [],
        "nice": 0,
        "oom_score": 0,
        "staging": "",
        "uid": None,
        "rlimits": [],
        "parent": os.getpid(),
        "program_fd": None,
        "argv": ["/bin/sh", "-c", script],
    } | changes
    plan_fd, more = memory_file("plan", marshal.dumps(plan)), memory_file("more", b"the fourth")
    stdin, ours = os.pipe()
    output, stdout = os.pipe()
    try:
        process = launcher.launch(plan_fd, [stdin, stdout, stdout, more])
    finally:
        for fd in (plan_fd, more, stdin, stdout):
            os.close(fd)
    return Started(process, ours, output)


def test_it_is_our_child_with_the_descriptors_in_order_and_no_others(launcher: Launcher) -> None:
    started = launch(
        launcher, "echo $PPID; cat <&3; echo; echo /proc/self/fd/*; env | grep -v ^_=; read -r x; exit 7"
    )
    assert started.process.poll() is None
    text, code = started.end()
    lines = text.splitlines()
    assert lines[:2] == [str(os.getpid()), "the fourth"]
    open_there = {int(path.rpartition("/")[2]) for path in lines[2].split()}
    assert open_there - {4} == {0, 1, 2, 3}  # 4 is for listing them
    assert not [line for line in lines[3:] if not line.startswith(("PWD=", "SHLVL=", "OLDPWD="))]
    assert code == started.process.poll() == 7


@contextlib.contextmanager
def many_files(count: int) -> Iterator[list[int]]:
    """So many open ones, like a gateway of many kernels."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    null = os.open(os.devnull, os.O_RDONLY)
    fds = [os.dup(null) for _ in range(count)]
    try:
        yield fds
    finally:
        for fd in (null, *fds):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_its_descriptors_are_as_few_when_the_gateway_has_many(launcher: Launcher) -> None:
    """With the launcher's own socket a session could take the plans and files of the next ones."""
    with many_files(400):
        text, _ = launch(launcher, "echo /proc/self/fd/*").end()
    assert {int(path.rpartition("/")[2]) for path in text.split()} - {4} == {0, 1, 2, 3}


def test_a_forked_kernel_gets_none_when_the_zygote_has_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of each kernel: the next one's namespaces and control groups then have high numbers."""
    start = subprocess.Popen
    with many_files(1100) as fds:

        def start_with_them(argv: list[str], **options: Any) -> "subprocess.Popen[Any]":
            more = fds if any(word.endswith("zygote_main.py") for word in argv) else ()
            return start(argv, **options | {"pass_fds": [*options.get("pass_fds", ()), *more]})

        monkeypatch.setattr("interpreter.gateway_extension.sandbox.zygote.subprocess.Popen", start_with_them)
        with boxed({"fork_server": True, "fork_server_imports": ["this_is_not_installed"]}) as kernel:
            assert len(os.listdir(f"/proc/{kernel.provisioner._sandbox.forking.zygote.pid}/fd")) > 1100
            kernel_fds = os.listdir(f"/proc/{kernel.provisioner._sandbox.forking.kernel.pid}/fd")
            kernel.provisioner._sandbox.forking.zygote.stop()  # nobody else shall have it
    assert max(int(name) for name in kernel_fds) < 1024


def test_what_the_gateway_ignores_it_does_not(launcher: Launcher) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        started = launch(launcher, "kill -TERM $$; echo lives on")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert started.end() == ("", -signal.SIGTERM)


def test_it_can_be_waited_for_and_killed(launcher: Launcher) -> None:
    started = launch(launcher, "echo up; read -r x")
    assert os.read(started.stdout, 10) == b"up\n"
    with pytest.raises(subprocess.TimeoutExpired):
        started.process.wait(0.01)
    started.process.kill()
    assert started.end() == ("", -signal.SIGKILL)
    started.process.kill()  # nobody else's process


def test_it_lives_on_without_the_launcher_which_is_replaced(launcher: Launcher) -> None:
    first = launch(launcher, "read -r x; echo end")
    assert launcher._process is not None
    launcher._process.kill()
    launcher._process.wait()
    second = launch(launcher, "echo started")
    assert second.end() == ("started\n", 0)
    assert first.end() == ("end\n", 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"argv": ["/nowhere/bwrap"]}, "No such file or directory"),
        ({"cgroup_procs": ["/nowhere/cgroup.procs"]}, "No such file or directory"),
        ({"parent": 1}, ""),  # the gateway has ended meanwhile
    ],
    ids=["program", "group", "parent"],
)
def test_a_plan_that_fails_says_so(launcher: Launcher, change: dict[str, object], problem: str) -> None:
    text, code = launch(launcher, "echo started", **change).end()
    assert code == (125 if problem else 1)
    assert problem in text
    assert "started" not in text


def test_the_launcher_ends_when_it_is_stopped(launcher: Launcher) -> None:
    launch(launcher, "exit").end()
    assert launcher._process is not None
    handle = os.pidfd_open(launcher._process.pid)
    try:
        launcher.stop()
        assert select.select([handle], [], [], PATIENCE)[0]
    finally:
        os.close(handle)
