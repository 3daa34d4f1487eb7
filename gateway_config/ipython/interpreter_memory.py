"""IPython extension of the kernels: memory that runs out ends the run that used it up, and not the kernel.

The limit is the sandbox's, on the data of each process (RLIMIT_DATA). While code of a session runs it is a little
lower than afterwards. So there is memory left to show the code's MemoryError, to send what was printed, and to run
the code that frees what is held. Else the kernel itself would fail in the midst of that.
"""

import contextlib
import resource

from interpreter_callbacks import call_before_cells

RESERVE_BYTES = 16 * 1024**2
SMALLEST_LIMIT = 8 * RESERVE_BYTES


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    limit, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit == resource.RLIM_INFINITY or limit < SMALLEST_LIMIT:
        return

    def set_limit(value):
        with contextlib.suppress(ValueError, OSError):  # code has lowered it for good
            resource.setrlimit(resource.RLIMIT_DATA, (value, hard))

    def show_with_reserve(*args, **kwargs):
        set_limit(limit)
        return show(*args, **kwargs)

    show, shell.showtraceback = shell.showtraceback, show_with_reserve
    call_before_cells(shell, lambda info: set_limit(limit - RESERVE_BYTES))
    shell.events.register("post_execute", lambda: set_limit(limit))
