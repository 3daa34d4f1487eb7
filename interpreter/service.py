"""Builds every object of the service once, in named steps, and takes them down in reverse order."""

import asyncio
import contextlib
import fcntl
import ipaddress
import logging
import os
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from tornado.netutil import bind_sockets

from interpreter import frontends
from interpreter.api.routes import make_application, make_toolbox
from interpreter.api.server import Server, allow_many_files
from interpreter.api.services import Services
from interpreter.errors import GatewayError, InterpreterError, SettingsError
from interpreter.kernel_files import KernelWorkspaces, SessionFiles
from interpreter.kernels.embedded import EmbeddedGateway
from interpreter.kernels.fork_server import make_fork_server
from interpreter.kernels.gateway import Gateway
from interpreter.kernels.isolation import Isolation, find_isolation
from interpreter.kernels.launcher import GatewayLauncher
from interpreter.kernels.pool import PoolLimits
from interpreter.kernels.pooled import PooledLauncher
from interpreter.kernels.remembering import RememberingGateway
from interpreter.kernels.target import GatewayTarget
from interpreter.metrics import Metrics
from interpreter.models import Role
from interpreter.record import Recorder
from interpreter.runs import RunManager
from interpreter.sessions import SessionManager
from interpreter.settings import Settings
from interpreter.store import Store, sqlite_url
from interpreter.tokens import TokenStore, new_secret
from interpreter.workspace import Workspaces

log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parent

MIN_TOKEN = 16  # characters of a configured token, where other machines can try to guess it
IDLE_TIMEOUT = 75.0  # seconds for a whole request line with its headers, also the next on a connection
TOKEN_INTERVAL = 1.0  # seconds between two looks for runs whose token has ended
CLOSE_STEP_TIMEOUT = 20.0  # seconds that one step of the way down may take


def utc_now() -> datetime:
    """The clock of the service."""
    return datetime.now(UTC)


class Service:
    """The running service. `start` it, then `aclose` it.

    `start` raises SettingsError or InterpreterError with a sentence for the admin; what had been
    started is then taken down again.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.url = ""
        self.token = settings.token
        """What a person gets: the configured one, else that of the first start, else `local_token`."""
        self.local_token = new_secret()
        """An admin token that lives as long as this object, for the command line on this machine."""
        self.gateway_problem = ""
        """Why the external gateway could not be used at the start; empty when it could."""
        self._state_dir = Path(settings.state_dir)
        self._closers: list[tuple[str, Callable[[], Awaitable[None]]]] = []

    async def start(self) -> None:
        """Bring all parts up; it accepts requests when this returns."""
        try:
            await self._start()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Take all parts down in reverse order; each step is bounded and none is skipped."""
        while self._closers:
            name, close = self._closers.pop()
            try:
                async with asyncio.timeout(CLOSE_STEP_TIMEOUT):
                    await close()
            except TimeoutError:
                log.error("Stopping %s took longer than %g seconds.", name, CLOSE_STEP_TIMEOUT)
            except Exception:
                log.exception("Stopping %s failed.", name)

    async def _start(self) -> None:
        settings = self.settings
        _check_address(settings.ip)
        allow_many_files()
        self._take_state_dir()
        isolation = await find_isolation(settings, is_local=is_loopback(settings.ip))
        store = await self._start_store()
        tokens = await self._start_tokens(store)
        recorder = await self._start_recorder()
        workspaces = await self._make_workspaces()
        gateway, embedded = await self._start_gateway(workspaces, isolation)
        fork_server = make_fork_server(settings, embedded, sandboxed=bool(isolation.sandboxed))
        self._closers.append(("the fork server's state", fork_server.aclose))
        await fork_server.start()
        registry = CollectorRegistry()
        launcher = self._launcher(gateway, embedded, workspaces, isolation)
        sessions = SessionManager(
            settings, launcher, recorder, workspaces, clock=utc_now, isolation=isolation
        )
        is_shared = embedded is not None or bool(settings.gateway_workspace_path)
        files: SessionFiles = workspaces if is_shared else KernelWorkspaces(workspaces.uploads)
        metrics = Metrics(registry, live_sessions=sessions.count, ready_kernels=launcher.pool.count)
        runs = RunManager(settings, sessions, recorder, files, clock=utc_now, observe=metrics.observe_run)
        if isinstance(files, KernelWorkspaces):
            sessions.add_end_hook(files.session_ends)
        connections_close_at = len(self._closers)
        self._closers.append(("the runs", runs.aclose))
        self._closers.append(("the sessions", sessions.aclose))
        await sessions.recover()
        launcher.pool.start()
        self._repeat("the culler", sessions.cull, settings.cull_interval)
        self._repeat("the watch on tokens", lambda: runs.cancel_all_of(tokens.has_ended), TOKEN_INTERVAL)
        services = Services(
            settings=settings,
            tokens=tokens,
            sessions=sessions,
            runs=runs,
            recorder=recorder,
            workspaces=files,
            readiness={
                "gateway": lambda: _gateway_ready(gateway, settings.kernel_name),
                "store": lambda: _problem_ready(store.find_problem()),
                "record": lambda: _problem_ready(_record_problem(recorder)),
                "sandbox": isolation.check,
                **fork_server.readiness,
            },
            registry=registry,
            clock=utc_now,
            isolation=isolation,
        )
        self._listen(services, connections_close_at)
        self._closers.append(("the acceptance of runs", _called(runs.stop_accepting)))
        if embedded is not None:  # it ends its kernels much faster than they can be deleted one by one
            self._closers.append(("the deletion of kernels", _called(gateway.leave_kernels)))

    def _take_state_dir(self) -> None:
        """Make the folder and be its only service: two would sweep away each other's kernels' folders."""
        try:
            self._state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
            lock = os.open(self._state_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(f"state_dir can't be made or written: {error.strerror}.") from error
        self._closers.append(("the lock of state_dir", _called(lambda: os.close(lock))))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingsError(
                f"Another service uses state_dir ({self._state_dir}); stop it, or set state_dir to another folder."
            ) from error
        except OSError as error:
            log.warning("state_dir is on a disk without locks (%s): start one service on it.", error.strerror)

    async def _start_store(self) -> Store:
        store = Store(self.settings.store_url or sqlite_url(self._state_dir / "store.sqlite"))
        self._closers.append(("the store", store.aclose))
        await store.start()
        return store

    async def _start_tokens(self, store: Store) -> TokenStore:
        """The tokens; when none is configured, the first start makes one that is stored.

        Later starts know only its hash, so the printed address holds `local_token`, which lives as long
        as the process, as a Jupyter server's does.
        """
        is_local = is_loopback(self.settings.ip)
        if self.token and len(self.token) < MIN_TOKEN and not is_local:
            raise SettingsError(
                f"token has less than {MIN_TOKEN} characters and other machines can reach ip "
                f"({self.settings.ip}), who may guess it: set a longer one."
            )
        stored = await TokenStore(store, clock=utc_now).list()
        if not self.token and not stored and not is_local:
            raise SettingsError(
                f"ip is {self.settings.ip}, which other machines can reach: set token "
                "(INTERPRETER_TOKEN), or make one with `jupyter interpreter token create`."
            )
        configured = self.token
        tokens = TokenStore(store, clock=utc_now, configured_secret=configured, local_secret=self.local_token)
        if not configured and not stored:
            _, self.token = await tokens.create("first start", Role.ADMIN, None)
        self.token = self.token or self.local_token
        return tokens

    async def _start_recorder(self) -> Recorder:
        recorder = Recorder(Path(self.settings.record_dir), self._state_dir, clock=utc_now)
        self._closers.append(("the record", recorder.aclose))
        await recorder.start()
        return recorder

    async def _make_workspaces(self) -> Workspaces:
        workspaces = Workspaces(
            self._state_dir / "workspaces",
            max_file_bytes=self.settings.max_file_bytes,
            max_workspace_bytes=self.settings.max_workspace_bytes,
        )
        await asyncio.to_thread(workspaces.prepare)
        return workspaces

    async def _start_gateway(
        self, workspaces: Workspaces, isolation: Isolation
    ) -> tuple[Gateway, EmbeddedGateway | None]:
        settings = self.settings
        if settings.gateway_url:
            external = RememberingGateway(GatewayTarget.from_settings(settings), self._state_dir / "kernels")
            self._closers.append(("the gateway's client", _called(external.close)))
            try:
                log.info("%s", await external.check(settings.kernel_name))
            except GatewayError as error:
                # It may come up later; until then /readyz says the same.
                log.error("The gateway can't be used yet: %s", error.message)
                self.gateway_problem = error.message
            return external, None
        embedded = EmbeddedGateway(
            settings,
            state_dir=self._state_dir,
            workspace_root=workspaces.root,
            on_exit=lambda: log.error("The embedded gateway died; its kernels are gone."),
            sandboxed=bool(isolation.sandboxed),
        )
        self._closers.append(("the embedded gateway", embedded.aclose))
        await embedded.start()
        gateway = Gateway(embedded.target)
        self._closers.append(("the gateway's client", _called(gateway.close)))
        try:
            log.info("%s", await gateway.check(settings.kernel_name))
        except GatewayError as error:
            raise SettingsError(error.message) from error
        return gateway, embedded

    def _launcher(
        self,
        gateway: Gateway,
        embedded: EmbeddedGateway | None,
        workspaces: Workspaces,
        isolation: Isolation,
    ) -> PooledLauncher:
        settings = self.settings
        launcher = GatewayLauncher(
            gateway,
            start_timeout=settings.kernel_start_timeout,
            workspace_path="" if embedded is not None else settings.gateway_workspace_path or None,
            outlives_service=embedded is None,
        )
        limits = PoolLimits(
            settings.pool_size, settings.pool_min, settings.pool_refill_interval, settings.pool_max_age
        )
        return PooledLauncher(
            launcher,
            limits,
            default_kernel_name=settings.kernel_name,
            default_network=isolation.choose_network(None, settings),
            create_workspace=workspaces.create,
            remove_workspace=workspaces.remove,
            now=time.monotonic,
        )

    def _repeat(self, name: str, work: Callable[[], Awaitable[None]], interval: float) -> None:
        task = asyncio.create_task(_repeat_for_ever(name, work, interval), name=name)

        async def stop() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        self._closers.append((name, stop))

    def _listen(self, services: Services, connections_close_at: int) -> None:
        settings, toolbox = self.settings, make_toolbox(services)
        server = Server(
            make_application(
                services,
                toolbox=toolbox,
                extra_routes=frontends.make_routes(toolbox),
                template_path=_PACKAGE / "web" / "templates",
                static_path=_PACKAGE / "web" / "static",
                cookie_secret=_kept_secret(self._state_dir / "cookie.secret"),
            ),
            ssl_options=_tls_context(settings) if settings.certfile else None,
            max_body_size=settings.max_file_bytes + 1024**2,
            idle_connection_timeout=IDLE_TIMEOUT,
        )
        try:
            sockets = bind_sockets(settings.port, settings.ip)
        except OSError as error:
            raise SettingsError(
                f"Can't listen on {settings.ip}:{settings.port} ({error.strerror}); change ip or port."
            ) from error
        server.add_sockets(sockets)
        scheme = "https" if settings.certfile else "http"
        host = f"[{settings.ip}]" if ":" in settings.ip else settings.ip
        self.url = f"{scheme}://{host}:{sockets[0].getsockname()[1]}"

        async def stop() -> None:
            server.stop()
            await server.close_all_connections()

        # After the runs: whoever waits for a run that the stop ends is still answered.
        self._closers.insert(connections_close_at, ("the open connections", stop))
        self._closers.append(("listening", _called(server.stop)))


def _check_address(ip: str) -> None:
    """Raise SettingsError for an ``ip`` that nobody can listen on here, whatever the port."""
    wrong = SettingsError(f"ip is not an address of this machine: {ip!r}.")
    try:
        found = socket.getaddrinfo(ip or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:  # the latter from names that IDNA does not allow
        raise wrong from error
    if not any(_is_ours(family, address) for family, *_, address in found):
        raise wrong


def _is_ours(family: int, address: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind(address)
    except OSError:
        return False
    return True


def is_loopback(ip: str) -> bool:
    """Whether only this machine reaches the address."""
    if ip == "localhost":
        return True
    try:
        return ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return False


def _kept_secret(path: Path) -> bytes:
    """Random bytes that are made once and kept, readable by nobody else."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret := secrets.token_bytes(32))
    return secret


async def _repeat_for_ever(name: str, work: Callable[[], Awaitable[None]], interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        try:
            await work()
        except Exception:
            log.exception("A round of %s failed; the next one comes.", name)


async def _gateway_ready(gateway: Gateway, kernel_name: str) -> tuple[bool, str]:
    try:
        return True, await gateway.check(kernel_name)
    except InterpreterError as error:
        return False, error.message


async def _problem_ready(finding: Awaitable[str | None]) -> tuple[bool, str]:
    problem = await finding
    return problem is None, problem or "It can be written."


async def _record_problem(recorder: Recorder) -> str | None:
    return recorder.problem


def _called(close: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        close()

    return call


def _tls_context(settings: Settings) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.certfile, settings.keyfile)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError("certfile and keyfile are not a readable PEM pair.") from error
    return context
