"""The gateway that the service starts for itself when no `gateway_url` is set."""

import asyncio
import collections
import contextlib
import json
import logging
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest

from interpreter.errors import SettingsError, UnavailableError
from interpreter.gateway_extension.sandbox.removal import remove_tree
from interpreter.kernels.fetching import fetch
from interpreter.kernels.isolation import PROVISIONER, provisioner_options
from interpreter.kernels.target import GatewayTarget
from interpreter.settings import Settings

log = logging.getLogger(__name__)

START_TIMEOUT = 60.0
"""Seconds in which a gateway must answer its first request."""
STOP_TIMEOUT = 10.0
"""Seconds that a stop may take; the supervisor kills the gateway well before."""
MAX_BACKOFF = 30.0
MAX_TEMPORARY = 20
"""Bytes that the path of the temporary folder may have: a socket's path has at most 107."""
STABLE_AFTER = 60.0
"""Seconds after which a gateway that died counts as having run well, so that back-off begins anew."""
_POLL_INTERVAL = 0.03
_RECORD = re.compile(r"\[([DIWEC]) ")
"""How a record of the gateway's log begins, as traitlets writes it."""
_KEPT_VARIABLES = ("LANG", "LC_ALL", "PATH", "TZ")
_PACKAGE = Path(__file__).resolve().parent.parent


class EmbeddedGateway:
    """A kernel gateway as a process of its own, on loopback, supervised.

    It keeps its port and its token for its whole life, across restarts. `on_exit` is called (in the
    event loop) each time the process ends unasked; all its kernels are gone then. `start` and
    `aclose` are to be awaited on the main thread, because the process is bound to the thread that
    started it. `aclose` ends the gateway and every process that it or a kernel has started. With
    ``sandboxed`` every kernelspec that names no other provisioner starts in the sandbox.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        state_dir: Path,
        workspace_root: Path,
        on_exit: Callable[[], None],
        sandboxed: bool = True,
    ) -> None:
        self._settings = settings
        self._sandboxed = sandboxed
        self._folder = state_dir.resolve() / "gateway"
        self._workspace_root = workspace_root.resolve()
        self._on_exit = on_exit
        self._token = secrets.token_urlsafe(32)
        # Bound, never listening: it keeps the port ours while the gateway restarts.
        self._reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._closing = asyncio.Event()
        self._supervision: asyncio.Task[None] | None = None
        self._log_reader: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._last_lines: collections.deque[str] = collections.deque(maxlen=20)
        self._environment: dict[str, str] = {}
        self._problem: str | None = "The gateway has not been started."

    @property
    def url(self) -> str:
        """Base URL; valid from `start` on."""
        return f"http://127.0.0.1:{self._reserved.getsockname()[1]}"

    @property
    def token(self) -> str:
        return self._token

    @property
    def target(self) -> GatewayTarget:
        """How it is to be asked; valid from `start` on."""
        return GatewayTarget(
            self.url,
            auth="token",
            token=self._token,
            connect_timeout=self._settings.gateway_connect_timeout,
            request_timeout=self._settings.gateway_request_timeout,
            keeps_messages=True,
        )

    @property
    def pid(self) -> int | None:
        """Process id of the supervisor process, the parent of the gateway; None while there is none."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def problem(self) -> str | None:
        """One sentence while the gateway is down, None while it answers."""
        return self._problem

    async def start(self) -> None:
        """Returns when the gateway answers.

        Raises `SettingsError` for an unusable kernel environment, `UnavailableError` when the
        gateway does not come up; `aclose` is due then too.
        """
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        runtime_dir = self._make_folders()
        self._environment = gateway_environment(
            os.environ,
            folder=self._folder,
            runtime_dir=runtime_dir,
            kernelspecs=await self._kernelspecs(),
        )
        self._configure_sandbox(runtime_dir)
        try:
            process = await self._launch()
        except UnavailableError:
            await self._end_process()
            raise
        self._supervision = asyncio.create_task(self._supervise(process), name="embedded gateway")

    async def aclose(self) -> None:
        """Ends the gateway; returns when no process of it is left. Never raises for one that is dead."""
        self._closing.set()
        if self._supervision is not None:
            self._supervision.cancel()
            await asyncio.wait([self._supervision])
        await self._end_process()
        self._reserved.close()
        await asyncio.to_thread(self._remove_runtime_dir)
        self._problem = "The gateway has been stopped."

    # Life of the process

    async def _launch(self) -> asyncio.subprocess.Process:
        """Starts the process and waits for its first answer; nothing of an earlier one may be running."""
        await asyncio.to_thread(self._clear_folders)
        port = self.url.rpartition(":")[2]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the working directory holds users' files: nothing may be imported from there
            "-m",
            "interpreter.gateway_extension.main",
            str(os.getpid()),
            f"--config={gateway_config_dir() / 'jupyter_kernel_gateway_config.py'}",
            "--KernelGatewayApp.ip=127.0.0.1",
            f"--KernelGatewayApp.port={port}",
            f"--KernelGatewayApp.default_kernel_name={self._settings.kernel_name}",
            f"--MappingKernelManager.root_dir={self._workspace_root}",
            f"--OneKernelManager.homes_dir={self._folder / 'homes'}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
            cwd=self._workspace_root,
            start_new_session=True,
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._log_reader = asyncio.create_task(self._read_log(process.stdout), name="embedded gateway's log")
        process.stdin.write(f"{self._token}\n".encode())
        process.stdin.close()
        await self._wait_until_ready(process)
        self._problem = None
        return process

    async def _wait_until_ready(self, process: asyncio.subprocess.Process) -> None:
        request = HTTPRequest(
            f"{self.url}/api",
            headers={"Authorization": f"token {self._token}"},
            connect_timeout=5,
            request_timeout=5,
        )
        client = AsyncHTTPClient(force_instance=True)
        try:
            async with asyncio.timeout(START_TIMEOUT):
                while process.returncode is None:
                    with contextlib.suppress(OSError, HTTPError):
                        await fetch(client, request)
                        return
                    await asyncio.sleep(_POLL_INTERVAL)
        except TimeoutError as error:
            raise UnavailableError("The embedded gateway did not answer in time.") from error
        finally:
            client.close()
        log.error("embedded gateway did not start; its last lines:\n%s", self._recent_log())
        raise UnavailableError(
            f"The embedded gateway ended at its start with code {process.returncode}; its log says why."
        )

    async def _supervise(self, process: asyncio.subprocess.Process) -> None:
        delay = 0.0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            code = await process.wait()
            log.error("embedded gateway ended with code %s; its last lines:\n%s", code, self._recent_log())
            self._problem = f"The embedded gateway ended with code {code} and is being restarted."
            self._on_exit()
            if loop.time() - began > STABLE_AFTER:
                delay = 0.0
            while self._problem is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), delay)
                    return
                delay = min(max(0.25, delay * 2), MAX_BACKOFF)
                await self._end_process()
                try:
                    process = await self._launch()
                except (UnavailableError, OSError) as error:
                    self._problem = f"The embedded gateway can't be restarted ({type(error).__name__})."
                    log.error("embedded gateway: restart failed: %s", error)
            log.warning("embedded gateway restarted")

    async def _end_process(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
            except TimeoutError:
                log.error("embedded gateway does not stop; killing it")
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if self._log_reader is not None:
            # It ends with the pipe; an orphan that holds the pipe must not hold us.
            await asyncio.wait([self._log_reader], timeout=STOP_TIMEOUT)
            self._log_reader.cancel()

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        rest, level = b"", logging.DEBUG
        while chunk := await stream.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-65536:]
            for line in lines:
                text = line.decode("utf-8", "replace").replace(self._token, "[token]").rstrip()
                if text:
                    self._last_lines.append(text)
                    level = _level(text, level)
                    log.log(level, "gateway: %s", text)

    def _recent_log(self) -> str:
        return "\n".join(self._last_lines)

    # Folders

    def _make_folders(self) -> Path:
        self._remove_runtime_dir()  # of a service that was killed
        for name in ("config", "data", "homes"):
            (self._folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._workspace_root.mkdir(parents=True, exist_ok=True)
        # The kernels' sockets: a path of more than 107 bytes can't be bound, so not below state_dir.
        runtime_dir = Path(tempfile.mkdtemp(prefix="ji-", dir=_short_folder()))
        (self._folder / "runtime_dir").write_text(str(runtime_dir), encoding="utf-8")
        return runtime_dir

    def _configure_sandbox(self, runtime_dir: Path) -> None:
        """The gateway reads it beside its own file: it is the configuration of all Jupyter programs."""
        path = self._folder / "config" / "jupyter_config.json"
        path.unlink(missing_ok=True)
        if self._sandboxed:
            self._environment["JUPYTER_DEFAULT_PROVISIONER_NAME"] = PROVISIONER
            options = provisioner_options(
                self._settings, workspace_root=self._workspace_root, runtime_dir=runtime_dir / "s"
            )
            path.write_text(json.dumps({"BubblewrapProvisioner": options}), encoding="utf-8")

    def _clear_folders(self) -> None:
        """Sockets and homes of kernels that a dead gateway has left."""
        for folder in (Path(self._environment["JUPYTER_RUNTIME_DIR"]), self._folder / "homes"):
            for entry in folder.iterdir():
                _remove(entry)

    def _remove_runtime_dir(self) -> None:
        note = self._folder / "runtime_dir"
        if note.is_file():
            path = Path(note.read_text(encoding="utf-8").strip())
            if path.name.startswith("ji-"):
                _remove(path)
            note.unlink()
        _remove(self._folder / "homes")

    async def _kernelspecs(self) -> list[Path]:
        """The ``share/jupyter`` folders in which the gateway looks for kernelspecs, best first."""
        environment = self._kernel_env_dir()
        own = environment / "share" / "jupyter"
        if (own / "kernels" / "python3" / "interpreter_kernel.py").is_file():
            return [own]
        python = environment / "bin" / "python"
        prefix = self._folder / "kernelspecs"
        process = await asyncio.create_subprocess_exec(
            python,
            str(gateway_config_dir() / "install_kernel.py"),
            f"--prefix={prefix}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        if await process.wait() != 0:
            raise SettingsError(f"kernel_env_dir: no kernelspec could be made for {python}.")
        return [prefix / "share" / "jupyter", own]

    def _kernel_env_dir(self) -> Path:
        if self._settings.kernel_env_dir:
            chosen = Path(self._settings.kernel_env_dir).absolute()
            if not (chosen / "bin" / "python").exists():
                raise SettingsError(f"kernel_env_dir: {chosen} has no bin/python.")
            return chosen
        beside = _PACKAGE.parent / ".venv-kernel"
        return (
            beside if (beside / "share/jupyter/kernels/python3/kernel.json").is_file() else Path(sys.prefix)
        )


def _level(line: str, before: int) -> int:
    """At which level to log a line of the gateway's, which may go on with the record before: errors and tracebacks."""
    begin = _RECORD.match(line)
    if begin is None:
        return before
    return logging.ERROR if begin[1] == "E" else logging.DEBUG


def _short_folder() -> str | None:
    """Where there is room for a kernel's name in the path of a socket; None for the system's choice."""
    for folder in (tempfile.gettempdir(), "/tmp", "/run"):  # noqa: S108  (mkdtemp makes a private one)
        if len(os.fsencode(folder)) <= MAX_TEMPORARY and os.access(folder, os.W_OK):
            return folder
    return None


def _remove(path: Path) -> None:
    """Remove what is there, however a kernel left it; what can't be removed is no reason not to start."""
    try:
        remove_tree(path)
    except OSError as error:
        log.warning("A runtime folder could not be removed (%s).", error.strerror)


def gateway_config_dir() -> Path:
    """``gateway_config/``: in a wheel inside the package, in a checkout beside it."""
    packaged = _PACKAGE / "_gateway_config"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "gateway_config"


def gateway_environment(
    service: Mapping[str, str], *, folder: Path, runtime_dir: Path, kernelspecs: list[Path]
) -> dict[str, str]:
    """The gateway's whole environment: nothing of the service's own but a few harmless names."""
    environment = {name: service[name] for name in _KEPT_VARIABLES if name in service}
    environment.setdefault("PATH", os.defpath)
    environment |= {
        "HOME": str(folder / "data"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(runtime_dir),
        "JUPYTER_PATH": os.pathsep.join(map(str, kernelspecs)),
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return environment
