"""IPython extension of the kernels: nothing that a cell shows gets lost.

**Figures.** Language models open their code with ``matplotlib.use("Agg")`` out of habit. Under that backend
``plt.show()`` does nothing and the figures vanish. The inline backend draws with Agg too, so it is
what "Agg" gets here; `matplotlib.get_backend()` still says what was asked for.

**Characters that a font lacks.** Text in figures gets its missing characters (Chinese, Japanese,
Korean, emoji) from the fonts that `install_kernel.py` found, whichever font it asks for.

Nothing is imported before the user imports matplotlib: an import hook waits for it.

**Output faster than it is read.** ZeroMQ's XPUB socket drops messages when 1000 wait. With
XPUB_NODROP the kernel waits instead, and the gateway need not keep what it can't handle yet.

**Text that is no Unicode.** Python strings can hold half a character, which UTF-8 has no bytes for. It
becomes U+FFFD; ipykernel would drop the message, or turn it into another error.

**Programs that print much** are not slowed down by a copy of their output that nobody reads.

**One huge print** would be one huge message; here it keeps its head and its tail and says in its
metadata what is missing (names as in the gateway's `bounding.py`, which does it again for code that
gets around this).
"""

import faulthandler
import importlib.abc
import importlib.util
import json
import math
import os
import re
import shutil
import sys
import threading
import warnings
from pathlib import Path

INLINE = "module://matplotlib_inline.backend_inline"
MAX_STREAM_CHARACTERS = 2 * 1024 * 1024
"""Of one stream message: head and tail together."""
OVERWRITTEN = re.compile(r"^[^\n]*\r(?=[^\n])", re.MULTILINE)
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_WAITING_MESSAGES = 100
"""That the kernel keeps for each reader before it waits."""


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    if not any(isinstance(finder, MatplotlibHook) for finder in sys.meta_path):
        hook = MatplotlibHook(shell)
        sys.meta_path.insert(0, hook)
        hook.mend_what_is_there()
        kernel = getattr(shell, "kernel", None)
        if getattr(kernel, "iopub_thread", None) is not None:
            wait_instead_of_dropping(kernel.iopub_thread)
            send_in_flush(kernel.iopub_thread)
            cut_huge_streams(kernel.session)
            pack_any_text(kernel.session)
            stop_echoing()


def wait_instead_of_dropping(iopub_thread):
    """Sets XPUB_NODROP on the iopub socket, and a shorter queue, in the thread that owns it."""
    import zmq  # noqa: PLC0415

    def configure():
        iopub_thread.socket.setsockopt(zmq.XPUB_NODROP, 1)
        iopub_thread.socket.setsockopt(zmq.SNDHWM, MAX_WAITING_MESSAGES)

    iopub_thread.schedule(configure)


def stop_echoing():
    """Ends the copy that ipykernel writes of what programs print to file descriptors 1 and 2.

    The copy goes to the kernel's own stdout and stderr. A sandbox reads these slowly, and then a
    program that prints much would wait for it. What is left there is the last word of a crash.
    """
    for stream in (sys.stdout, sys.stderr):
        copy = getattr(stream, "_original_stdstream_copy", None)
        if copy is None:
            continue
        if stream is sys.stderr:
            faulthandler.enable(os.fdopen(os.dup(copy), "w"))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, copy)
        os.close(null)


def send_in_flush(iopub_thread):
    """Lets the output thread send at once what it makes itself.

    It would queue that for its next turn, and `flush` would return before. Code that then never lets
    go of the interpreter's lock would take with it, when its kernel is ended, what it has printed.
    """
    queue = iopub_thread.send_multipart

    def send_multipart(*args, **kwargs):
        own = threading.current_thread() is iopub_thread.thread
        return (iopub_thread._really_send if own else queue)(*args, **kwargs)

    iopub_thread.send_multipart = send_multipart


def cut_huge_streams(session):
    """Wraps the `send` of the kernel's `Session`, which gets streams as ready messages."""
    send = session.send

    def send_cut(stream, msg_or_type, *args, **kwargs):
        if isinstance(msg_or_type, dict) and msg_or_type.get("msg_type") == "stream":
            cut_stream(msg_or_type)
        return send(stream, msg_or_type, *args, **kwargs)

    session.send = send_cut


def pack_any_text(session):
    """A half of a character (a lone surrogate) in an output must not lose the whole message.

    Nor must NaN: jupyter_client makes text of it, and says so with a warning amid the output of the first run
    that has one, or not at all if code has made errors of warnings.
    """
    pack = session.pack
    warnings.filterwarnings("ignore", "Message serialization failed", UserWarning)

    def pack_whole(content):
        try:
            packed = pack(content)
            if not packed.isascii():
                packed.decode()  # U+DC80 to U+DCFF become single bytes, which are no UTF-8
        except (UnicodeError, UserWarning):
            return pack(packable(content))
        return packed

    session.pack = pack_whole


def packable(value):
    """A copy of JSON-able content with U+FFFD for each lone surrogate, and text for NaN and infinities."""
    if isinstance(value, str):
        return LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(float(value))
    if isinstance(value, dict):
        return {packable(key): packable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [packable(item) for item in value]
    return value


def cut_stream(message):
    """Cuts the text of a stream message in place, if it is too long without what it overwrites itself."""
    text = message["content"].get("text")
    if isinstance(text, str) and len(text) > MAX_STREAM_CHARACTERS:
        # The first line may overwrite what was sent before.
        text = OVERWRITTEN.sub(lambda found: "" if found.start() else "\r", text)
        message["content"]["text"] = text
    if isinstance(text, str) and len(text) > MAX_STREAM_CHARACTERS:
        half = MAX_STREAM_CHARACTERS // 2
        dropped = len(LONE_SURROGATE.sub("\ufffd", text[half:-half]).encode())
        message["content"]["text"] = text[:half] + text[-half:]
        message["metadata"] |= {"interpreter_dropped_bytes": dropped, "interpreter_dropped_at": half}


class MatplotlibHook(importlib.abc.MetaPathFinder):
    """Runs `seed_font_cache` before matplotlib's import, and what mends its parts after theirs."""

    def __init__(self, shell):
        self._busy = False
        self._after = {
            "matplotlib.font_manager": add_fallback_fonts,
            "matplotlib.pyplot": lambda pyplot: show_agg_inline(pyplot, shell),
        }

    def mend_what_is_there(self):
        """A kernel that was forked from one with matplotlib imports it no more."""
        for name, patch in self._after.items():
            if name in sys.modules:
                patch(sys.modules[name])

    def find_spec(self, name, path=None, target=None):
        if name == "matplotlib":
            seed_font_cache()
        if name not in self._after or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader, self._after[name])
        return spec

    def _wrap(self, loader, patch):
        exec_module = loader.exec_module

        def exec_and_patch(module):
            exec_module(module)
            patch(module)

        loader.exec_module = exec_and_patch


def add_fallback_fonts(font_manager):
    """Puts our fonts at the end of each list in which matplotlib looks for a character.

    `font.family` would do for text that asks for no font; styles and themes (seaborn's) replace it.
    """
    try:
        text = Path(__file__).with_name("fallback_fonts.json").read_text(encoding="utf-8")
    except OSError:
        return
    fonts = [path for path in json.loads(text) if os.path.exists(path)]
    find = getattr(font_manager.FontManager, "_find_fonts_by_props", None)
    if find is None or not fonts:
        return

    if hasattr(font_manager, "FontPath"):  # since matplotlib 3.11 a path knows its face in the file
        fonts = [font_manager.FontPath(path, 0) for path in fonts]

    def find_with_fallbacks(self, prop, fontext="ttf", *args, **kwargs):
        found = find(self, prop, fontext, *args, **kwargs)
        if fontext != "ttf":  # metrics of PostScript's own fonts
            return found
        return [*found, *(font for font in fonts if font not in found)]

    font_manager.FontManager._find_fonts_by_props = find_with_fallbacks


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
    """Makes pyplot, and ``%matplotlib agg``, take the inline backend where the code asks for Agg."""
    switch_backend = pyplot.switch_backend

    def switch(newbackend):
        if not is_agg(newbackend):
            return switch_backend(newbackend)
        switch_backend(INLINE)
        from IPython.core.pylabtools import activate_matplotlib  # noqa: PLC0415
        from matplotlib_inline import backend_inline  # noqa: PLC0415

        configure = backend_inline.configure_inline_support
        if not getattr(configure, "takes_agg_for_inline", False):

            def configure_inline_support(shell, backend):
                return configure(shell, INLINE if is_agg(backend) else backend)

            configure_inline_support.takes_agg_for_inline = True
            backend_inline.configure_inline_support = configure_inline_support
        activate_matplotlib(INLINE)
        backend_inline.configure_inline_support(shell, INLINE)
        return None

    switch.__doc__ = switch_backend.__doc__
    pyplot.switch_backend = switch


def is_agg(backend):
    return isinstance(backend, str) and backend.lower() == "agg"
