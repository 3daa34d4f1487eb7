"""A program of ours that stands at the border of one sandbox: outside, but on its account."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

from interpreter.gateway_extension.sandbox.bubblewrap import SandboxError
from interpreter.gateway_extension.sandbox.cgroups import ControlGroup
from interpreter.gateway_extension.sandbox.processes import is_readable

START_TIMEOUT = 20.0


class Helper:
    """Runs ``<name>.py`` of this package with a plan on its stdin; ends with `stop` or with the gateway."""

    def __init__(self, name: str, plan: dict[str, object], group: ControlGroup | None) -> None:
        self._name = name
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", str(Path(__file__).with_name(f"{name}.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
        )
        if group is not None:  # what a session makes it do is on the session's account
            group.join(self._process.pid)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(plan).encode() + b"\n")
        self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Its process id, its own until `stop` has returned."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait for it to have entered the sandbox's network. Raises `SandboxError`."""
        stdout = self._process.stdout
        assert stdout is not None
        if not is_readable(stdout.fileno(), START_TIMEOUT):
            raise SandboxError(f"the network {self._name} of this kernel did not start in time")
        told = stdout.readline()
        if told != b"ready\n":
            cause = told.decode(errors="replace").strip() or f"exit code {self._process.wait(START_TIMEOUT)}"
            raise SandboxError(f"the network {self._name} of this kernel did not start ({cause})")

    def stop(self) -> None:
        """End it and wait for its end."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
