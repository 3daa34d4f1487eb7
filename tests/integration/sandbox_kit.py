"""Kernels in the sandbox for tests: started through jupyter_client alone, as any gateway would."""

import atexit
import contextlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from interpreter.gateway_extension.sandbox.removal import remove_tree

PROJECT = Path(__file__).parents[2]
IS_ROOT = os.geteuid() == 0
USER = 65534  # nobody
DEFAULTS: dict[str, Any] = {}  # configuration of all kernels; tests of another mode set it for their module
FORK: dict[str, Any] = {"fork_server": True}


def kernel_python() -> str:
    """The Python of the kernels: their own environment when it is there."""
    own = PROJECT / ".venv-kernel/bin/python"
    return str(own) if own.exists() else sys.executable


def kernel_argv() -> list[str]:
    quiet = "--HistoryManager.hist_file=:memory:"  # a full workspace also stops IPython's history file
    return [kernel_python(), "-m", "ipykernel_launcher", "-f", "{connection_file}", quiet]


def write_kernelspec(folder: Path, config: dict[str, Any], argv: list[str] | None = None) -> None:
    provisioner = {"provisioner_name": "bubblewrap-provisioner", "config": config}
    spec = {
        "argv": argv or kernel_argv(),
        "display_name": "Boxed",
        "language": "python",
        "metadata": {"kernel_provisioner": provisioner},
    }
    (folder / "boxed").mkdir(parents=True, exist_ok=True)
    (folder / "boxed/kernel.json").write_text(json.dumps(spec))


def new_workspace() -> Path:
    """An empty folder, removed when the tests end."""
    path = Path(tempfile.mkdtemp(prefix="ws-"))
    atexit.register(remove_tree, path)
    return path


class Boxed:
    """A running kernel and a client of it."""

    def __init__(self, manager: KernelManager, workspace: Path) -> None:
        self.manager = manager
        self.workspace = workspace
        self.client: BlockingKernelClient | None = None

    def connect(self) -> None:
        if self.client is not None:
            self.client.stop_channels()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=30)

    @property
    def provisioner(self) -> Any:
        return self.manager.provisioner

    @property
    def init(self) -> int:
        """The host's pid of the sandbox's first process."""
        return int(self.provisioner._sandbox._held.init)

    def run(self, code: str, timeout: float = 20.0) -> str:
        """What the code printed, with the error's name and text at the end."""
        texts: list[str] = []

        def keep(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                texts.append(content["text"])
            elif message["msg_type"] == "error":
                texts.append(f"{content['ename']}: {content['evalue']}")

        assert self.client is not None
        self.client.execute_interactive(
            code, output_hook=keep, timeout=timeout, allow_stdin=False, stop_on_error=False
        )
        return "".join(texts)

    def start_run(self, code: str) -> str:
        """Run code without waiting for its end; the request's id."""
        assert self.client is not None
        return str(self.client.execute(code, stop_on_error=False))

    def wait_for_reply(self, request: str, timeout: float = 10.0) -> str:
        """The status of a run's reply."""
        assert self.client is not None
        while True:
            reply = self.client.get_shell_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == request:
                return str(reply["content"]["status"])

    def wait_for_output(self, request: str, text: str, timeout: float = 10.0) -> None:
        """Wait until a run has printed a text."""
        assert self.client is not None
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            is_its = message["parent_header"].get("msg_id") == request
            if is_its and message["msg_type"] == "stream" and text in message["content"]["text"]:
                return

    def wait_for_file(self, name: str, timeout: float = 10.0) -> None:
        """Wait until the kernel has made a file in its workspace."""
        deadline = time.monotonic() + timeout
        while not (self.workspace / name).exists():
            assert time.monotonic() < deadline, f"no {name}"
            time.sleep(0.02)

    def wait_for_death(self, timeout: float = 20.0) -> str:
        """The reason of the kernel's death, once it is dead."""
        deadline = time.monotonic() + timeout
        while self.manager.is_alive():
            assert time.monotonic() < deadline, "the kernel lives"
            time.sleep(0.05)
        return str(self.provisioner.death_reason)

    def close(self) -> None:
        if self.client is not None:
            self.client.stop_channels()
        if self.manager.has_kernel or self.provisioner is not None:
            self.manager.shutdown_kernel(now=True)


@contextlib.contextmanager
def boxed(
    config: dict[str, Any] | None = None,
    *,
    workspace: Path | None = None,
    env: dict[str, str] | None = None,
    argv: list[str] | None = None,
    private: bool = False,
) -> Iterator[Boxed]:
    """A kernel in the sandbox, ready; ended when the block ends. ``private``: it is given no workspace."""
    with tempfile.TemporaryDirectory() as folder:
        write_kernelspec(Path(folder), DEFAULTS | (config or {}), argv)
        manager = KernelManager(
            kernel_name="boxed",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[folder], ensure_native_kernel=False),
        )
        kernel = Boxed(manager, workspace or new_workspace())
        try:
            place = {} if private else {"cwd": str(kernel.workspace)}
            manager.start_kernel(env=dict(os.environ) | (env or {}), **place)
            kernel.connect()
            yield kernel
        finally:
            kernel.close()
            if workspace is None:
                remove_tree(kernel.workspace)


def zygote_of(kernel: Boxed) -> int:
    """The pid of the process that a kernel was forked from."""
    return int(kernel.provisioner._sandbox.forking.zygote.pid)


def host_processes_with(text: str) -> list[int]:
    """Processes of this host whose command line or working directory holds ``text``."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                if text.encode() in line:
                    found.append(int(name))
    return found


def as_ordinary_user(argv: list[str]) -> list[str]:
    """A command that runs ``argv`` as a plain user, who can enter the folder of this Python too."""
    base = sys.base_prefix
    closed = next((str(p) for p in reversed(Path(base).parents) if p.stat().st_mode & 0o005 != 0o005), None)
    steps = ["set -e"]
    if closed is not None:  # say /root: replaced, in a mount namespace of its own, by a folder with that only
        steps += [
            f"mount --bind {shlex.quote(base)} /mnt",
            f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(closed)}",
            f"mkdir -p {shlex.quote(base)}",
            f"mount --move /mnt {shlex.quote(base)}",
        ]
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
    steps.append(f"exec {shlex.join([*user, *argv])}")
    return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", "\n".join(steps)]
