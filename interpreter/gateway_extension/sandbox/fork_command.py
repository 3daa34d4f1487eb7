"""Which kernel commands can be had by a fork, and of what process (pure)."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KERNEL_IMPORTS = (
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.zmqshell",
    "ipykernel.debugger",
    "tornado.platform.asyncio",
    "sqlite3",
    "faulthandler",
    "IPython.core.debugger",
    "IPython.core.completerlib",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
)
"""What every kernel imports by itself, sooner or later."""
END_OF_KERNEL = "--"  # as in zygote_main.py
IMPORTS = ("numpy", "pandas", "matplotlib.pyplot")
FIRST_USE = {"matplotlib.pyplot": ("matplotlib.backends.backend_agg",)}
"""What a module imports when it is first used."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Which zygote a kernel can come from.

    ``imports``: names of modules; those before `END_OF_KERNEL`, if it is there, are the kernel's own, and so are the
    ``files`` that are loaded before them.
    """

    python: str
    options: tuple[str, ...]
    imports: tuple[str, ...]
    files: tuple[str, ...] = ()

    def serves(self, other: "Origin") -> bool:
        """Whether its zygote can make kernels of the other, too: files too many do no harm."""
        return self == dataclasses.replace(other, files=self.files) and not other.files


@dataclass(frozen=True, slots=True)
class ForkCommand:
    """A kernel's command as the zygote needs it: ``python OPTIONS -m MODULE ARGUMENTS``."""

    origin: Origin
    module: str
    argv: tuple[str, ...]

    @classmethod
    def find(
        cls, command: Sequence[str], env: Mapping[str, str], imports: Sequence[str], files: Sequence[str] = ()
    ) -> "ForkCommand | None":
        """None when this command can't be had by a fork: no ``-m``, or variables that act at the start.

        ``files``: modules of the kernel's own that are imported by path.
        """
        at = next(
            (n for n, word in enumerate(command) if n and word != "-P" and not word.startswith("-X")), 0
        )
        if command[at : at + 1] != ["-m"] or len(command) < at + 2 or not os.path.isabs(command[0]):
            return None
        if any(_acts_at_start(name) for name in env):
            return None
        used = [name for module in imports for name in (module, *FIRST_USE.get(module, ()))]
        origin = Origin(
            command[0], tuple(command[1:at]), (*KERNEL_IMPORTS, END_OF_KERNEL, *used), tuple(files)
        )
        return cls(origin, command[at + 1], (command[0], *command[at + 2 :]))


def _acts_at_start(name: str) -> bool:
    """Whether only a new process would follow this variable."""
    if name.startswith(("LD_", "MALLOC_", "GLIBC_TUNABLES")):
        return True
    return name.startswith("PYTHON") and name not in ("PYTHONPATH", "PYTHONSTARTUP")


def extension_files(metadata: Mapping[str, object], folder: str) -> tuple[str, ...]:
    """The files of a kernelspec's folder that its kernels load at the start, as its metadata tell:
    ``{"interpreter": {"modules": ["name", …]}}``."""
    settings = metadata.get("interpreter")
    names = settings.get("modules") if isinstance(settings, dict) else None
    if not isinstance(names, list) or not folder:
        return ()
    paths = (os.path.join(folder, f"{name}.py") for name in names if str(name).isidentifier())
    return tuple(path for path in paths if os.path.isfile(path))
