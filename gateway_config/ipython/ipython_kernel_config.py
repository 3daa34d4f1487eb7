"""IPython configuration of the kernels (named by the kernelspec's ``--config``).

It stands beside ``kernel.json``; `install_kernel.py` puts it there.
"""

import importlib.util
import sys
from pathlib import Path

c = get_config()  # type: ignore[name-defined]  # noqa: F821

# A history file would be shared by all sessions of a user, and opening it costs start time.
# `In`, `Out`, `_` and `%history` of the running session work without it.
c.HistoryManager.enabled = False

# The extension does it, once the kernel has imported what is its own.
c.InteractiveShellApp.ignore_cwd = True

_extensions = []
for _name in (
    "interpreter_callbacks",
    "interpreter_kernel",
    "interpreter_pipes",
    "interpreter_streams",
    "interpreter_threads",
    "interpreter_commands",
    "interpreter_ends",
    "interpreter_processes",
    "interpreter_tracebacks",
    "interpreter_memory",
    "interpreter_survival",
    "interpreter_imports",
):
    _path = Path(__file__).with_name(f"{_name}.py")
    if _path.is_file() and _name not in sys.modules:  # a fork server has loaded them already
        _spec = importlib.util.spec_from_file_location(_name, _path)
        _module = importlib.util.module_from_spec(_spec)
        sys.modules[_name] = _module
        _spec.loader.exec_module(_module)
    if hasattr(sys.modules.get(_name), "load_ipython_extension"):
        _extensions.append(_name)
if _extensions:
    c.InteractiveShellApp.extensions = _extensions
