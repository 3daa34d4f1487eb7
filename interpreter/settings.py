"""The one table of settings.

Each field of `Settings` is a row: its type, its default, the environment variable that sets it and
the help text. The command line, the configuration file's traits, ``docs/configuration.md`` and the
tests are made from it, so a setting is added here and nowhere else.
"""

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

from interpreter.errors import SettingsError

ENV_PREFIX = "INTERPRETER_"
EVERY_ORIGIN = "*"
NETWORKS = ("none", "allowlist", "full")
"""What a kernel may reach: nothing, hosts that are listed, every public host."""


def _option(default: Any, help: str, *, secret: bool = False, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help, "secret": secret, "choices": choices})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, checked by `validate`. Seconds, bytes and counts as the names say."""

    # Where the service listens
    ip: str = _option(
        "127.0.0.1", "Address to listen on. Anything but loopback needs a token that was set or stored."
    )
    port: int = _option(8889, "Port to listen on; 0 takes a free one.")
    token: str = _option(
        "",
        "An admin token; of at least 16 characters where other machines can reach `ip`. When empty, one is made at first start and printed.",
        secret=True,
    )
    certfile: str = _option("", "TLS certificate (PEM) to serve https with.")
    keyfile: str = _option("", "Private key (PEM) of `certfile`.")

    allowed_hosts: str = _option(
        "",
        "Host names, comma separated, under which MCP clients reach the service and from which pages may call it, besides loopback's; `*`: all.",
    )
    allow_origins: str = _option(
        "",
        "Origins (like `https://chat.example.org`), comma separated, whose pages may call the API from a browser with a token in a header (CORS); `*`: all. The browser's login stays for this service's own pages, and MCP also wants the host in `allowed_hosts`.",
    )
    vllm_tool_server: bool = _option(
        False,
        "Whether programs on this machine may run code without a token through `/mcp/python/sse`, the tool server that vLLM dials. Not for a machine with a reverse proxy in front of the service.",
    )

    # The kernel gateway
    gateway_url: str = _option(
        "",
        "URL of a Kernel Gateway or Jupyter Server, base path included. Empty: the service starts one of its own.",
    )
    gateway_auth: str = _option(
        "token",
        "How the gateway at `gateway_url` wants to be asked; `token` needs `gateway_token`, `password` needs `gateway_password`.",
        choices=("none", "token", "password"),
    )
    gateway_token: str = _option("", "The gateway's token, for `gateway_auth = token`.", secret=True)
    gateway_password: str = _option(
        "", "The Jupyter Server's password, for `gateway_auth = password`.", secret=True
    )
    gateway_ca_file: str = _option(
        "", "CA certificates (PEM) that vouch for the gateway; empty: the system's."
    )
    gateway_client_cert: str = _option("", "Client certificate (PEM) to show to the gateway.")
    gateway_client_key: str = _option("", "Private key (PEM) of `gateway_client_cert`.")
    gateway_validate_cert: bool = _option(True, "Whether the gateway's TLS certificate is checked.")
    gateway_connect_timeout: float = _option(5.0, "Seconds to wait for a connection to the gateway.")
    gateway_request_timeout: float = _option(30.0, "Seconds to wait for one answer of the gateway.")
    gateway_workspace_path: str = _option(
        "",
        "Path of the service's workspaces below the root folder of a gateway that shares its disk; empty: it does not (the embedded gateway always does).",
    )

    # Kernels
    kernel_name: str = _option("python3", "Kernelspec of sessions that name none.")
    kernel_env_dir: str = _option(
        "",
        "Python environment of the embedded gateway's kernels; empty: `.venv-kernel` beside the project when it is there, else the service's own.",
    )
    kernel_start_timeout: float = _option(60.0, "Seconds in which a kernel must answer after its start.")
    pool_size: int = _option(
        0, "The most kernels that are kept ready per kernelspec, as demand asks for; 0 keeps none."
    )
    pool_min: int = _option(
        1, "Kernels of `kernel_name` that are kept ready without demand, up to `pool_size`."
    )
    pool_refill_interval: float = _option(0.2, "Seconds between two starts of kernels for the pool.")
    pool_max_age: float = _option(3600.0, "Seconds after which a kernel that nobody took is replaced.")
    fork_server: bool = _option(
        False,
        "Whether the embedded gateway's Python kernels are forked from a process that has imported what they need: they start sooner and share memory, but also the layout of their address space. Needs the sandbox.",
    )
    fork_server_imports: str = _option(
        "numpy,pandas,matplotlib.pyplot",
        "Modules that the fork server imports, comma separated, besides those of the kernel itself; those that are not installed are left out.",
    )

    # The sandbox of kernels
    sandbox: str = _option(
        "auto",
        "Whether the embedded gateway's kernels run in a sandbox: `auto` (wherever it works) or `off`.",
        choices=("auto", "off"),
    )
    allow_unsandboxed: bool = _option(
        False,
        "Whether kernels may run without a sandbox although other machines can reach the service; on loopback they always may.",
    )
    kernel_memory_bytes: int = _option(
        2 * 1024**3, "Memory of one kernel with all its processes, its `/tmp` included."
    )
    kernel_cpus: float = _option(
        0.0,
        "Processor cores that one kernel may use; 0: as many as are free, in equal shares when they are not.",
    )
    kernel_cpu_seconds: float = _option(
        0.0, "CPU time of one kernel with all its processes, over its life; 0: no limit."
    )
    kernel_wall_seconds: float = _option(
        0.0, "Seconds that one kernel may live, whatever it does; 0: no limit."
    )
    kernel_max_processes: int = _option(512, "Processes and threads of one kernel.")
    kernel_max_open_files: int = _option(1024, "Open files of each process of a kernel.")
    kernel_max_file_bytes: int = _option(2 * 1024**3, "Largest file that code may write.")
    kernel_tmp_bytes: int = _option(
        512 * 1024**2, "Size of a kernel's `/tmp`, and of its home folder; both count as its memory."
    )
    kernel_shm_bytes: int = _option(
        256 * 1024**2, "Size of a kernel's `/dev/shm`, which counts as its memory."
    )
    kernel_read_only_paths: str = _option(
        "", "More folders of this machine that code may read, comma separated absolute paths."
    )
    kernel_uid_range: str = _option(
        "200000-265535",
        "Uids of the kernels of a service that is root, one for each: the first and the last. Nobody else on the machine may have one of them.",
    )
    kernel_network: str = _option(
        "none",
        "What a session may reach that asks for nothing: `none`, `allowlist` (the `kernel_allowed_hosts`) or `full` (every public host).",
        choices=NETWORKS,
    )
    kernel_allowed_networks: str = _option(
        "none,allowlist", "What sessions may ask for with `network`, comma separated."
    )
    kernel_allowed_hosts: str = _option(
        "",
        "Hosts that the network `allowlist` lets through, comma separated: names, `*.domains`, addresses or networks, each perhaps with `:port` (else 80 and 443).",
    )

    # Sessions
    max_sessions: int = _option(100, "Sessions that may be alive at once.")
    max_sessions_per_token: int = _option(
        0, "Sessions that one token may have alive at once; 0: `max_sessions` alone counts."
    )
    cull_idle_timeout: float = _option(3600.0, "Seconds after which an idle session ends.")
    cull_interval: float = _option(30.0, "Seconds between two looks for idle sessions.")
    max_queued_runs: int = _option(32, "Runs that may wait in one session.")

    # Runs
    execute_timeout: float = _option(120.0, "Seconds that one run may take when it asks for nothing else.")
    max_execute_timeout: float = _option(3600.0, "The most seconds that a run may ask for.")
    interrupt_grace: float = _option(
        5.0, "Seconds between the interrupt of a run and the restart of its kernel."
    )
    keepalive_interval: float = _option(
        5.0, "Seconds after which an event stream sends a comment again, whatever else it sends."
    )

    # Limits
    max_body_bytes: int = _option(10 * 1024**2, "Largest JSON body of a request.")
    max_code_bytes: int = _option(1024**2, "Largest code of one run, as UTF-8.")
    max_output_bytes: int = _option(
        1024**2, "Text kept of one stream (stdout or stderr) of a run: its head and its tail."
    )
    max_mime_bytes: int = _option(
        8 * 1024**2, "Largest value of one MIME type in an output, and (up to 4 MiB) of an error's message."
    )
    max_display_bytes: int = _option(10 * 1024**2, "Sum of all MIME values kept of one run.")
    max_outputs: int = _option(500, "Outputs kept of one run.")
    max_model_text_bytes: int = _option(16 * 1024, "Longest text that a tool message shows to a model.")
    max_file_bytes: int = _option(1024**3, "Largest file that can be uploaded.")
    max_workspace_bytes: int = _option(4 * 1024**3, "Sum of the files of one session.")
    max_kept_file_bytes: int = _option(
        0,
        "Sum of the files that LibreChat's and Onyx' front ends keep outside of sessions for one token, for a day; 0: `max_workspace_bytes`.",
    )
    max_workspace_files: int = _option(
        100_000, "Files and folders that code may make in one session's workspace."
    )
    max_held_bytes: int = _option(
        256 * 1024**2,
        "Memory that the requests of one token may hold, and again its answers that are not read yet, and what waits for its Jupyter clients that are away; at least four bodies. More for a token that many share.",
    )
    rate_limit: int = _option(0, "Requests per minute and token; 0: no limit.")

    # LibreChat
    librechat_jwt_key: str = _option(
        "",
        "Public key with which LibreChat's signed tokens are checked: PEM, JWK or JWKS, as text or in the file of that path. Empty: they are not accepted.",
    )
    librechat_jwt_secret: str = _option(
        "", "Shared secret with which tokens are checked that LibreChat signs with HS256.", secret=True
    )
    librechat_jwt_issuer: str = _option("librechat", "Issuer that LibreChat's signed tokens must name.")
    librechat_jwt_audience: str = _option("codeapi", "Audience that LibreChat's signed tokens must name.")

    # State
    record_dir: str = _option("notebooks", "Folder of the record: a journal and a notebook per session.")
    state_dir: str = _option(
        "", "Folder of keys, tokens, workspaces and runtime files; empty: below Jupyter's data directory."
    )
    store_url: str = _option("", "SQLAlchemy URL of the store; empty: SQLite in `state_dir`.", secret=True)

    # Operation
    shutdown_timeout: float = _option(10.0, "Seconds that a stop may take to end runs and kernels.")
    log_level: str = _option(
        "INFO", "Least severe level that is logged.", choices=("DEBUG", "INFO", "WARNING", "ERROR")
    )
    log_json: bool = _option(False, "Whether log lines are JSON objects instead of text.")


def options() -> tuple[dataclasses.Field[Any], ...]:
    """The rows of the table, in order."""
    return dataclasses.fields(Settings)


def env_name(name: str) -> str:
    """The environment variable of a setting: ``execute_timeout`` → ``INTERPRETER_EXECUTE_TIMEOUT``."""
    return ENV_PREFIX + name.upper()


def listed(text: str) -> tuple[str, ...]:
    """The words of a comma-separated setting."""
    return tuple(word for part in text.split(",") if (word := part.strip()))


def allowed_networks(settings: Settings) -> tuple[str, ...]:
    """What sessions may ask for; what they get unasked is always among it."""
    return tuple(dict.fromkeys((settings.kernel_network, *listed(settings.kernel_allowed_networks))))


def uid_range(settings: Settings) -> tuple[int, int]:
    """The first and the last uid for kernels. Raises SettingsError."""
    found = re.fullmatch(r"\s*([0-9]{4,10})\s*-\s*([0-9]{4,10})\s*", settings.kernel_uid_range)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1000 <= first <= last < 2**31:
        raise SettingsError(
            "kernel_uid_range must be two uids, 1000 or more, the lower one first: FIRST-LAST."
        )
    return first, last


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


def _validate_lists(settings: Settings) -> None:
    if unknown := set(listed(settings.kernel_allowed_networks)) - set(NETWORKS):
        raise SettingsError(f"kernel_allowed_networks: '{min(unknown)}' is none of: {', '.join(NETWORKS)}.")
    for name in listed(settings.fork_server_imports):
        if not all(part.isidentifier() for part in name.split(".")):
            raise SettingsError(f"fork_server_imports: '{name}' is not the name of a module.")
    for path in listed(settings.kernel_read_only_paths):
        if not path.startswith("/"):
            raise SettingsError(f"kernel_read_only_paths: '{path}' is not an absolute path.")
    for origin in listed(settings.allow_origins):
        if origin != EVERY_ORIGIN and not _ORIGIN.fullmatch(origin.lower()):
            raise SettingsError(f"allow_origins: '{origin}' is not an origin, like https://chat.example.org.")


def validate(settings: Settings) -> None:
    """Raise SettingsError, with one sentence that names the setting, for a value that can't work."""
    for option in options():
        _validate_alone(option, getattr(settings, option.name))
    _validate_lists(settings)
    uid_range(settings)
    for is_wrong, sentence in (
        (0 < settings.kernel_cpus < 0.01, "kernel_cpus must be 0 or at least 0.01."),
        (0 < settings.kernel_cpu_seconds < 1, "kernel_cpu_seconds must be 0 or at least 1."),
        (0 < settings.kernel_wall_seconds < 1, "kernel_wall_seconds must be 0 or at least 1."),
        (settings.port > 65535, "port must be between 0 and 65535."),
        (
            not re.fullmatch("[!-~]*", settings.token),
            "token must be of visible ASCII characters, without spaces.",
        ),
        (settings.pool_size > settings.max_sessions, "pool_size must not be greater than max_sessions."),
        (
            settings.execute_timeout > settings.max_execute_timeout,
            "execute_timeout must not be greater than max_execute_timeout.",
        ),
        (settings.keepalive_interval > 10, "keepalive_interval must be at most 10 seconds."),
        (bool(settings.certfile) != bool(settings.keyfile), "certfile and keyfile must be set together."),
    ):
        if is_wrong:
            raise SettingsError(sentence)


def _validate_alone(option: dataclasses.Field[Any], value: Any) -> None:
    name, choices = option.name, option.metadata["choices"]
    if choices and value not in choices:
        raise SettingsError(f"{name} must be one of: {', '.join(choices)}.")
    if isinstance(value, (bool, str)):
        return
    if not 0 <= value < float("inf"):
        raise SettingsError(f"{name} must be a finite number that is not negative.")
    if value == 0 and (name.endswith("timeout") or name in _POSITIVE):
        raise SettingsError(f"{name} must be greater than 0.")
    if name in _AT_LEAST and value < _AT_LEAST[name]:
        raise SettingsError(f"{name} must be at least {_AT_LEAST[name]}.")


_POSITIVE = frozenset(
    {
        *(
            "max_sessions",
            "max_queued_runs",
            "cull_interval",
            "pool_max_age",
            "interrupt_grace",
            "keepalive_interval",
        ),
        *("max_body_bytes", "max_code_bytes", "max_output_bytes", "max_mime_bytes", "max_display_bytes"),
        *("max_outputs", "max_model_text_bytes", "max_file_bytes", "max_workspace_bytes"),
        "max_workspace_files",
    }
)
_AT_LEAST = {
    "kernel_memory_bytes": 128 * 1024**2,
    "kernel_max_processes": 24,
    "kernel_max_open_files": 64,
    "kernel_max_file_bytes": 1024**2,
    "kernel_tmp_bytes": 1024**2,
    "kernel_shm_bytes": 1024**2,
}
"""What a kernel needs to come up at all (the sandbox's own bounds)."""
