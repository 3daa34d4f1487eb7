"""The environment of a kernel: made from nothing, so nothing of the gateway's can leak into it."""

import os
from collections.abc import Mapping
from pathlib import Path

_KEPT_VARIABLES = ("TZ",)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def kernel_environment(
    gateway: Mapping[str, str],
    *,
    kernel_id: str,
    program: str,
    home: Path,
    requested: Mapping[str, str],
) -> dict[str, str]:
    """All variables of one kernel.

    `program` is the kernelspec's executable, whose folder comes first in PATH; `home` is private to
    the kernel; of `requested` (the request's ``env``) only ``KERNEL_*`` names are taken, as Kernel
    Gateway does. MPLBACKEND stays unset: ipykernel then chooses the inline backend.
    """
    environment = {name: gateway[name] for name in _KEPT_VARIABLES if name in gateway}
    environment |= {name: value for name, value in requested.items() if name.startswith("KERNEL_")}
    folder = os.path.dirname(program)
    environment |= {
        "PATH": f"{folder}:{_SYSTEM_PATH}" if os.path.isabs(folder) else _SYSTEM_PATH,
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "IPYTHONDIR": str(home / ".ipython"),
        "JUPYTER_CONFIG_DIR": str(home / ".jupyter"),
        "JUPYTER_DATA_DIR": str(home / ".local/share/jupyter"),
        "JUPYTER_RUNTIME_DIR": str(home / ".local/share/jupyter/runtime"),
        "MPLCONFIGDIR": str(home / ".config/matplotlib"),
        # pydevd's warning about frozen modules would be the first line of a session's stderr
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "KERNEL_GATEWAY": "1",
        "KERNEL_ID": kernel_id,
    }
    if os.path.exists("/bin/bash"):
        environment["SHELL"] = "/bin/bash"
    return environment
