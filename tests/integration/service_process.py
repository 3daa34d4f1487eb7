"""The service as a user starts it: a process of its own, found by the line that it prints."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

START_TIMEOUT = 60.0
STOP_TIMEOUT = 40.0
TOKEN = "integration-test-token"
_ADDRESS = re.compile(r"(http://[^\s/]+)/\?token=(\S+)")


MAX_TOLD = 8000
_logs: set[Path] = set()


def logged_since(time: float) -> Iterator[tuple[Path, str]]:
    """The ends of the logs of all services of this test session that have said something since."""
    for path in sorted(_logs):
        if path.exists() and path.stat().st_mtime >= time:
            yield path, path.read_text(errors="replace")[-MAX_TOLD:]


class ServiceProcess:
    """A running ``jupyter interpreter serve``."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.record_dir = folder / "notebooks"
        self.state_dir = folder / "state"
        self._environment = dict(environment or {})
        self.log_path = folder / "service.log"
        self.url = ""
        self.token = ""

    def start(self) -> None:
        """Start it and wait for the line with its address."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("INTERPRETER_")}
        environment = {
            **kept,
            "INTERPRETER_PORT": "0",
            "INTERPRETER_TOKEN": TOKEN,
            "INTERPRETER_RECORD_DIR": str(self.record_dir),
            "INTERPRETER_STATE_DIR": str(self.state_dir),
            "JUPYTER_CONFIG_DIR": str(self.folder / "config"),
            **self._environment,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        _logs.add(self.log_path)
        log = self.log_path.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "interpreter", "serve"],
            cwd=self.folder,
            env={name: value for name, value in environment.items() if value},
            stdout=subprocess.PIPE,
            stderr=log,
        )
        log.close()
        self._read_address()

    def _read_address(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := _ADDRESS.search(line.decode()):
                self.url, self.token = found[1], found[2]
                return
        self.process.kill()
        self.stop()
        raise AssertionError(f"The service did not start:\n{self.log_path.read_text()[-4000:]}")

    @property
    def gateway(self) -> psutil.Process:
        """The embedded gateway: the child of its supervisor, whose command line is the same."""
        named = "interpreter.gateway_extension.main"
        [supervisor] = [p for p in psutil.Process(self.process.pid).children() if named in p.cmdline()]
        [gateway] = [p for p in supervisor.children() if named in p.cmdline()]
        return gateway

    def client(self, token: str | None = None, **options: Any) -> httpx.Client:
        """A client of its API; the admin token unless another is given, none for an empty one."""
        token = self.token if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=90, trust_env=False, **options)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(STOP_TIMEOUT)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def restart(self) -> None:
        """Stop it politely and start it again on the same record and state."""
        self.stop()
        self.start()


@contextmanager
def running_service(folder: Path, **environment: str) -> Iterator[ServiceProcess]:
    """A service for one ``with`` block. Keyword arguments are INTERPRETER_ settings in lower case."""
    names = {f"INTERPRETER_{name.upper()}": value for name, value in environment.items()}
    service = ServiceProcess(folder, names)
    service.start()
    try:
        yield service
    finally:
        service.stop()
