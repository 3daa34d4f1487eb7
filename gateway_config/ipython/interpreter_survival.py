"""IPython extension of the kernels: code does not take from the kernel what that needs to go on.

**The event loop** is the kernel's and the code's. If the code stops it, or something that the code has left there raises
KeyboardInterrupt, the kernel would end as if it had been asked to. Here the loop goes on.

**A recursion limit** that is too low for the kernel itself holds for one cell: no error and no value could be shown with it.
"""

import functools
import sys

from tornado.ioloop import IOLoop

MIN_RECURSION_LIMIT = 400
"""IPython needs some 200 to show an error."""

_loaded = []


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or _loaded:
        return
    _loaded.append(True)
    loop = IOLoop.current()  # which the kernel starts soon
    loop.start = going_on(loop.start, lambda: shell.exit_now or kernel._shutdown_message is not None)
    shell.showtraceback = after_raising_the_limit(shell.showtraceback)
    shell.events.register("post_execute", raise_recursion_limit)


def going_on(start, is_to_end):
    """Wraps what runs the event loop until it is stopped."""

    @functools.wraps(start)
    def start_again():
        while True:
            try:
                start()
            except KeyboardInterrupt:
                continue
            if is_to_end():
                return

    return start_again


def raise_recursion_limit():
    """To what the kernel needs."""
    if sys.getrecursionlimit() < MIN_RECURSION_LIMIT:
        sys.setrecursionlimit(MIN_RECURSION_LIMIT)


def after_raising_the_limit(show):
    """Wraps what shows an error."""

    @functools.wraps(show)
    def raise_limit_and_show(*args, **kwargs):
        raise_recursion_limit()
        return show(*args, **kwargs)

    return raise_limit_and_show
