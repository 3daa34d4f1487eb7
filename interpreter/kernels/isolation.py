"""What stands around the kernels: decided once, at start, and told to everybody who asks."""

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from interpreter.errors import InvalidRequestError, SettingsError
from interpreter.gateway_extension.sandbox.command import HOME, WORKSPACE
from interpreter.gateway_extension.sandbox.probe import Probe, probe
from interpreter.gateway_extension.sandbox.proxy import Rule
from interpreter.models import JSON
from interpreter.settings import Settings, allowed_networks, listed, uid_range

log = logging.getLogger(__name__)

PROVISIONER = "bubblewrap-provisioner"
"""The entry point's name (group ``jupyter_client.kernel_provisioners``)."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """Whether kernels run in a sandbox; None: that is an external gateway's matter.

    ``problem`` and ``fix`` are sentences, empty when there is nothing to tell. ``enforced`` maps each
    limit to what enforces it on this machine.
    """

    sandboxed: bool | None
    problem: str = ""
    fix: str = ""
    enforced: Mapping[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """What people on the pages must know."""
        if self.sandboxed is None:
            return "Unknown: whether kernels run in a sandbox is the external gateway's matter."
        if not self.sandboxed:
            return f"Kernels run without a sandbox: {self.problem} {self.fix}".strip()
        return "Kernels run in a sandbox."

    @property
    def sentence(self) -> str:
        """All of it, for ``/readyz`` and the log."""
        if not self.sandboxed:
            return self.summary
        notes = " ".join(note for note in (self.problem, self.fix) if note)
        limits: dict[str, list[str]] = {}
        for limit, by in self.enforced.items():
            limits.setdefault(by, []).append(limit)
        enforced = "; ".join(f"{', '.join(names)} by {by}" for by, names in limits.items())
        return f"{self.summary} Limits: {enforced}. {notes}".strip()

    async def check(self) -> tuple[bool, str]:
        """The answer for ``/readyz``. Kernels without a sandbox were allowed by the admin, so they are no failure."""
        return True, self.sentence

    def choose_network(self, asked: str | None, settings: Settings) -> str | None:
        """The network policy of a session that asks for this one; None leaves it to an external gateway.

        Raises InvalidRequestError for one that is not allowed, or that nothing would enforce.
        """
        if asked is None:
            return settings.kernel_network if self.sandboxed else None
        allowed = allowed_networks(settings)
        if asked not in allowed:
            raise InvalidRequestError(
                f"The network '{asked}' is not allowed here; use one of: {', '.join(allowed)}.",
                param="network",
                code="network_not_allowed",
            )
        if self.sandboxed is False and asked != "full":
            raise InvalidRequestError(
                f"The network '{asked}' can't be enforced, since kernels run without a sandbox; leave it out.",
                param="network",
                code="network_not_enforced",
            )
        return asked


EXTERNAL = Isolation(None)


async def find_isolation(settings: Settings, *, is_local: bool) -> Isolation:
    """Look whether the sandbox works here. ``is_local``: no other machine can reach the service.

    Raises SettingsError where kernels would run without one though that is not allowed, and for wrong
    hosts.
    """
    if settings.gateway_url:
        return EXTERNAL
    for host in listed(settings.kernel_allowed_hosts):
        try:
            Rule.parse(host)
        except ValueError as error:
            raise SettingsError(f"kernel_allowed_hosts: {error}.") from error
    _check_read_only_paths(settings)
    found = await _look(settings)
    if found.sandboxed:
        log.info("%s", found.sentence)
        if settings.kernel_cpus and found.enforced.get("cpu_quota", "").startswith("not"):
            log.warning("kernel_cpus can't be enforced here: there is no writable cgroup with `cpu`.")
    elif is_local or settings.allow_unsandboxed:
        log.warning("%s", found.sentence)
    else:
        raise SettingsError(
            f"{found.sentence} Other machines can reach {settings.ip}, so that needs allow_unsandboxed."
        )
    return found


def _check_read_only_paths(settings: Settings) -> None:
    """Raise SettingsError for a folder that is not there, or must not be seen, or would cover a kernel's own."""
    private = [os.path.realpath(path) for path in (settings.state_dir, settings.record_dir) if path]
    for path in listed(settings.kernel_read_only_paths):
        real = os.path.realpath(path)
        if not os.path.isdir(real):
            raise SettingsError(f"kernel_read_only_paths: there is no folder '{path}'.")
        if any(_is_within(own, real) or _is_within(real, own) for own in private):
            raise SettingsError(f"kernel_read_only_paths: '{path}' would show the service's own files.")
        if any(_is_within(own, os.path.normpath(path)) for own in _KERNELS_OWN):
            raise SettingsError(f"kernel_read_only_paths: '{path}' would cover folders that each kernel has.")


_KERNELS_OWN = (WORKSPACE, HOME, "/dev", "/proc", "/tmp", "/usr")  # noqa: S108


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


async def _look(settings: Settings) -> Isolation:
    if settings.sandbox == "off":
        return Isolation(False, "the setting sandbox is off.", "Set it to auto.")
    return isolation_of(await asyncio.to_thread(probe, uid_range(settings)))


def isolation_of(found: Probe) -> Isolation:
    """What a probe of this machine comes to."""
    problem = _sentence(found.reason or "")
    fix = _sentence(found.fix or "")
    if not found.ok:
        return Isolation(False, problem or "it does not work here.", fix)
    return Isolation(True, problem[:1].upper() + problem[1:], fix, dict(found.enforced))


def provisioner_options(settings: Settings, *, workspace_root: Path, runtime_dir: Path) -> JSON:
    """The traits of the provisioner in the embedded gateway. A kernelspec's own values can lower a limit."""
    limits = {
        "memory_bytes": settings.kernel_memory_bytes,
        "cpu_quota": settings.kernel_cpus,
        "max_processes": settings.kernel_max_processes,
        "max_open_files": settings.kernel_max_open_files,
        "max_file_bytes": settings.kernel_max_file_bytes,
        "workspace_bytes": settings.max_workspace_bytes,
        "max_workspace_files": settings.max_workspace_files,
        "cpu_seconds": settings.kernel_cpu_seconds,
        "wall_seconds": settings.kernel_wall_seconds,
        # what counts as memory anyway must not promise more than that
        "tmp_bytes": min(settings.kernel_tmp_bytes, settings.kernel_memory_bytes),
        "shm_bytes": min(settings.kernel_shm_bytes, settings.kernel_memory_bytes),
    }
    return {
        **limits,
        "max_limits": limits,
        "network": settings.kernel_network,
        "allowed_networks": list(allowed_networks(settings)),
        "allowed_hosts": list(listed(settings.kernel_allowed_hosts)),
        "workspace_root": str(workspace_root),
        "runtime_dir": str(runtime_dir),
        "uid_range": list(uid_range(settings)),
        "read_only_paths": list(listed(settings.kernel_read_only_paths)),
        "fork_server": settings.fork_server,
        "fork_server_imports": list(listed(settings.fork_server_imports)),
    }


def _sentence(text: str) -> str:
    return f"{text.strip().rstrip('.')}." if text.strip() else ""
