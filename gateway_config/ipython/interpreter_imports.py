"""IPython extension of the kernels: what code imports may be a file of the session's, what the kernel imports may not.

A kernel starts without its working directory among the places of modules (``python -P``): a file that is called
`types.py` or `psutil.py` would else end each later start of the session's kernel. Here, at the end of the start, the
directory gets its usual place, behind the standard library and before installed packages.

What the kernel imports later (to show a traceback, for ``!command``) is never looked for there.
"""

import importlib.abc
import importlib.machinery
import os
import sys

OWN = frozenset(
    {
        *("asttokens", "executing", "pure_eval", "stack_data"),  # tracebacks
        *("pexpect", "ptyprocess"),  # shell commands
        *("jedi", "parso"),  # completion
        *("debugpy", "matplotlib_inline", "psutil"),
    }
)
"""Packages that IPython and ipykernel import when they first need them."""
INSTALLED = ("site-packages", "dist-packages")


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    if getattr(shell, "kernel", None) is None or any(
        isinstance(finder, OwnFinder) for finder in sys.meta_path
    ):
        return
    sys.meta_path.insert(0, OwnFinder())
    if "" not in sys.path:
        sys.path.insert(place_of_directory(), "")


def place_of_directory():
    """Where IPython puts the working directory; at the head where nothing is installed."""
    places = (place for place, path in enumerate(sys.path) if os.path.basename(path) in INSTALLED)
    return next(places, 0)


class OwnFinder(importlib.abc.MetaPathFinder):
    """Finds the kernel's `OWN` packages where they are installed."""

    def find_spec(self, name, path=None, target=None):
        if name not in OWN:
            return None
        elsewhere = [entry for entry in sys.path if isinstance(entry, str) and not is_directory(entry)]
        return importlib.machinery.PathFinder.find_spec(name, elsewhere)


def is_directory(entry):
    """Whether an entry of the module path is the working directory."""
    try:
        return not entry or os.path.samefile(entry, os.curdir)
    except OSError:
        return False
