"""A kernel that is forked into a sandbox: what stands for it there, and how it gets in.

bubblewrap ends a sandbox when its program ends, and tells that program's exit code. For a forked kernel the
program is a shell that waits for the kernel's exit code, so that life and death look the same from outside.

By nature of a fork, the kernels of one zygote share the layout of their address space, the stack canary and
the hash seed of strings: a session may know those of another one. What has to be unknown (see `forked.renew`)
and what makes the sandbox is never shared.
"""

import base64
import dataclasses
import os
import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from interpreter.gateway_extension.descriptors import refuse_descriptors
from interpreter.gateway_extension.sandbox.bubblewrap import (
    NICE,
    OOM_SCORE,
    Ends,
    HeldProcess,
    SandboxError,
    Terms,
    start_held,
)
from interpreter.gateway_extension.sandbox.command import Box
from interpreter.gateway_extension.sandbox.fork_command import ForkCommand
from interpreter.gateway_extension.sandbox.seccomp import seccomp_filter
from interpreter.gateway_extension.sandbox.zygote import (
    ForkedKernel,
    Target,
    Zygote,
    ZygoteEndedError,
    find_zygote,
)

# It says that the sandbox is complete, then waits; signals for the kernel's sake are not meant for it.
STAND_IN = ("/bin/sh", "-c", 'trap "" HUP INT QUIT TERM; echo; read -r code; exit "$code"')
READY_TIMEOUT = 20.0


@dataclass
class Forking:
    """One start of a kernel by fork: `start_held`, then `fork` once the sandbox was let go, then `close`."""

    zygote: Zygote
    command: ForkCommand
    threads: int | None
    kernel: ForkedKernel | None = None
    _box: Box | None = None
    _fds: dict[str, int] = field(default_factory=dict)

    def start_held(self, box: Box, terms: Terms) -> HeldProcess:
        """Start the sandbox with the stand-in in it."""
        self._box = box
        # Not a pipe: a session of our own user could open it through /proc and write to it.
        ours, theirs = socket.socketpair()
        refuse_descriptors(ours)
        stdin, self._fds["code"] = theirs.detach(), ours.detach()
        os.set_blocking(self._fds["code"], False)
        self._fds["ready"], stdout = os.pipe()
        try:
            return start_held(dataclasses.replace(box, argv=STAND_IN), terms, Ends(stdin, stdout))
        finally:
            os.close(stdin)
            os.close(stdout)

    def fork(self, held: HeldProcess, terms: Terms, inside: Sequence[tuple[int, int]]) -> None:
        """Have the kernel forked into the sandbox. Blocks; raises `SandboxError`.

        ``inside``: limits that count per user namespace.
        """
        self._wait_until_complete()
        box = self._box
        assert box is not None
        plan: dict[str, object] = {
            "uid": terms.uid,
            "rlimits": list(terms.rlimits),
            "rlimits_inside": list(inside),
            "nice": NICE,
            "oom_score": OOM_SCORE,
            "seccomp": base64.b64encode(seccomp_filter()).decode(),
            "env": dict(box.env),
            "cwd": box.cwd,
            "module": self.command.module,
            "argv": list(self.command.argv),
            "command": list(box.argv),
            "threads": self.threads,
        }
        target = Target(held.init, plan, held.stderr_write_fd, self._fds["code"], terms.cgroup_procs)
        try:
            self.kernel = self.zygote.fork(target)
        except ZygoteEndedError:
            self.zygote = find_zygote(self.command.origin, self.zygote.folder)
            self.kernel = self.zygote.fork(target)

    def _wait_until_complete(self) -> None:
        waiting = select.poll()
        waiting.register(self._fds["ready"], select.POLLIN)
        if not waiting.poll(READY_TIMEOUT * 1000) or not os.read(self._fds["ready"], 1):
            raise SandboxError("the sandbox for a forked kernel was not made")

    def is_over(self) -> bool:
        """Whether the kernel has ended, which ends the sandbox unless somebody inside stopped the stand-in."""
        return self.kernel is not None and not self.kernel.is_alive()

    def signal(self, number: int) -> None:
        """Send a signal to the kernel's process group."""
        if self.kernel is not None:
            self.kernel.signal_group(number)

    def close(self) -> None:
        """Close all descriptors; the sandbox must have ended."""
        if self.kernel is not None:
            self.kernel.close()
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}
