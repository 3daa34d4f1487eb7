"""What the extensions do before each cell, which an interrupt does not break off. Used by them.

IPython would print amid the cell's output that a callback failed, and then execute the cell all the same. Here the
interrupt waits until these callbacks are done, and then it ends the cell before it begins.
"""

import contextlib
import signal
import threading

_of_kernel = []  # Callbacks, once there are some


def call_before_cells(shell, function):
    """Have a function called as IPython calls those for ``pre_run_cell``."""
    if not _of_kernel:
        _of_kernel.append(Callbacks(shell.events))
    _of_kernel[0].functions.append(function)


class Callbacks:
    """The functions, in their order."""

    def __init__(self, events):
        self.functions = []
        self._interrupted = False
        self._trigger = events.trigger
        events.trigger = self.trigger
        events.register("pre_run_cell", self.call)

    def call(self, info=None):
        """Called by IPython before each cell."""
        with self._waiting_interrupts(), contextlib.ExitStack() as calls:
            for function in reversed(self.functions):
                calls.callback(function, info)

    @contextlib.contextmanager
    def _waiting_interrupts(self):
        self._interrupted = False
        # Another handler is that for a cell with `await`, which raises nothing.
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        ):
            yield
            return
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, number, frame):
        self._interrupted = True

    def trigger(self, event, *args, **kwargs):
        """IPython's method; what callbacks raise does not get out of that."""
        self._trigger(event, *args, **kwargs)
        if self._interrupted and event == "pre_run_cell":
            self._interrupted = False
            raise KeyboardInterrupt
