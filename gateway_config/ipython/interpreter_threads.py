"""IPython extension of the kernels: a thread's output belongs to the run that has started the thread.

ipykernel knows the run of a task, as each run and all its tasks have a context of their own (`contextvars`).
A thread begins without one, and ipykernel gives its output to whichever run executes. Here a thread inherits what
ipykernel keeps in the context, and nothing else of it: the code's own variables behave as everywhere.

A job of a pool belongs to the run that has handed it in, whichever thread does it.
"""

import _thread
import functools
import importlib
import sys
import threading
from contextvars import ContextVar

POOLED = ("apply_async", "_map_async", "imap", "imap_unordered")
"""Methods of `multiprocessing.pool.ThreadPool` that take the function of jobs first."""

_variables = []  # what ipykernel keeps in the context


def load_ipython_extension(shell):
    """Called by IPython once, before the first cell."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or _variables:
        return
    _variables.extend(find_variables(shell, kernel))
    for module in (_thread, threading):
        for name in (
            "start_new_thread",
            "_start_new_thread",
            "start_joinable_thread",
            "_start_joinable_thread",
        ):
            if hasattr(module, name):
                setattr(module, name, inheriting(getattr(module, name)))
    for name, mend in (("concurrent.futures.thread", mend_executor), ("multiprocessing.pool", mend_pool)):
        after_import(name, mend)


def find_variables(shell, kernel):
    """The context variables in which ipykernel (since 7) keeps the request that a thread or task works for."""
    owners = (shell, shell.displayhook, shell.display_pub, sys.stdout, sys.stderr)
    found = [getattr(owner, "_parent_header", None) for owner in owners]
    found += [getattr(kernel, name, None) for name in ("_shell_parent", "_shell_parent_ident")]
    return [variable for variable in found if isinstance(variable, ContextVar)]


def capture():
    """What the present thread or task works for."""
    missing = object()
    values = ((variable, variable.get(missing)) for variable in _variables)
    return [(variable, value) for variable, value in values if value is not missing]


def inheriting(start):
    """Wraps a function that starts a thread with the function given first."""

    @functools.wraps(start)
    def start_inheriting(function, *args, **kwargs):
        if not callable(function):
            return start(function, *args, **kwargs)
        captured = capture()

        @functools.wraps(function)
        def begin(*own, **named):
            for variable, value in captured:
                variable.set(value)
            return function(*own, **named)

        return start(begin, *args, **kwargs)

    return start_inheriting


class Job:
    """A function that is called for the run that has made this."""

    def __init__(self, function):
        self._function = function
        self._captured = capture()

    def __call__(self, *args, **kwargs):
        tokens = [(variable, variable.set(value)) for variable, value in self._captured]
        try:
            return self._function(*args, **kwargs)
        finally:
            for variable, token in tokens:
                variable.reset(token)


def mend_executor(module):
    """For ThreadPoolExecutor: its items remember their run, out of sight of the job's traceback."""
    item = getattr(module, "_WorkItem", None)
    if item is None:
        return
    init, run = item.__init__, item.run

    def init_with_run(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self._of_run = Job(functools.partial(run, self))

    def run_for_run(self, *args, **kwargs):
        job = self.__dict__.pop("_of_run", None)
        return run(self, *args, **kwargs) if job is None else job(*args, **kwargs)

    item.__init__, item.run = init_with_run, run_for_run


def mend_pool(module):
    """For multiprocessing's pool of threads (joblib's, too)."""
    pool = getattr(module, "ThreadPool", None)
    for name in POOLED:
        if hasattr(pool, name):
            setattr(pool, name, taking_job(getattr(pool, name)))


def taking_job(method):
    """Wraps a method whose first argument is a function."""

    @functools.wraps(method)
    def take_job(self, function, *args, **kwargs):
        return method(self, Job(function), *args, **kwargs)

    return take_job


def after_import(name, mend):
    """Calls ``mend`` with a module, now or when the code imports it."""
    if name in sys.modules:
        mend(sys.modules[name])
    else:
        sys.meta_path.insert(0, ImportHook(name, mend))


class ImportHook:
    """Finds one module, once."""

    def __init__(self, name, mend):
        self._name = name
        self._mend = mend

    def find_spec(self, name, path=None, target=None):
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_mend(module):
                load(module)
                self._mend(module)

            spec.loader.exec_module = load_and_mend
        return spec
