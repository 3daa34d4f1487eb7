"""The sandbox knows whether it can work here, and says what to do when it can't."""

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sandbox_kit import IS_ROOT, PROJECT, as_ordinary_user, boxed

from interpreter.gateway_extension.sandbox import enforced_limits, probe
from interpreter.gateway_extension.sandbox.probe import UID_RANGE

HERE = Path(__file__).parent
PROBE = [sys.executable, "-m", "interpreter.gateway_extension.sandbox"]

# What a container runtime's default profile does: no new user namespace.
WITHOUT_NAMESPACES = """
import errno, os, pyseccomp, sys
rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
for name in ('clone', 'unshare'):
    rules.add_rule(pyseccomp.ERRNO(errno.EPERM), name, pyseccomp.Arg(0, pyseccomp.MASKED_EQ, 0x10000000, 0x10000000))
rules.load()
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

WITHOUT_PROC = """
import sys
sys.path.insert(0, sys.argv[1])
from sandbox_kit import boxed
with boxed() as kernel:
    print(kernel.run("import os; print(os.listdir('/proc'), 6 * 7)"))
"""


def answer(command: list[str]) -> dict[str, Any]:
    result = subprocess.run(
        command,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": "/tmp", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
    )
    value: dict[str, Any] = json.loads(result.stdout)
    assert result.returncode == (0 if value["ok"] else 1)
    return value


def test_it_works_here_and_says_what_enforces_each_limit() -> None:
    result = probe()
    assert result.ok, result.reason
    assert (result.reason, result.fix, result.seccomp) == (None, None, True)
    assert result.enforced == enforced_limits()
    assert result.as_json()["ok"] is True


def test_what_failed_once_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process could be started, say, as the machine was busy: that is not for good."""

    def busy(*_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    uids = UID_RANGE[0] + 1, UID_RANGE[1]  # nobody else has asked for these
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[probe.__module__], "start_held", busy)
        assert not probe(uids).ok
    assert probe(uids).ok
    assert probe(uids) is probe(uids)


def test_the_limits_said_to_be_in_force_are_those_of_a_kernel() -> None:
    with boxed() as kernel:
        groups = kernel.provisioner._sandbox.enforced
        said = enforced_limits()["memory_bytes"]
        assert ("memory" in groups) == said.startswith("cgroup")


if IS_ROOT:

    def test_without_user_namespaces_it_says_so_and_what_to_do() -> None:
        command = as_ordinary_user([sys.executable, "-c", WITHOUT_NAMESPACES, *PROBE[1:]])
        result = answer(command)
        assert result["ok"] is False
        assert "namespace" in result["reason"]
        assert "seccomp profile" in result["fix"]

    def test_with_a_masked_proc_kernels_run_without_one() -> None:
        """Container runtimes mount over parts of /proc; the kernel then forbids a new, unmasked one."""
        code = "mount -t tmpfs tmpfs /proc/irq && exec " + " ".join(PROBE)
        result = answer(["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", code])
        assert (result["ok"], result["proc"]) == (True, False)
        assert "systempaths=unconfined" in result["fix"]
        kernel = [sys.executable, "-c", WITHOUT_PROC, str(HERE)]
        code = "mount -t tmpfs tmpfs /proc/irq && exec " + shlex.join(kernel)
        command = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", code]
        ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert "[] 42" in ran.stdout, ran.stderr
