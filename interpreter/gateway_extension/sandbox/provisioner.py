"""`BubblewrapProvisioner`: a kernel provisioner that puts each kernel into a bubblewrap sandbox.

Usable in any gateway or server, or with jupyter_client alone, through the kernelspec::

    "metadata": {"kernel_provisioner": {"provisioner_name": "bubblewrap-provisioner",
                                        "config": {"memory_bytes": 1073741824}}}

One instance serves one kernel manager through all restarts: `Place` is what it keeps meanwhile, a
`Sandbox` is one start.
"""

import asyncio
import atexit
import contextlib
import os
import re
import signal
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo

from interpreter import disposal
from interpreter.gateway_extension.sandbox.bubblewrap import (
    EarlyDeathError,
    SandboxError,
    SandboxUnavailableError,
)
from interpreter.gateway_extension.sandbox.cgroups import Parents, find_parents
from interpreter.gateway_extension.sandbox.command import WORKSPACE, Bind, Box, box_files
from interpreter.gateway_extension.sandbox.environment import (
    kernel_environment,
    masked_proc_files,
    program_roots,
    system_binds,
)
from interpreter.gateway_extension.sandbox.folders import close_instances, default_runtime_dir
from interpreter.gateway_extension.sandbox.fork_command import ForkCommand, Origin, extension_files
from interpreter.gateway_extension.sandbox.forking import Forking
from interpreter.gateway_extension.sandbox.limits import Limits, size_text
from interpreter.gateway_extension.sandbox.options import DEFAULT_LIMITS, SandboxOptions
from interpreter.gateway_extension.sandbox.places import Place, Places
from interpreter.gateway_extension.sandbox.probe import advice, probe
from interpreter.gateway_extension.sandbox.proxy import PORT
from interpreter.gateway_extension.sandbox.sandbox import Network, Sandbox
from interpreter.gateway_extension.sandbox.workspace import open_to_owner
from interpreter.gateway_extension.sandbox.zygote import (
    ZygoteError,
    find_zygote,
    stop_zygotes,
    zygote_folder,
)

SOCKET_POLL = 0.01
FIRST_PORT = 40001  # of kernels that know TCP only; each sandbox has all ports to itself
_PORTS = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")

# What programs write last that can't have the memory they want; nothing but how the death is told hangs on it.
_WANTED_MEMORY = re.compile(
    r"out of memory|cannot allocate|memory allocation|MemoryError|bad_alloc", re.IGNORECASE
)

# How programs end that can't go on without the memory they want: by a signal, or where the loader says so.
_ABORTED = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGTRAP, 1, 127)

# Starts wait for other processes, so more of them at once than there are processors; and apart from what
# asyncio.to_thread is used for, or a burst of starts would stop all else.
_starters = ThreadPoolExecutor(8, "sandbox-start")

atexit.register(close_instances)
atexit.register(stop_zygotes)  # runs before the above, which removes their folders


class BubblewrapProvisioner(SandboxOptions):
    """Runs a kernel in a sandbox; every trait (see `SandboxOptions`) can be set in the kernelspec's ``config``."""

    _place: Place | None = None
    _sandbox: Sandbox | None = None
    _limits: Limits = DEFAULT_LIMITS
    _network: Network = Network()
    _death_reason: str | None = None
    _asked_to_end = False
    _finalizer: Any = None
    _starts = 0

    @property
    def death_reason(self) -> str | None:
        """Why the kernel ended by itself, for people; None while it runs or when it was asked to end."""
        return self._death_reason

    @property
    def limits(self) -> Limits:
        """The limits of the present or last start."""
        return self._limits

    @property
    def network_policy(self) -> str:
        """The network policy of the present or last start."""
        return self._network.policy

    # ---- start

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Check what was asked for and prepare the folders. Raises ValueError, `SandboxError`."""
        env = dict(kwargs.get("env") or {})
        self._limits = self.find_limits(env)
        self._network = self.find_network(env)
        self._death_reason = None
        self._asked_to_end = False
        place = await self._take_place(kwargs.get("cwd"))
        await disposal.apart(place.folder.prepare, place.uid)  # removes what a kernel before left
        await disposal.apart(open_to_owner, place.workspace)
        manager = self.parent
        if manager is None:
            raise SandboxError("this provisioner needs a kernel manager")
        manager.transport = "ipc"
        manager.ip = str(place.folder.published / "k")
        if manager.connection_file != str(place.folder.connection_file):
            manager.cleanup_connection_file()
            manager.connection_file = str(place.folder.connection_file)
        kwargs.setdefault("env", {})
        return await super().pre_launch(**kwargs)

    async def _take_place(self, cwd: str | None) -> Place:
        """The folder, workspace and uid of this kernel: the same at every restart."""
        if self._place is None:
            place = self._place = await self._places().take(cwd)
            self._finalizer = weakref.finalize(self, _release, os.getpid(), None, place)
        return self._place

    def _places(self) -> Places:
        first, last = self.uid_range
        return Places(self.runtime_dir or default_runtime_dir(), self.workspace_root, (first, last))

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the sandbox and wait until the kernel has made its sockets. Raises `SandboxError`."""
        place = self._place
        if place is None:
            raise SandboxError("launch_kernel comes after pre_launch")
        await self._end_sandbox()
        relayed = place.folder.write_kernel_file(FIRST_PORT) if self.kernel_transport == "tcp" else {}
        if place.lease is not None:
            os.chown(self._kernel_file(place), -1, place.uid)
            self._kernel_file(place).chmod(0o640)
        self._starts += 1
        try:
            first, last = self.uid_range
            probed = await asyncio.to_thread(probe, (first, last))
            if not probed.ok:
                raise SandboxUnavailableError(probed.reason or "the sandbox does not work here")
            await self._fork_or_start(self._box(cmd, place, kwargs["env"], proc=probed.proc), place, relayed)
        except SandboxUnavailableError as error:
            await self._give_up()
            raise SandboxUnavailableError(f"{error}. {advice(str(error))}") from error
        except BaseException:
            await self._give_up()
            raise
        return self.connection_info

    async def _fork_or_start(self, box: Box, place: Place, relayed: dict[str, int]) -> None:
        forking = await self._forking(box, place)
        if forking is not None:
            try:
                await self._start(self._new_sandbox(place, relayed, forking), box)
            except ZygoteError as error:
                self.log.warning("This kernel is started, not forked: %s", error)
                await self._end_sandbox()
            else:
                return
        await self._start(self._new_sandbox(place, relayed, None), box)

    def _new_sandbox(self, place: Place, relayed: dict[str, int], forking: Forking | None) -> Sandbox:
        sandbox = Sandbox(
            place,
            self._limits,
            self._network,
            find_parents() if self.use_cgroups else Parents(0, {}),
            name=f"{place.folder.path.parent.name}-{place.folder.path.name}-{self._starts}",
            relayed=relayed,
            forking=forking,
        )
        self._sandbox = sandbox
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _release, os.getpid(), sandbox, place)
        return sandbox

    async def _forking(self, box: Box, place: Place) -> Forking | None:
        """How to fork this kernel; None when it has to be started."""
        if not self.fork_server:
            return None
        command = self._fork_command(box.argv, box.env)
        if command is None:
            self.log.info("This kernel is started, not forked: its command or its variables ask for that")
            return None
        folder = zygote_folder(place.folder.path.parent, command.origin)
        try:
            zygote = await asyncio.to_thread(find_zygote, command.origin, folder)
        except ZygoteError as error:
            self.log.warning("Kernels are started, not forked: %s", error)
            return None
        return Forking(zygote, command, self._limits.threads())

    def _fork_command(self, argv: Sequence[str], env: Mapping[str, str]) -> ForkCommand | None:
        spec = self.kernel_spec
        files = extension_files(spec.metadata, spec.resource_dir)
        return ForkCommand.find(argv, env, self.fork_server_imports, files)

    def find_fork_server(self) -> tuple[Origin, Path] | None:
        """What `find_zygote` has to be told so that it starts the fork server of this kernelspec; None: it is off.

        Raises `ZygoteError` when its kernels can't be forked, ValueError for options that can't be.
        """
        if not self.fork_server:
            return None
        spec = self.kernel_spec
        command = self._fork_command(spec.argv, spec.env)
        if command is None:
            raise ZygoteError(f"the command of {spec.display_name!r} is not of the form `python -m module`")
        return command.origin, zygote_folder(self._places().instance.path, command.origin)

    async def _give_up(self) -> None:
        """After a failed start: leave nothing, but what a kernel that ran before may be restarted with."""
        await (self.cleanup() if self._starts == 1 else self._end_sandbox())

    async def _start(self, sandbox: Sandbox, box: Box) -> None:
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(_starters, sandbox.start, box)
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])  # what has been started can be ended then
            raise
        self.process, self.pid = process, process.pid  # type: ignore[assignment]  # as good as a Popen
        self.cwd = str(sandbox.place.workspace)
        await loop.run_in_executor(_starters, sandbox.release_hold)
        await self._wait_for_sockets(sandbox)

    async def _wait_for_sockets(self, sandbox: Sandbox) -> None:
        place = sandbox.place
        ports = [int(self.connection_info[name]) for name in _PORTS]  # type: ignore[literal-required]
        try:
            async with asyncio.timeout(self.socket_timeout):
                while not (
                    place.folder.is_published(ports)
                    if sandbox.relayed
                    else place.folder.publish(ports, place.uid)
                ):
                    if self.process is None or self.process.poll() is not None:
                        await disposal.apart(sandbox.ended.wait, 1.0)
                        raise self._early_death(sandbox)
                    # Nobody says when a socket has been bound; inotify is not in the standard library.
                    await asyncio.sleep(SOCKET_POLL)
        except TimeoutError:
            raise SandboxError("the kernel made no sockets in time") from None
        if place.lease is not None:
            place.folder.seal()
        sandbox.kernel_is_up()

    def _early_death(self, sandbox: Sandbox) -> EarlyDeathError:
        self.log.warning("The kernel ended before it was ready: %s", sandbox.log or "it wrote nothing")
        if sandbox.death_reason is None and (sandbox.oom_kills or _WANTED_MEMORY.search(sandbox.log)):
            return EarlyDeathError(self._out_of_memory())
        return EarlyDeathError(sandbox.death_reason or self._exit_text())

    def _box(self, cmd: list[str], place: Place, env: dict[str, str], *, proc: bool) -> Box:
        system, links = system_binds()
        folder = place.folder
        # A kernel may be started through another program: ["/bin/sh", "-c", …, "/env/bin/python"].
        programs = [arg for arg in cmd if os.path.isabs(arg) and os.access(arg, os.X_OK)]
        roots = [bind for program in programs if os.path.isfile(program) for bind in program_roots(program)]
        binds = {bind.dest: bind for bind in (*system, *roots)}
        for path in (*self.read_only_paths, *self._resources(cmd)):
            binds[path] = Bind(os.path.realpath(path), path)
        connection_file = str(folder.connection_file)
        binds[connection_file] = Bind(str(self._kernel_file(place)), connection_file)
        binds[str(folder.published)] = Bind(str(folder.sockets), str(folder.published), writable=True)
        binds[WORKSPACE] = Bind(str(place.workspace), WORKSPACE, writable=True)
        variables = kernel_environment(
            env,
            self.kernel_spec.env,
            program=cmd[0],
            allowed=self.env_names,
            threads=self._limits.threads(),
            proxy=f"http://127.0.0.1:{PORT}" if self._network.policy != "none" else None,
        )
        return Box(
            argv=cmd,
            binds=list(binds.values()),
            env=variables,
            links=links,
            files=box_files(),
            masked=masked_proc_files() if proc else (),
            tmp_bytes=self._limits.tmp_bytes,
            shm_bytes=self._limits.shm_bytes,
            proc=proc,
        )

    def _kernel_file(self, place: Place) -> Path:
        folder = place.folder
        return folder.kernel_file if self.kernel_transport == "tcp" else folder.connection_file

    def _resources(self, cmd: list[str]) -> list[str]:
        folder = self.kernel_spec.resource_dir
        return [folder] if folder and any(folder in arg for arg in cmd) else []

    # ---- life

    async def poll(self) -> int | None:
        """None while the kernel runs, else its exit code, or minus the number of the signal that ended it."""
        if self.process is None:
            return 0
        code = self._exit_code()
        if code is not None and self._sandbox is not None and self._death_reason is None:
            await disposal.apart(self._sandbox.ended.wait, 1.0)
            self._death_reason = self._find_reason(self._sandbox, code)
        return code

    def _find_reason(self, sandbox: Sandbox, code: int) -> str | None:
        if sandbox.death_reason is None and self._asked_to_end:
            return None
        if sandbox.death_reason is None and sandbox.oom_kills and code == -signal.SIGKILL:
            return self._out_of_memory()
        if sandbox.death_reason is None and code in _ABORTED and sandbox.was_short_of_memory:
            return f"{self._exit_text()}, nearly {self._out_of_memory()}"
        return sandbox.death_reason or self._exit_text()

    def _out_of_memory(self) -> str:
        return f"out of memory (limit {size_text(self._limits.memory_bytes)})"

    def _exit_code(self) -> int | None:
        code: int | None = self.process.poll() if self.process is not None else None
        # bubblewrap tells of a signal the way a shell does: 128 + its number
        return 128 - code if code is not None and code > 128 else code

    def _exit_text(self) -> str:
        code = self._exit_code()
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel and its children inside."""
        if self._sandbox is not None:
            self._sandbox.signal(signum)

    async def kill(self, restart: bool = False) -> None:
        """End every process of the sandbox at once."""
        self._asked_to_end = True
        if self._sandbox is not None:
            self._sandbox.kill()

    async def terminate(self, restart: bool = False) -> None:
        """Ask the kernel and its children to end."""
        self._asked_to_end = True
        await self.send_signal(signal.SIGTERM)

    async def shutdown_requested(self, restart: bool = False) -> None:
        """The kernel was asked to end: that it does needs no reason."""
        self._asked_to_end = True

    async def cleanup(self, restart: bool = False) -> None:
        """Leave nothing; for a restart: leave the workspace, the uid and the connection file."""
        await self._end_sandbox()
        if not restart and self._place is not None:
            place, self._place = self._place, None
            self._finalizer.detach()
            await disposal.apart(place.release)

    async def _end_sandbox(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await disposal.apart(sandbox.close)
            self.process = None

    def resolve_path(self, path_str: str) -> str | None:
        """No path of the host is told."""
        return None


def _release(pid: int, sandbox: Sandbox | None, place: Place) -> None:
    if pid != os.getpid():  # a fork of the gateway that ends: nothing of this is its own
        return
    if sandbox is not None:
        sandbox.close()
    place.release()
