"""What gives room on the disk back, in threads of its own: to free a file of many pieces can take many seconds.

Neither the event loop nor anybody who does something else waits for it, be it the same with another session. The
gateway does so with all that ends a kernel.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, Self, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_freeing = ThreadPoolExecutor(4, thread_name_prefix="freeing")  # what nobody waits for


async def remove(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The result of a function that removes a whole folder. It goes on when the caller is cancelled."""
    return await apart(function, *args, **kwargs)


async def free(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The result of a function that removes or replaces one file. It goes on when the caller is cancelled."""
    return await apart(function, *args, **kwargs)


async def apart(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The result of a function that may take as long as a session likes, in a thread for this call only.

    It goes on when the caller is cancelled.
    """
    result: Future[_T] = Future()
    work = partial(function, *args, **kwargs)
    threading.Thread(target=_set_result, args=(result, work), name="apart").start()
    return await asyncio.shield(asyncio.wrap_future(result))


def free_soon(function: Callable[[], object]) -> None:
    """Call a function that never fails, such as the closing of what may be the last reference to a file."""
    _freeing.submit(function)


class Rooms:
    """For large work of one kind, which would keep all others from the processor: so much of it goes on at once."""

    def __init__(self, count: int) -> None:
        self._free = threading.BoundedSemaphore(count)

    def work(self) -> "Work":
        """A piece of work, as a context; it needs a room from when it turns out to be large."""
        return Work(self._free)


class Work:
    """Made by `Rooms.work`, for one thread."""

    def __init__(self, rooms: threading.BoundedSemaphore) -> None:
        self._rooms = rooms
        self._has_room = False

    def is_large(self) -> None:
        """Wait for a room, unless it has one."""
        if not self._has_room:
            self._rooms.acquire()
            self._has_room = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_room:
            self._rooms.release()


def _set_result(result: "Future[_T]", work: Callable[[], _T]) -> None:
    if not result.set_running_or_notify_cancel():
        return
    try:
        done = work()
    except BaseException as error:  # noqa: BLE001  (whoever waits for the result gets it)
        result.set_exception(error)
    else:
        result.set_result(done)
