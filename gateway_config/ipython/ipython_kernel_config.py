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

_path = Path(__file__).with_name("interpreter_kernel.py")
if _path.is_file() and "interpreter_kernel" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("interpreter_kernel", _path)
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["interpreter_kernel"] = _module
    _spec.loader.exec_module(_module)
    c.InteractiveShellApp.extensions = ["interpreter_kernel"]
