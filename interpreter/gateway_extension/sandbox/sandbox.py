"""One running sandbox and all that belongs to it, from the first process to the last trace."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from interpreter.gateway_extension.sandbox import processes
from interpreter.gateway_extension.sandbox.bubblewrap import HeldProcess, SandboxError, Terms, start_held
from interpreter.gateway_extension.sandbox.cgroups import ControlGroup, Parents
from interpreter.gateway_extension.sandbox.command import WORKSPACE, Box
from interpreter.gateway_extension.sandbox.forking import Forking
from interpreter.gateway_extension.sandbox.helper import Helper
from interpreter.gateway_extension.sandbox.holdings import Holdings
from interpreter.gateway_extension.sandbox.launching import LaunchedProcess
from interpreter.gateway_extension.sandbox.limits import Limits
from interpreter.gateway_extension.sandbox.places import Place
from interpreter.gateway_extension.sandbox.proxy import Rule
from interpreter.gateway_extension.sandbox.watchdog import Watchdog, Watched

NETWORK_POLICIES = ("none", "allowlist", "full")
START_TIMEOUT = 20.0
END_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Network:
    """``none``; ``allowlist`` with hosts; or ``full``: every public host, still through the proxy."""

    policy: str = "none"
    hosts: tuple[str, ...] = ()

    @classmethod
    def choose(cls, policy: str, allowed: Collection[str], hosts: Sequence[str]) -> "Network":
        """The policy that was asked for, with its hosts. Raises ValueError when it may not be."""
        if policy not in NETWORK_POLICIES:
            raise ValueError(f"KERNEL_NETWORK must be one of {', '.join(NETWORK_POLICIES)}")
        if policy not in allowed:
            raise ValueError(f"the network policy {policy!r} is not allowed for this kernel")
        for entry in hosts:
            Rule.parse(entry)
        return cls(policy, tuple(hosts) if policy != "none" else ())


@dataclass
class Sandbox:
    """One start of a kernel. `start`, then `release_hold`; `close` ends whatever is left, once."""

    place: Place
    limits: Limits
    network: Network
    parents: Parents
    name: str
    relayed: dict[str, int] = field(default_factory=dict)  # socket of the host → TCP port of the kernel
    forking: Forking | None = None  # None: the kernel is started, not forked
    death_reason: str | None = None  # why the watchdog ended it
    oom_kills: int = 0  # processes that the system ended for want of memory; known at the end
    ended: threading.Event = field(default_factory=threading.Event)
    _held: HeldProcess | None = None
    _terms: Terms | None = None
    _cgroup: ControlGroup | None = None
    _helpers: list[Helper] = field(default_factory=list)
    _watchdog: Watchdog | None = None
    _fds: list[int] = field(default_factory=list)

    def start(self, box: Box) -> LaunchedProcess:
        """Start bubblewrap; the kernel itself waits. Raises OSError."""
        if self.parents.version:
            self._cgroup = ControlGroup(self.parents, self.name, self.limits)
        self._terms = terms = Terms(
            uid=self.place.drop_to,
            cgroup_procs=self._cgroup.procs_files if self._cgroup is not None else (),
            rlimits=self.limits.rlimits(own_uid=self.place.lease is not None),
        )
        if self.forking is None:
            self._held = start_held(box, terms)
        else:
            self._held = self.forking.start_held(box, terms)
        return self._held.process

    def release_hold(self) -> None:
        """Set limits, network and watchdog, then let the kernel go. Blocks; raises `SandboxError`."""
        held = self._held
        if held is None:
            raise SandboxError("the sandbox was not started")
        held.wait_until_held(START_TIMEOUT)
        if self.place.lease is None:
            # Counted per user namespace: set before, they would count what all processes of this user have.
            processes.set_limits(held.init, self.limits.process_rlimits())
        self._start_helpers(held.init)
        self._fds = [
            os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            for path in (self.place.workspace, self.place.folder.sockets)
        ]
        workspace, sockets = self._fds
        watched = Watched(
            held.init,
            held.init_fd,
            workspace,
            sockets,
            held.stderr_fd,
            self.limits,
            self._cgroup,
            self.place.uid,
            self._holdings(workspace, sockets),
            self._inside,
            self._roots,
            self.forking.is_over if self.forking is not None else None,
        )
        self._watchdog = Watchdog(watched, self._on_end)
        self._watchdog.start()
        held.go()
        if self.forking is not None and self._terms is not None:
            inside = () if self.place.lease is not None else self.limits.process_rlimits()
            self.forking.fork(held, self._terms, inside)

    def _holdings(self, workspace: int, sockets: int) -> Holdings:
        folders = {WORKSPACE: workspace, str(self.place.folder.published): sockets}
        return Holdings(folders, self.limits.largest_file_bytes, self._inside)

    def kernel_is_up(self) -> None:
        """The kernel has made its sockets."""
        if self._watchdog is not None:
            self._watchdog.kernel_is_up()

    def _roots(self) -> list[int]:
        return [*self._inside(), *(helper.pid for helper in self._helpers)]

    def _inside(self) -> list[int]:
        held, forking = self._held, self.forking
        roots = [held.init] if held is not None else []
        if forking is not None and forking.kernel is not None and not forking.is_over():
            roots.append(forking.kernel.pid)
        return roots

    def _start_helpers(self, init: int) -> None:
        uid = self.place.drop_to
        if self.network.policy != "none":
            public = self.network.policy == "full"
            plan: dict[str, object] = {"pid": init, "uid": uid, "public": public, "hosts": self.network.hosts}
            self._helpers.append(Helper("proxy", plan, self._cgroup))
        if self.relayed:
            self._helpers.append(
                Helper("relay", {"pid": init, "uid": uid, "sockets": self.relayed}, self._cgroup)
            )
        for helper in self._helpers:
            helper.wait_until_ready()

    def signal(self, number: int) -> None:
        """Send a signal to the kernel's process group, the way a terminal would."""
        held = self._held
        if held is None or held.init_fd < 0 or self.ended.is_set():
            return
        if number == signal.SIGKILL:
            self.kill()
            return
        if self.forking is not None:
            self.forking.signal(number)
            return
        # --new-session made the first process a group leader; it ignores what it has no handler for,
        # the kernel and its children get it. Never a group that is not the sandbox's.
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(held.init) == held.init:
                os.killpg(held.init, number)

    def kill(self) -> None:
        """End every process of the sandbox at once."""
        if self._held is None:
            return
        with contextlib.suppress(ProcessLookupError, OSError):
            if self._held.init_fd >= 0:
                signal.pidfd_send_signal(self._held.init_fd, signal.SIGKILL)
                return
        self._held.process.kill()

    @property
    def log(self) -> str:
        """The last of what the kernel wrote to stderr itself (not as output of code)."""
        return self._watchdog.log if self._watchdog is not None else ""

    @property
    def was_short_of_memory(self) -> bool:
        """Whether little was left when the watchdog looked last, where control groups count it."""
        return self._watchdog is not None and self._watchdog.was_short_of_memory

    @property
    def enforced(self) -> tuple[str, ...]:
        """The control group controllers in force."""
        return self._cgroup.controllers if self._cgroup is not None else ()

    def _on_end(self, reason: str | None) -> None:
        # In the watchdog's thread, so that a dead kernel leaves nothing even if nobody asks for it again.
        self.death_reason = reason
        helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.stop()
        if self._cgroup is not None:
            self.oom_kills = self._cgroup.oom_kills()
            self._cgroup.remove()
        self.ended.set()

    def close(self) -> None:
        """End everything and leave nothing. Blocks for a moment; further calls do nothing."""
        held, self._held = self._held, None
        if held is None:
            return
        with contextlib.suppress(ProcessLookupError, OSError):
            if held.init_fd >= 0:
                signal.pidfd_send_signal(held.init_fd, signal.SIGKILL)
        if held.init_fd < 0:
            held.process.kill()
        try:
            held.process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:  # the system needs long for what it held
            threading.Thread(target=held.process.wait, name="sandbox-end", daemon=True).start()
        if self._watchdog is not None:
            self.ended.wait(END_TIMEOUT)
            self._watchdog.stop()
        else:
            self._on_end(None)
        held.close()
        if self.forking is not None:
            self.forking.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []
