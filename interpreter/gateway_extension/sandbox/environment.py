"""What a kernel sees: its system, its Python environment, its variables (reads the disk, changes nothing)."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from interpreter.gateway_extension.sandbox.command import HOME, PACKAGES, PROC_MASKED, WORKSPACE, Bind

# Of /etc only what programs need to run: loader, time zone, certificates, fonts, alternatives.
ETC_SHOWN = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/fonts",
    "/etc/java-17-openjdk",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
)
SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Never bound as a whole because an interpreter lies in them.
TOO_WIDE = frozenset({"/", "/bin", "/etc", "/home", "/lib", "/opt", "/root", "/sbin", "/tmp", "/usr", "/var"})  # noqa: S108

# Variables of the caller that a kernel gets; all others (tokens!) stay outside.
ENV_NAMES = frozenset({"LANG", "LANGUAGE", "TZ", "TERM"})
ENV_PREFIXES = ("KERNEL_", "LC_")
# The limit of memory counts what is reserved for writing: pyarrow's allocator would reserve 1 GiB for the first text
# in a DataFrame.
ALLOCATORS = {"MIMALLOC_ARENA_EAGER_COMMIT": "0"}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS")


def system_binds() -> tuple[list[Bind], list[tuple[str, str]]]:
    """Read-only binds of the system and the links at the root, as they are on this host."""
    binds, links = [Bind("/usr", "/usr")], []
    for path in SYSTEM_LINKS:
        if os.path.islink(path):
            links.append((os.readlink(path), path))
        elif os.path.isdir(path):
            binds.append(Bind(path, path))
    binds.extend(Bind(os.path.realpath(path), path) for path in ETC_SHOWN if os.path.exists(path))
    return binds, links


def masked_proc_files() -> tuple[str, ...]:
    """Those of `PROC_MASKED` that this kernel has."""
    return tuple(path for path in PROC_MASKED if os.path.exists(path))


def program_roots(program: str) -> list[Bind]:
    """The environment that a program belongs to, and each interpreter that it is a link to.

    A virtualenv's ``python`` is a link to the base interpreter's, often through further links: every
    step's prefix has to be there, at the same path. Programs below /usr need nothing.
    """
    binds: dict[str, Bind] = {}
    path, hops = os.path.abspath(program), 0
    while True:
        _add_root(binds, os.path.dirname(os.path.dirname(path)))
        if not os.path.islink(path) or hops == 40:
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        hops += 1
    _add_root(binds, os.path.dirname(os.path.dirname(os.path.realpath(program))))
    return list(binds.values())


def _add_root(binds: dict[str, Bind], root: str) -> None:
    if root in TOO_WIDE or root.startswith("/usr/") or not os.path.isdir(root):
        return
    if os.path.realpath(root) in TOO_WIDE or root == os.path.expanduser("~"):
        return
    binds[root] = Bind(os.path.realpath(root), root)
    home = _base_home(Path(root) / "pyvenv.cfg")
    if home and os.path.dirname(home) not in binds:
        _add_root(binds, os.path.dirname(home))


def _base_home(config: Path) -> str | None:
    """The folder of the base interpreter, from a virtualenv's ``pyvenv.cfg``."""
    try:
        lines = config.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() == "home" and value.strip().startswith("/"):
            return os.path.normpath(value.strip())
    return None


def kernel_environment(
    caller: Mapping[str, str],
    kernelspec: Mapping[str, str],
    *,
    program: str,
    allowed: Iterable[str] = (),
    threads: int | None = None,
    proxy: str | None = None,
) -> dict[str, str]:
    """The whole environment of the sandbox. ``kernelspec`` names variables that the spec itself sets."""
    passed = ENV_NAMES | set(allowed) | set(kernelspec)
    env = {k: v for k, v in caller.items() if k in passed or k.startswith(ENV_PREFIXES)}
    path = [os.path.dirname(program)] if os.path.isabs(program) else []
    defaults = {
        "PATH": ":".join([*path, f"{PACKAGES}/bin", "/usr/local/bin", "/usr/bin", "/bin"]),
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh",
        # A read-only environment can't be installed into; packages go to the private home instead.
        "PIP_TARGET": PACKAGES,
        "PYTHONPATH": PACKAGES,
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_CACHE_DIR": "1",
        # Five would take ten seconds where there is no network, and some clients begin with an installation.
        "PIP_RETRIES": "1",
        "MPLCONFIGDIR": f"{HOME}/.config/matplotlib",
        # Without it ipykernel's debugger writes a warning to stderr after each start.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        **ALLOCATORS,
    }
    if threads is not None:
        defaults |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    env = {
        name: value
        for name, value in {**defaults, **env}.items()
        if "\0" not in name + value and "=" not in name
    }
    if proxy is not None:
        env |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
        env |= {"NO_PROXY": "", "no_proxy": ""}
    for name in ("JPY_PARENT_PID", "JPY_SESSION_NAME", "PYTHONEXECUTABLE", "KERNEL_LIMITS"):
        env.pop(name, None)
    return env | {"HOME": HOME, "USER": "user", "LOGNAME": "user", "PWD": WORKSPACE, "TMPDIR": "/tmp"}  # noqa: S108
