"""IPython extension of the kernels: an error is shown soon, with its name, whatever it holds.

IPython asks `inspect` for the module of each frame, several times, and `inspect` looks through all modules for that:
10 ms a frame once pandas and the like are imported, 10 seconds for a recursion without an end. The frames of one
function have the same answer, so here each is looked for once per traceback.

Of very many frames those in the middle are left out, and so are the oldest of very many exceptions of which each was raised
while the one before was handled. Frames of the kernel's extensions are never shown, as IPython does with its own.

**Huge texts** keep their head and their tail. A message that is too large for the gateway would lose the error's name, too.
"""

import functools
import inspect
import os
import threading
import types

MAX_FRAMES = 2000
"""Of one traceback; recursion ends at some thousand."""
MAX_EXCEPTIONS = 100
"""Of a chain."""
MAX_NAME_CHARACTERS = 512
MAX_TEXT_CHARACTERS = 4 * 1024 * 1024
"""Of an error's message, and of its traceback: what the service keeps, at most."""

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")

_known = threading.local()


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    from IPython.core import ultratb  # noqa: PLC0415

    get_records = getattr(ultratb.VerboseTB, "get_records", None)
    if get_records is None or hasattr(get_records, "__wrapped__"):
        return
    ultratb.VerboseTB.get_records = once_per_function(get_records)
    for name, wrap in (
        ("format_exception_as_a_whole", telling_of_frames),
        ("structured_traceback", telling_of_exceptions),
        ("get_parts_of_chained_exception", ending_chain),
    ):
        if hasattr(ultratb.VerboseTB, name):
            setattr(ultratb.VerboseTB, name, wrap(getattr(ultratb.VerboseTB, name)))
    for name in ("getmodule", "getsourcelines"):
        setattr(inspect, name, remembered(getattr(inspect, name)))
    if getattr(shell, "kernel", None) is not None:
        shell._showtraceback = showing_texts(shell._showtraceback, shell.InteractiveTB.get_exception_only)
        shell.kernel.session.send = cutting(shell.kernel.session.send)


def once_per_function(get_records):
    """Lets what is `remembered` be remembered while the frames of one traceback are collected."""

    @functools.wraps(get_records)
    def get(self, etb, *args, **kwargs):
        outer = getattr(_known, "answers", None)
        _known.answers = {}
        try:
            return get_records(self, part_to_show(etb), *args, **kwargs)
        finally:
            _known.answers = outer

    return get


def remembered(function):
    """The same function. Within a traceback it answers for a frame what it did for an earlier one of its code."""

    @functools.wraps(function)
    def answer(object, *args, **kwargs):
        answers = getattr(_known, "answers", None)
        if answers is None or not isinstance(object, types.FrameType) or kwargs:
            return function(object, *args, **kwargs)
        key = (function, object.f_code, *args)
        if key not in answers:
            try:
                answers[key] = function(object, *args), None
            except OSError as error:
                answers[key] = None, error
        found, error = answers[key]
        if error is not None:
            raise error.with_traceback(None)
        return found

    return answer


# ---- very many frames and exceptions


def part_to_show(traceback):
    """The traceback, or a copy without the frames of extensions, and without those in the middle of very many."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    shown = [frame for frame in frames if not frame.tb_frame.f_code.co_filename.startswith(FOLDER)]
    if len(shown) > MAX_FRAMES:
        _known.frames_left_out = len(shown) - MAX_FRAMES
        shown[MAX_FRAMES // 2 : -MAX_FRAMES // 2] = []
    if len(shown) in (0, len(frames)):
        return frames[0] if frames else None
    rest = None
    for frame in reversed(shown):
        rest = types.TracebackType(rest, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return rest


def telling_of_frames(format_exception):
    """Wraps what formats one exception: a list of the lists of its texts, of which the first is the head."""

    @functools.wraps(format_exception)
    def format_and_tell(*args, **kwargs):
        _known.frames_left_out = 0
        formatted = format_exception(*args, **kwargs)
        if _known.frames_left_out:
            formatted[0].insert(1, f"[{_known.frames_left_out:,} frames in the middle are not shown]\n")
        return formatted

    return format_and_tell


def telling_of_exceptions(format_chain):
    """Wraps what formats an exception and those before it: a list of texts, of which the first is a line."""

    @functools.wraps(format_chain)
    def format_and_tell(*args, **kwargs):
        _known.exceptions, _known.is_cut = 1, False
        formatted = format_chain(*args, **kwargs)
        if _known.is_cut:
            formatted.insert(1, "[the exceptions before are not shown]\n")
        return formatted

    return format_and_tell


def ending_chain(get_parts):
    """Wraps what gives the exception before one, None at the end."""

    @functools.wraps(get_parts)
    def get_some_parts(*args, **kwargs):
        parts = get_parts(*args, **kwargs)
        _known.exceptions = getattr(_known, "exceptions", 0) + 1
        _known.is_cut = parts is not None and _known.exceptions > MAX_EXCEPTIONS
        return None if _known.is_cut else parts

    return get_some_parts


# ---- texts


def showing_texts(show, get_exception_only):
    """Wraps what sends an error: an exception that renders its traceback itself can give anything for one."""

    @functools.wraps(show)
    def show_texts(etype, evalue, stb):
        if isinstance(stb, str):
            stb = [stb]
        if not isinstance(stb, list) or not all(isinstance(line, str) for line in stb):
            stb = get_exception_only(etype, evalue)
        return show(etype, evalue, stb)

    return show_texts


def cutting(send):
    """Wraps the `send` of the kernel's `Session`."""

    @functools.wraps(send)
    def send_cut(stream, msg_or_type, content=None, *args, **kwargs):
        if msg_or_type in ("error", "execute_reply") and isinstance(content, dict):
            content, dropped = cut_error(content)
            if dropped and msg_or_type == "error":
                kwargs["metadata"] = (kwargs.get("metadata") or {}) | {"interpreter_dropped_bytes": dropped}
        return send(stream, msg_or_type, content, *args, **kwargs)

    return send_cut


def cut_error(content):
    """The content of an error, or of a reply that tells of one, and how many bytes are missing in it."""
    dropped = 0
    for name, most in (("ename", MAX_NAME_CHARACTERS), ("evalue", MAX_TEXT_CHARACTERS)):
        text = content.get(name)
        if isinstance(text, str) and len(text) > most:
            text, lost = cut_text(text, most)
            content, dropped = content | {name: text}, dropped + lost
    lines = content.get("traceback")
    if isinstance(lines, list) and sum(map(len, lines)) > MAX_TEXT_CHARACTERS:
        lines, lost = cut_lines(lines)
        content, dropped = content | {"traceback": lines}, dropped + lost
    return content, dropped


def cut_lines(lines):
    """The first and the last entries of a traceback, long ones without their middle."""
    dropped = 0
    parts = ([], [])
    left = list(lines)
    for part, at in zip(parts, (0, -1), strict=True):
        room = MAX_TEXT_CHARACTERS // 2
        while left and room > 0:
            text, lost = cut_text(left.pop(at), MAX_TEXT_CHARACTERS // 16)
            part.append(text)
            room, dropped = room - len(text), dropped + lost
    missing = size_of("".join(left))
    note = [f"[{missing} bytes were left out]"] if left else []
    return [*parts[0], *note, *reversed(parts[1])], dropped + missing


def cut_text(text, most):
    """A text with at most so many characters of its own, and the number of bytes that it lost."""
    half = most // 2
    if len(text) <= most:
        return text, 0
    lost = size_of(text[half:-half])
    return f"{text[:half]}\n[{lost} bytes were left out]\n{text[-half:]}", lost


def size_of(text):
    return len(text.encode("utf-8", "surrogatepass"))
