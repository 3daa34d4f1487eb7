"""What gives room on the disk back, in threads of its own: to free a file of many pieces can take many seconds.

Neither the event loop nor those who list and read files wait for it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_removing = ThreadPoolExecutor(2, thread_name_prefix="removing")  # all that a session leaves
_freeing = ThreadPoolExecutor(4, thread_name_prefix="freeing")  # single files, which somebody may wait for


async def remove(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The result of a function that removes a whole folder. It goes on when the caller is cancelled."""
    return await _run(_removing, partial(function, *args, **kwargs))


async def free(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The result of a function that removes or replaces one file. It goes on when the caller is cancelled."""
    return await _run(_freeing, partial(function, *args, **kwargs))


def free_soon(function: Callable[[], None]) -> None:
    """Call a function that never fails, such as the closing of what may be the last reference to a file."""
    _freeing.submit(function)


async def _run(pool: ThreadPoolExecutor, function: Callable[[], _T]) -> _T:
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(pool, function))
