"""What an admin can set: the traits of the provisioner, and what follows from them for one kernel."""

from collections.abc import Mapping
from typing import Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Bool, CaselessStrEnum, Dict, Float, Integer, List, Unicode
from traitlets.config import Config

from interpreter.gateway_extension.sandbox.fork_command import IMPORTS
from interpreter.gateway_extension.sandbox.limits import Limits
from interpreter.gateway_extension.sandbox.probe import UID_RANGE
from interpreter.gateway_extension.sandbox.sandbox import Network

DEFAULT_LIMITS = Limits()
_DEFAULT = DEFAULT_LIMITS


class SandboxOptions(LocalProvisioner):
    """Set by the kernelspec's ``config``, or for all kernelspecs as ``c.BubblewrapProvisioner.<name>``."""

    memory_bytes = Integer(_DEFAULT.memory_bytes, help="Memory of a kernel with all its processes.").tag(
        config=True
    )
    cpu_quota = Float(_DEFAULT.cpu_quota, help="Processor cores it may use; 0: all that are free.").tag(
        config=True
    )
    cpu_share = Integer(
        _DEFAULT.cpu_share, help="Weight when the processors are busy; that of the gateway is 1024."
    ).tag(config=True)
    cpu_seconds = Float(_DEFAULT.cpu_seconds, help="CPU time over its life; 0: unlimited.").tag(config=True)
    wall_seconds = Float(_DEFAULT.wall_seconds, help="Longest life; 0: unlimited.").tag(config=True)
    max_processes = Integer(_DEFAULT.max_processes, help="Processes and threads.").tag(config=True)
    max_open_files = Integer(_DEFAULT.max_open_files, help="Open files of one process.").tag(config=True)
    max_file_bytes = Integer(_DEFAULT.max_file_bytes, help="Largest file.").tag(config=True)
    workspace_bytes = Integer(_DEFAULT.workspace_bytes, help="Size of the workspace.").tag(config=True)
    max_workspace_files = Integer(_DEFAULT.max_workspace_files, help="Files of the workspace.").tag(
        config=True
    )
    tmp_bytes = Integer(_DEFAULT.tmp_bytes, help="Size of /tmp, and of the home folder.").tag(config=True)
    shm_bytes = Integer(_DEFAULT.shm_bytes, help="Size of /dev/shm.").tag(config=True)
    max_limits = Dict(help="Bounds (limit name to number) that a kernelspec's limits are cut to.").tag(
        config=True
    )

    network = Unicode("none", help="Network policy of sessions that ask for none by KERNEL_NETWORK.").tag(
        config=True
    )
    allowed_networks = List(
        Unicode(), ["none", "allowlist"], help="Network policies that KERNEL_NETWORK may ask for."
    ).tag(config=True)
    allowed_hosts = List(
        Unicode(),
        help="What the policy `allowlist` lets through: host names, *.domains, addresses or networks, each "
        "perhaps with :port (else 80 and 443). Addresses that are not public have to be listed as such.",
    ).tag(config=True)

    runtime_dir = Unicode(help="Short folder for sockets; default: in XDG_RUNTIME_DIR, /run or /tmp.").tag(
        config=True
    )
    workspace_root = Unicode("", help="Folder that all workspaces must be below; empty: any.").tag(
        config=True
    )
    uid_range = List(
        Integer(),
        list(UID_RANGE),
        minlen=2,
        maxlen=2,
        help="Plain uids for kernels, when the gateway is root.",
    ).tag(config=True)
    read_only_paths = List(Unicode(), help="More folders that kernels see, read-only.").tag(config=True)
    env_names = List(Unicode(), help="More variables of the gateway that kernels get.").tag(config=True)
    kernel_transport = CaselessStrEnum(
        ["ipc", "tcp"],
        "ipc",
        help="tcp for kernels that can't use unix sockets (Deno); a relay joins the two.",
    ).tag(config=True)
    use_cgroups = Bool(True, help="Use control groups where they can be made.").tag(config=True)
    socket_timeout = Float(30.0, help="Seconds in which a kernel must have made its sockets.").tag(
        config=True
    )

    fork_server = Bool(
        False,
        help="Fork kernels from a process that has already imported what they need: they start in a fraction "
        "of the time and share memory. For commands of the form `python -m module`.",
    ).tag(config=True)
    fork_server_imports = List(
        Unicode(), list(IMPORTS), help="Modules that this process imports; those not installed are left out."
    ).tag(config=True)

    def __init__(self, **kwargs: Any) -> None:
        # The kernelspec's values come as arguments and win over the configuration; the bounds don't.
        super().__init__(**kwargs)
        own = Config(self.config).get(type(self).__name__, {})
        if "max_limits" in own:
            self.max_limits = {**self.max_limits, **own["max_limits"]}

    def find_limits(self, env: Mapping[str, str]) -> Limits:
        """The limits of a kernel with these variables. Raises ValueError."""
        names = Limits.__dataclass_fields__
        limits = Limits(**{name: getattr(self, name) for name in names}).bounded(self.max_limits)
        return limits.requested(env["KERNEL_LIMITS"]) if env.get("KERNEL_LIMITS") else limits

    def find_network(self, env: Mapping[str, str]) -> Network:
        """The network policy of a kernel with these variables. Raises ValueError."""
        policy = env.get("KERNEL_NETWORK") or self.network
        return Network.choose(policy, {*self.allowed_networks, self.network}, self.allowed_hosts)
