"""IPython extension of the kernels: figures are shown whatever backend the code asked for.

Language models open their code with ``matplotlib.use("Agg")`` out of habit. Under that backend
``plt.show()`` does nothing and the figures vanish. The inline backend draws with Agg too, so it is
what "Agg" gets here; `matplotlib.get_backend()` still says what was asked for.

Nothing is imported before the user imports matplotlib: an import hook waits for it.
"""

import importlib.abc
import importlib.util
import os
import shutil
import sys
from pathlib import Path

INLINE = "module://matplotlib_inline.backend_inline"


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    if not any(isinstance(finder, MatplotlibHook) for finder in sys.meta_path):
        sys.meta_path.insert(0, MatplotlibHook(shell))


class MatplotlibHook(importlib.abc.MetaPathFinder):
    """Runs `seed_font_cache` before matplotlib's import and `show_agg_inline` after pyplot's."""

    def __init__(self, shell):
        self._shell = shell
        self._busy = False

    def find_spec(self, name, path=None, target=None):
        if name == "matplotlib":
            seed_font_cache()
        if name != "matplotlib.pyplot" or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader):
        exec_module = loader.exec_module

        def exec_and_patch(module):
            exec_module(module)
            show_agg_inline(module, self._shell)

        loader.exec_module = exec_and_patch


def seed_font_cache():
    """Copies the font list that was made at installation, since making it takes seconds."""
    source = Path(__file__).with_name("matplotlib")
    target = os.environ.get("MPLCONFIGDIR")
    if not target:
        return
    try:
        os.makedirs(target, exist_ok=True)
        for font_list in source.glob("fontlist-*.json"):
            if not os.path.exists(os.path.join(target, font_list.name)):
                shutil.copyfile(font_list, os.path.join(target, font_list.name))
    except OSError:
        return  # only slower: matplotlib makes its own


def show_agg_inline(pyplot, shell):
    """Makes pyplot take the inline backend where the code asks for Agg."""
    switch_backend = pyplot.switch_backend

    def switch(newbackend):
        if not isinstance(newbackend, str) or newbackend.lower() != "agg":
            return switch_backend(newbackend)
        switch_backend(INLINE)
        from IPython.core.pylabtools import activate_matplotlib  # noqa: PLC0415
        from matplotlib_inline.backend_inline import configure_inline_support  # noqa: PLC0415

        activate_matplotlib(INLINE)
        configure_inline_support(shell, INLINE)
        return None

    switch.__doc__ = switch_backend.__doc__
    pyplot.switch_backend = switch
