"""IPython extension of the kernels: what is written to stdout and stderr reaches the run that it belongs to.

**File descriptors 1 and 2** are a pipe of its own for each run: see `interpreter_pipes`.

**The first lines are sent at once**, and again after a pause; more of them come in bursts, as ipykernel
has it. A crash, or code that never lets go of the interpreter's lock, does not take them along.

**Streams that code has broken** (`sys.stdout = None`, a closed file) are replaced after its cell. ipykernel
would fail before it executes anything more.

**Nothing is kept** of what was printed. IPython keeps all of it till the kernel's end, for the outputs in the file that
``%notebook`` writes.

Where ipykernel, or the system, is not what this expects, it is left as it is.
"""

import contextlib
import ctypes
import select
import sys
import threading
import time

from interpreter_callbacks import call_before_cells
from interpreter_pipes import RunPipes, give_processes_their_pipe, read_after_writes

FIRST_LINES = 5
"""So many lines are sent one by one when a run begins, and after a pause."""
PAUSE_SECONDS = 0.2
LONG_LINE = 4096
"""So many characters do not wait for their line's end."""
INTERNALS = (
    *("_buffers", "_buffer_lock", "_flush", "_flush_pending", "_schedule_flush"),
    *("_original_stdstream_fd", "_parent_header", "set_parent", "watch_fd_thread"),
)
"""What this needs of ipykernel's streams."""


_of_kernel = []  # StandardStreams, once it is loaded


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    kernel = getattr(shell, "kernel", None)
    streams = {name: getattr(sys, name, None) for name in ("stdout", "stderr")}
    if kernel is None or _of_kernel or not all(is_expected(stream) for stream in streams.values()):
        return
    _of_kernel.append(StandardStreams(shell, streams))


def is_expected(stream):
    """Whether a stream is ipykernel's, and has the parts that are used here."""
    return getattr(stream, "_should_watch", False) and all(hasattr(stream, name) for name in INTERNALS)


class StandardStreams:
    """The kernel's two streams, through the runs."""

    def __init__(self, shell, streams):
        self._shell = shell
        self._streams = streams
        self._run = None
        self._c_files = find_c_files()
        self._first_lines = [FirstLines(stream) for stream in streams.values()]
        self._pipes = [RunPipes(stream) for stream in streams.values()] if hasattr(select, "epoll") else []
        if self._pipes:
            give_processes_their_pipe(*self._pipes)
            read_after_writes(self._pipes)
        for stream in streams.values():
            stream.close = flush_at_close(stream)
        call_before_cells(shell, self.begin)
        shell.events.register("post_execute", self.end)
        self._mend_before_use()
        shell._tee = lambda channel: contextlib.nullcontext()

    def begin(self, info=None):
        """Called before each cell; code that runs cells itself is still one run."""
        parent = self._shell.kernel.get_parent("shell")
        run = parent.get("header", {}).get("msg_id")
        if run == self._run or threading.current_thread() is not threading.main_thread():
            return
        self._run = run
        for stream in self._streams.values():
            if stream.parent_header.get("msg_id") != run:  # ipykernel tells only what is in `sys`
                stream.set_parent(parent)
        for first_lines in self._first_lines:
            first_lines.begin()
        for pipes in self._pipes:
            pipes.begin()
            pipes.waits = True

    def end(self):
        """Called after each cell."""
        for pipes in self._pipes:
            pipes.waits = False
        for file in self._c_files:
            _libc.fflush(file)
        for stream in (sys.__stdout__, sys.__stderr__):
            is_usable(stream)  # flushes it
        self.mend()

    def mend(self):
        """Puts ipykernel's streams back where what code has put there can't be written to.

        ipykernel flushes what is in `sys`. Where that is the code's own (`sys.stdout = sys.__stdout__`) what reaches
        the file descriptor would come after the end of the run, or after what is shown next.
        """
        for name, own in self._streams.items():
            stream = getattr(sys, name, None)
            if stream is own:
                continue
            if not is_usable(stream):
                setattr(sys, name, own)
            own.flush()

    def flush(self):
        """Sends what was written and shown so far."""
        for pipes in self._pipes:
            pipes.flush_and_wait()
        for stream in () if self._pipes else self._streams.values():
            stream.flush()

    def _mend_before_use(self):
        """ipykernel flushes the streams before each value and each error, in the midst of a cell."""
        for owner, name in (
            (self._shell, "_showtraceback"),
            (self._shell.displayhook, "finish_displayhook"),
            (self._shell.display_pub, "_flush_streams"),
        ):
            if hasattr(owner, name):
                setattr(owner, name, self._after_mending(getattr(owner, name)))

    def _after_mending(self, use):
        def mend_and_use(*args, **kwargs):
            self.mend()
            waits = [pipes.waits for pipes in self._pipes]
            for pipes in self._pipes:
                pipes.waits = False  # what is used comes after all that was shown before anyhow
            try:
                return use(*args, **kwargs)
            finally:
                for pipes, waited in zip(self._pipes, waits, strict=True):
                    pipes.waits = waited

        return mend_and_use


def flush_at_close(stream):
    """What `close` does instead: a closed stream would take the output of all later runs along."""

    def close():
        if not sys.is_finalizing():
            stream.flush()

    return close


def is_usable(stream):
    """Whether a stream can be written to and flushed; code may put anything there."""
    try:
        if not callable(stream.write):
            return False
        stream.flush()
        return getattr(stream, "closed", False) is not True  # a closed StringIO is flushed without an error
    except BaseException:  # noqa: BLE001  (an interrupt, too: the stream does not let go)
        return False


# ---- the C library's own streams

_libc = ctypes.CDLL(None)
_libc.fflush.argtypes = [ctypes.c_void_p]


def find_c_files():
    """C's stdout and stderr. `fflush` of all files would wait for those that another thread reads."""
    found = []
    for name in ("stdout", "stderr"):
        with contextlib.suppress(ValueError):  # another C library
            found.append(ctypes.c_void_p.in_dll(_libc, name))
    return found


# ---- the first lines


class FirstLines:
    """Sends the main thread's first lines of a run at once; a stream's writes call it."""

    def __init__(self, stream):
        self.stream = stream
        self._schedule = stream._schedule_flush
        self._left = FIRST_LINES
        self._began = 0.0
        self._main = threading.main_thread().ident
        stream._schedule_flush = self._written

    def begin(self):
        self._left = FIRST_LINES

    def _written(self):
        stream = self.stream
        if stream._flush_pending:
            if not self._left:
                return
        else:
            now = time.monotonic()
            if now - self._began > PAUSE_SECONDS:
                self._left = FIRST_LINES
            self._began = now
        if self._left and threading.get_ident() == self._main and self._is_whole_line():
            self._left -= 1
            stream.flush()
        else:
            self._schedule()

    def _is_whole_line(self):
        """`print` writes the end of its line apart."""
        with self.stream._buffer_lock:
            return any(
                buffer.tell() > LONG_LINE or buffer.getvalue().endswith("\n")
                for buffer in self.stream._buffers.values()
            )


def flush():
    """Sends what was written so far."""
    for streams in _of_kernel:
        streams.flush()
