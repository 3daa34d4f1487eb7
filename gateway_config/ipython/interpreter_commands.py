"""IPython extension of the kernels: the program of a ``!command`` may print any amount.

IPython keeps all that the program has printed, and copies it for each piece that it shows: twice as much takes four
times as long. It also decodes each piece for itself, and a character that two of them share becomes two others.
Here a piece is forgotten when it is shown, and what it lacks of its last character comes with the next one.

All else is as IPython has it: the terminal, how often something is shown, the interrupt, the exit code.
"""

import codecs
import functools
import sys
import time

READ_BYTES = 64 * 1024
MAX_PIECE_BYTES = 256 * 1024
"""Shown at once. A hundred such messages may wait for a slow reader (`interpreter_kernel`)."""


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    module = sys.modules.get("ipykernel.zmqshell")
    system = getattr(module, "system", None)
    handler = getattr(system, "__self__", None)  # where there are terminals, IPython's `ProcessHandler`
    if getattr(shell, "kernel", None) is not None and hasattr(handler, "terminate_timeout"):
        module.system = functools.wraps(system)(functools.partial(run_command, handler))


def run_command(handler, command):
    """Run a shell's command in a terminal, and show what comes out of that; the exit code.

    A negative one is the number of a signal.
    """
    import pexpect  # noqa: PLC0415

    child = pexpect.spawn(handler.sh, args=["-c", command])
    output = TerminalOutput(child, pexpect)
    try:
        while not output.ended:
            output.show(handler.read_timeout)
    except KeyboardInterrupt:
        child.sendline(chr(3))  # Ctrl-C: the terminal interrupts what runs there
        try:
            output.show(handler.terminate_timeout)
        except KeyboardInterrupt:
            pass  # impatience
        finally:
            child.terminate(force=True)
    if not child.isalive():
        child.ptyproc.delayafterclose = 0  # else a tenth of a second for an end that has been seen
    if child.exitstatus is None:
        return -(child.signalstatus or 0)
    return child.exitstatus if child.exitstatus <= 128 else 128 - child.exitstatus


class TerminalOutput:
    """What the program in a terminal prints, up to its end."""

    def __init__(self, child, pexpect):
        from IPython.utils.encoding import DEFAULT_ENCODING  # noqa: PLC0415

        self._child = child
        self._timeout = pexpect.TIMEOUT
        self._eof = pexpect.EOF
        self._decoder = codecs.getincrementaldecoder(DEFAULT_ENCODING)(errors="replace")
        self._unshown = []
        self.ended = False

    def show(self, seconds):
        """Show all that comes in this time, or till the end."""
        end = time.monotonic() + seconds
        size = 0
        while not self.ended and (left := end - time.monotonic()) > 0:
            size += self._read(left)
            if size >= MAX_PIECE_BYTES:
                self._print()
                size = 0
        self._print()

    def _read(self, seconds):
        """Wait so long for something; how many bytes it is."""
        try:
            read = self._child.read_nonblocking(READ_BYTES, seconds)
        except self._timeout:
            return 0
        except self._eof:
            self.ended = True
            return 0
        self._unshown.append(read)
        return len(read)

    def _print(self):
        read = b"".join(self._unshown)
        self._unshown.clear()
        sys.stdout.write(self._decoder.decode(read, self.ended))
        sys.stdout.flush()
