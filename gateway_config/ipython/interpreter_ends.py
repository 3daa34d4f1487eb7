"""IPython extension of the kernels: what has ended, and how, can be seen.

**The kernel itself.** Code that ends its own process (`os._exit`, a signal, another program in its place) takes
along what it has printed just before, since a thread sends it. Here it is sent first.

**Shell commands.** ``!command`` shows what the command prints, and keeps its exit code in `_exit_code`, where nobody
looks. Those that are not 0 are told in the reply to the execute request: ``content.interpreter.exit_codes``,
pairs of command and code. A negative code is the number of a signal, as everywhere in IPython.
"""

import functools
import os
import signal
import sys
import time

SENDING_SECONDS = 0.1
"""ZeroMQ writes to its socket in a thread of its own, and does not tell when it has."""
MAX_COMMANDS = 20
"""That are remembered of one run, the latest ones."""
MAX_COMMAND_CHARACTERS = 200
HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}

_loaded = []


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    kernel = getattr(shell, "kernel", None)
    streams = sys.modules.get("interpreter_streams")
    if kernel is None or _loaded:
        return
    _loaded.append(True)
    if streams is not None:
        send_before_end(streams.flush)
    tell_exit_codes(shell, kernel)


# ---- the kernel itself


def send_before_end(flush):
    """Wraps what ends the kernel's process; a fork of it ends as ever."""
    kernel = os.getpid()

    def before(module, name, is_end):
        end = getattr(module, name, None)
        if end is None:
            return

        @functools.wraps(end)
        def flush_and_end(*args, **kwargs):
            if os.getpid() == kernel and is_end(*args, **kwargs):
                flush()
                time.sleep(SENDING_SECONDS)
            return end(*args, **kwargs)

        setattr(module, name, flush_and_end)

    for name in ("_exit", "abort", "execv", "execve"):
        before(os, name, lambda *args, **kwargs: True)
    before(
        os,
        "kill",
        lambda pid=None, number=None, *rest: pid in (kernel, 0, -1, -os.getpgid(0)) and is_fatal(number),
    )
    before(os, "killpg", lambda group=None, number=None, *rest: group == os.getpgid(0) and is_fatal(number))
    before(signal, "raise_signal", lambda number=None, *rest: is_fatal(number))


def is_fatal(number):
    """Whether a signal ends or stops the process, as far as Python knows."""
    if not isinstance(number, int) or number in HARMLESS or number not in signal.valid_signals():
        return False
    return number in (signal.SIGKILL, signal.SIGSTOP) or signal.getsignal(number) in (signal.SIG_DFL, None)


# ---- shell commands


def tell_exit_codes(shell, kernel):
    """Remembers failed commands, and puts them into the reply.

    The shell's own method can't be wrapped: it looks for the values of ``{name}`` in its caller's frame.
    """
    module = sys.modules.get("ipykernel.zmqshell")
    run = getattr(module, "system", None)
    finish = getattr(kernel, "finish_metadata", None)
    if run is None or finish is None:
        return
    failed = []

    @functools.wraps(run)
    def system(command):
        code = run(command)
        if isinstance(code, int) and code:
            failed.append((request_of(kernel), str(command)[:MAX_COMMAND_CHARACTERS], code))
            del failed[:-MAX_COMMANDS]
        return code

    def finish_metadata(parent, metadata, reply_content):
        codes = [[command, code] for request, command, code in failed if request == id_of(parent)]
        if codes:
            failed.clear()
            reply_content["interpreter"] = {"exit_codes": codes}
        return finish(parent, metadata, reply_content)

    module.system = system
    kernel.finish_metadata = finish_metadata


def request_of(kernel):
    """The id of the request that the present thread or task works for."""
    return id_of(kernel.get_parent("shell"))


def id_of(message):
    """The id of a request."""
    return message.get("header", {}).get("msg_id")
