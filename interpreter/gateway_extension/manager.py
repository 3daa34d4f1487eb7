"""Kernel managers: one for each kernel, and the one that holds them all."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.ioloop.manager import AsyncIOLoopKernelManager
from jupyter_client.kernelspec import KernelSpec, NoSuchKernel
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.session import DELIM
from jupyter_server._tz import utcnow
from jupyter_server.prometheus.metrics import KERNEL_CURRENTLY_RUNNING_TOTAL
from kernel_gateway.services.kernels.manager import SeedingMappingKernelManager
from tornado import web
from traitlets import Unicode, default

from interpreter import disposal
from interpreter.gateway_extension.activity import activity
from interpreter.gateway_extension.bounding import Backlog, Bounds, Parts
from interpreter.gateway_extension.buffering import ReplayBuffer
from interpreter.gateway_extension.connection import connections_of
from interpreter.gateway_extension.environment import kernel_environment
from interpreter.gateway_extension.leftovers import kill_leftovers
from interpreter.gateway_extension.restarter import PromptRestarter
from interpreter.gateway_extension.stream import KernelStream, Share

RECONNECT_INTERVAL_MS = 10
"""ZeroMQ waits 100 ms by default before it tries again to reach a kernel that is just starting."""
MAX_ZMQ_SOCKETS = 65536
"""Of the gateway's context; each kernel needs about eight, the default of 1023 ends at 120 kernels."""
INTERRUPT_REPLY_TIMEOUT = 1.0
"""Seconds in which a kernel that is interrupted by a message answers it, unless it does not listen."""
MAX_HEADER_BYTES = 65536
"""Of an answer's parent header; no real one is as large."""
MIB = 1024**2
SHARES = {
    "iopub": Share(64 * MIB, 16 * MIB),
    "shell": Share(64 * MIB, 16 * MIB),
    "control": Share(16 * MIB, 8 * MIB),
    "stdin": Share(4 * MIB, 4 * MIB),
}
"""What the gateway takes into its memory of what a kernel sends, before it is bounded. A kernel can send far more
than it has: the same pages again and again."""
SANDBOX_PROVISIONER = "bubblewrap-provisioner"
MAX_DEATHS = 1000
"""Kernels that died by themselves of which is still told why."""
ACTIVITY_STEP = timedelta(seconds=0.1)
"""So late ``last_activity`` may be while ``execution_state`` stays what it is."""


class OneKernelManager(AsyncIOLoopKernelManager):
    """Starts its kernel in an environment of its own and knows how the kernel ended."""

    homes_dir = Unicode(
        config=True, help="Folder of the kernels' private homes; by default beside the connection files."
    )

    @default("homes_dir")
    def _default_homes_dir(self) -> str:
        return os.path.join(os.path.dirname(self.connection_file), "homes")

    _exit_code: int | None = None

    @default("restarter_class")
    def _default_restarter_class(self) -> type[PromptRestarter]:
        return PromptRestarter

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.died = asyncio.Event()
        self.restarting = asyncio.Lock()
        self._streams: weakref.WeakSet[KernelStream] = weakref.WeakSet()

    @property
    def _kernelspec(self) -> KernelSpec:
        """Upstream's property is optional; a manager whose kernel starts has one."""
        spec = self.kernel_spec
        if spec is None:
            raise NoSuchKernel(self.kernel_name)
        return spec

    @property
    def sandboxed(self) -> bool:
        """Whether the provisioner gives the kernel a home and, if none was asked for, a folder to work in."""
        chosen = self._kernelspec.metadata.get("kernel_provisioner", {}).get("provisioner_name")
        default_name = KernelProvisionerFactory.instance().default_provisioner_name
        return bool((chosen or default_name) == SANDBOX_PROVISIONER)

    @property
    def home(self) -> Path:
        """The kernel's HOME; it lives as long as the kernel, across restarts."""
        return Path(self.homes_dir) / str(self.kernel_id)

    async def _async_pre_start_kernel(self, **kw: Any) -> tuple[list[str], dict[str, Any]]:
        self.kernel_id = self.kernel_id or kw["kernel_id"]
        self._exit_code = None
        if not self.sandboxed:
            await asyncio.to_thread(partial(self.home.mkdir, mode=0o700, parents=True, exist_ok=True))
            kw["cwd"] = kw.get("cwd") or str(self.home)
        kw["env"] = kernel_environment(
            os.environ,
            kernel_id=str(self.kernel_id),
            program=self._kernelspec.argv[0],
            home=self.home,
            requested=kw.get("env") or {},
        )
        # Not the gateway's own: a kernel must not write to the service's log.
        kw["stdout"] = kw["stderr"] = subprocess.DEVNULL
        prepared: tuple[list[str], dict[str, Any]] = await super()._async_pre_start_kernel(**kw)
        return prepared

    async def _async_is_alive(self) -> bool:
        if not self.has_kernel or self.provisioner is None:
            return False
        self._exit_code = await self.provisioner.poll()
        return self._exit_code is None

    is_alive = _async_is_alive  # type: ignore[assignment]  # as upstream does

    async def _async_interrupt_kernel(self) -> None:
        """Interrupt what runs now, and nothing that comes later.

        Upstream keeps an interrupt of a kernel that is just being restarted for the new one, and lets one that is
        a message go on its way while the next code may already be running: Deno then loses its result.
        """
        if not self.has_kernel:
            return
        if self._kernelspec.interrupt_mode != "message":
            await super()._async_interrupt_kernel()
            return
        request = self.session.msg("interrupt_request", content={})
        answered = asyncio.Event()
        with closing(self.connect_control()) as stream:
            stream.on_recv(lambda parts: answered.set() if _answers(parts, request) else None)
            self.session.send(stream, request)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERRUPT_REPLY_TIMEOUT):
                    await answered.wait()

    interrupt_kernel = _async_interrupt_kernel  # type: ignore[assignment]

    def _create_connected_socket(self, channel: str, identity: bytes | None = None) -> Any:
        """A stream that gets no more of the kernel than its share, where upstream has a socket of libzmq's."""
        if not self._has_streams:
            return super()._create_connected_socket(channel, identity)
        manager = weakref.ref(self)  # which its event loop keeps until it is closed
        stream = KernelStream(
            lambda: _url_of(manager(), channel),
            SHARES[channel],
            None if channel == "iopub" else identity or b"",
        )
        self._streams.add(stream)
        return stream

    @property
    def _has_streams(self) -> bool:
        return sys.platform == "linux" and self.curve_publickey is None

    def connect_shell(self, identity: bytes | None = None) -> Any:
        """A stream of the kernel's shell channel."""
        return self._connect("shell", identity, super().connect_shell)

    def connect_control(self, identity: bytes | None = None) -> Any:
        """A stream of the kernel's control channel."""
        return self._connect("control", identity, super().connect_control)

    def connect_stdin(self, identity: bytes | None = None) -> Any:
        """A stream of the kernel's stdin channel."""
        return self._connect("stdin", identity, super().connect_stdin)

    def connect_iopub(self, identity: bytes | None = None) -> Any:
        """A stream of the kernel's output."""
        return self._connect("iopub", identity, super().connect_iopub)

    def _connect(self, channel: str, identity: bytes | None, upstream: Callable[..., Any]) -> Any:
        if not self._has_streams:
            return upstream(identity)
        return self._create_connected_socket(channel, identity)

    def connect_again(self) -> None:
        """Connects all streams, of clients that are there or away, to the kernel that was started instead."""
        for stream in list(self._streams):
            stream.connect_again()

    async def _async_cleanup_resources(self, restart: bool = False) -> None:
        await super()._async_cleanup_resources(restart=restart)
        await disposal.apart(kill_leftovers, str(self.kernel_id))
        if not restart:
            for stream in list(self._streams):
                stream.close()
            await disposal.apart(shutil.rmtree, self.home, ignore_errors=True)

    cleanup_resources = _async_cleanup_resources  # type: ignore[assignment]

    def death(self) -> dict[str, Any]:
        """How a dead kernel ended: ``exit_code`` or the name of a ``signal``, and the provisioner's
        ``reason``, if it has an attribute `death_reason`."""
        code = self._exit_code
        killed = code is not None and code < 0
        return {
            "exit_code": None if killed else code,
            "signal": _signal_name(-code) if killed and code is not None else None,
            "reason": getattr(self.provisioner, "death_reason", None),
        }


class AllKernelsManager(SeedingMappingKernelManager):  # type: ignore[misc]
    """Point ``KernelGatewayApp.kernel_manager_class`` at it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._starting: set[str] = set()
        self._burials: set[asyncio.Task[None]] = set()
        self._deaths: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def _kernel_manager_class_default(self) -> str:
        return f"{__name__}.{OneKernelManager.__name__}"

    @default("context")
    def _context_default(self) -> zmq.asyncio.Context:
        self._created_context = True
        context = zmq.asyncio.Context()
        context.set(zmq.MAX_SOCKETS, MAX_ZMQ_SOCKETS)
        # The default of 1000 messages drops output without a word, the final idle included. Gates bound bytes.
        context.setsockopt(zmq.RCVHWM, 0)
        context.setsockopt(zmq.RECONNECT_IVL, RECONNECT_INTERVAL_MS)
        return context

    async def start_kernel(self, *, max_kernels: int | None = None, **kwargs: Any) -> str:
        """Starts a kernel; refuses with 429 when as many as `max_kernels` run or start already."""
        if max_kernels is not None and len(self._starting.union(self._kernels)) >= max_kernels:
            raise web.HTTPError(429, f"All {max_kernels} kernels are in use.", reason="Resource Limit")
        kernel_id = self.new_kernel_id()
        self._starting.add(kernel_id)
        try:
            started: str = await super().start_kernel(kernel_id=kernel_id, **kwargs)
        finally:
            self._starting.discard(kernel_id)
            self._pending_kernels.pop(kernel_id, None)
        return started

    def find_death(self, kernel_id: str) -> dict[str, Any] | None:
        """How a kernel that is here no more ended by itself, as `OneKernelManager.death`."""
        return self._deaths.get(kernel_id)

    async def shutdown_kernel(self, kernel_id: str, now: bool = False, restart: bool = False) -> None:
        """Ends a kernel, after a restart that is under way unless ``now``, and closes its websockets."""
        connections = connections_of(kernel_id)
        kernel = self._kernels.get(kernel_id)
        try:
            async with contextlib.nullcontext() if kernel is None or now else kernel.restarting:
                failed = kernel is not None and _has_failed(kernel.ready)
                await super().shutdown_kernel(kernel_id, now=now, restart=restart)
                if kernel is not None and failed:  # upstream only forgets it
                    await _bury(kernel)
        finally:
            if kernel_id not in self:
                for connection in connections:
                    connection.end("The kernel was deleted.")

    async def restart_kernel(self, kernel_id: str, now: bool = False) -> None:
        """Restarts a kernel and connects its clients to the new one."""
        self._check_kernel_id(kernel_id)
        async with self._kernels[kernel_id].restarting:
            await super().restart_kernel(kernel_id, now=now)
            self._kernels[kernel_id].connect_again()

    async def end_all(self) -> None:
        """Ends all kernels at once, and waits for the clean-up of those that died before."""
        await asyncio.gather(
            *(self.shutdown_kernel(kernel_id, now=True) for kernel_id in self.list_kernel_ids()),
            *self._burials,
            return_exceptions=True,
        )

    def start_buffering(self, kernel_id: str, session_key: str, channels: dict[str, Any]) -> None:
        super().start_buffering(kernel_id, session_key, channels)
        if kernel_id in self._kernel_buffers:
            sign = self._kernels[kernel_id].session.sign
            watch = partial(self.note_activity, kernel_id)
            self._kernel_buffers[kernel_id]["buffer"] = ReplayBuffer(Backlog(Bounds()), sign, watch)

    def keep_for_client(self, kernel_id: str, channel: str, parts: Parts) -> None:
        """Adds a message to what is buffered for a client that is away, if anything is."""
        if kernel_id in self._kernel_buffers:
            signature = self._kernels[kernel_id].session.sign(parts[:4])
            self._kernel_buffers[kernel_id]["buffer"].append((channel, [DELIM, signature, *parts]))

    def buffer_of(self, kernel_id: str, session_key: str) -> dict[str, Any] | None:
        """What is buffered for this client, as upstream's `get_buffer`; it stays where it is."""
        found: dict[str, Any] | None = self._kernel_buffers.get(kernel_id)
        return found if found is not None and found["session_key"] == session_key else None

    def buffer_again(
        self, kernel_id: str, session_key: str, channels: dict[str, Any], messages: list[tuple[str, Parts]]
    ) -> None:
        """Buffers on for a client that came for its messages and left before it got them."""
        if self._kernel_connections.get(kernel_id) == 0 and kernel_id not in self._kernel_buffers:
            self.start_buffering(kernel_id, session_key, channels)
        if kernel_id in self._kernel_buffers and self._kernel_buffers[kernel_id]["channels"] is channels:
            for message in messages:
                self._kernel_buffers[kernel_id]["buffer"].append(message)
        else:
            for stream in channels.values():
                stream.close()

    def start_watching_activity(self, kernel_id: str) -> None:
        """Begins to keep ``last_activity`` and ``execution_state``.

        Upstream subscribes a second time and reads all output twice. Here the connection of the
        client, or what buffers for it, calls `note_activity`: nothing runs that no client has sent.
        """
        if self.buffer_offline_messages:
            kernel = self._kernels[kernel_id]
            kernel.reason = ""
            kernel.last_activity = utcnow()
        else:
            super().start_watching_activity(kernel_id)

    def note_activity(self, kernel_id: str, parts: Parts) -> None:
        """Takes an iopub message of a kernel into account."""
        kernel = self._kernels.get(kernel_id)
        if kernel is None:
            return
        before = kernel.execution_state
        is_active, state = activity(parts, self.track_message_type, before)
        if state != before:
            kernel.execution_state = state
        if is_active:
            now = utcnow()
            # To set a trait costs more than to read two, and a busy kernel may say much.
            if state != before or now - kernel.last_activity > ACTIVITY_STEP:
                self.last_kernel_activity = kernel.last_activity = now

    def _handle_kernel_died(self, kernel_id: str) -> None:
        kernel = self._kernels.get(kernel_id)
        if kernel is None:
            return
        self._deaths[kernel_id] = kernel.death()
        while len(self._deaths) > MAX_DEATHS:
            self._deaths.popitem(last=False)
        self.stop_watching_activity(kernel_id)
        self.stop_buffering(kernel_id)
        super()._handle_kernel_died(kernel_id)
        kernel.died.set()
        self._kernel_connections.pop(kernel_id, None)
        self._kernel_ports.pop(kernel_id, None)
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=kernel.kernel_name).dec()
        burial = asyncio.create_task(_bury(kernel))
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)


async def _bury(kernel: OneKernelManager) -> None:
    """What upstream leaves behind: processes of the kernel's group, its folders, the provisioner's."""
    if kernel.provisioner is not None:
        await kernel.provisioner.kill()
    await kernel.cleanup_resources()


def _has_failed(ready: Any) -> bool:
    """Whether the last start, restart or end of a kernel, which this future stands for, went wrong."""
    return bool(ready.done() and not ready.cancelled() and ready.exception())


def _answers(parts: list[bytes], request: dict[str, Any]) -> bool:
    """Whether the parent of a message is this request. The kernel may send anything."""
    try:
        parent = parts[parts.index(DELIM) + 3]
        told = json.loads(parent) if len(parent) < MAX_HEADER_BYTES else {}
        return bool(told["msg_id"] == request["header"]["msg_id"])
    except (ValueError, IndexError, TypeError, KeyError, RecursionError):
        return False


def _url_of(kernel: OneKernelManager | None, channel: str) -> str | None:
    return None if kernel is None else str(kernel._make_url(channel))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
