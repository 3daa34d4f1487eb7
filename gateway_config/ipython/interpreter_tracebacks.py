"""IPython extension of the kernels: the traceback of a deep recursion takes no longer than that of any error.

IPython asks `inspect` for the module of each frame, several times, and `inspect` looks through all modules for that:
10 ms a frame once pandas and the like are imported, 10 seconds for a recursion without an end. The frames of one
function have the same answer, so here each is looked for once per traceback.
"""

import functools
import inspect
import threading
import types

_known = threading.local()


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    from IPython.core import ultratb  # noqa: PLC0415

    get_records = getattr(ultratb.VerboseTB, "get_records", None)
    if get_records is None or hasattr(get_records, "__wrapped__"):
        return
    ultratb.VerboseTB.get_records = once_per_function(get_records)
    for name in ("getmodule", "getsourcelines"):
        setattr(inspect, name, remembered(getattr(inspect, name)))


def once_per_function(get_records):
    """Lets what is `remembered` be remembered while the frames of one traceback are collected."""

    @functools.wraps(get_records)
    def get(*args, **kwargs):
        outer = getattr(_known, "answers", None)
        _known.answers = {}
        try:
            return get_records(*args, **kwargs)
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
