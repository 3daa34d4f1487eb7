"""The threads in which files are touched, and whether the disk of the record takes what is written."""

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from interpreter.quickness import Quickness
from interpreter.record.layout import write_at

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

_WRITERS = 4
_READERS = 2  # of their own, so that a long search never holds up a run
_QUICK_SYNC = 0.0005  # seconds; a thread costs about as much
_PROBE_INTERVAL = 1.0
_PROBE_BYTES = 64 * 1024


class Disk:
    """Runs blocking functions in threads and remembers why writing fails.

    While it fails, a probe tries again each second; ``on_writable`` is awaited when one works.
    """

    def __init__(self, folder: Path, on_writable: Callable[[], Awaitable[None]]) -> None:
        self._folder = folder
        self._on_writable = on_writable
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="record-write")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="record-read")
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._quick = Quickness()
        self._syncs_quickly = Quickness(_QUICK_SYNC)
        self.problem: str | None = None
        """One sentence on why the record can't be written; None when it can, as far as is known."""

    async def read(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of a function that may take long."""
        return await self._wait(self._readers.submit(function, *args, **kwargs))

    async def touch(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of a short function; its failure says nothing about the disk."""
        return await self._wait(self._writers.submit(function, *args, **kwargs))

    @staticmethod
    async def _wait(future: Future[_T]) -> _T:
        """The result. A caller that is cancelled waits until the function has ended, then goes."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(_wake, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            ended = asyncio.wrap_future(future)
            while not ended.done():
                try:
                    await asyncio.wait({ended})
                except asyncio.CancelledError:
                    continue  # the cancellation is raised below, once the files are at rest
            if (error := ended.exception()) is not None:
                _log.warning("an operation of a cancelled caller failed: %s", type(error).__name__)
            raise
        return future.result()

    async def write(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of a function that writes: OSError, which is raised on, makes a `problem`."""
        try:
            result = await self.touch(function, *args, **kwargs)
        except OSError as error:
            self.failed(error)
            raise
        if self.problem is not None:
            _log.info("the record can be written again")
            self.problem = None
        return result

    @property
    def is_quick(self) -> bool:
        """Whether a small write may be made on the event loop (`write_now`): a thread costs more than the write."""
        return self.problem is None and bool(self._quick)

    @property
    def syncs_quickly(self) -> bool:
        """The same for a write that is also synced."""
        return self.is_quick and bool(self._syncs_quickly)

    def write_now(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """As `write`, without a thread; if it takes long, the disk does not count as quick for a while."""
        return self._timed(self._quick, partial(function, *args, **kwargs))

    def sync_now(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The same for a function that also syncs."""
        return self._timed(self._syncs_quickly, partial(function, *args, **kwargs))

    def _timed(self, quick: Quickness, function: Callable[[], _T]) -> _T:
        try:
            with quick:
                return function()
        except OSError as error:
            self.failed(error)
            raise

    def write_soon(self, function: Callable[[], None]) -> None:
        """Call a function that writes, without waiting for it: OSError only makes a `problem`."""
        loop = asyncio.get_running_loop()

        def ended(future: Future[None]) -> None:
            if isinstance(error := future.exception(), OSError):
                loop.call_soon_threadsafe(self.failed, error)

        self._writers.submit(function).add_done_callback(ended)

    def failed(self, error: OSError) -> None:
        """Note that a write failed, and try again soon."""
        sentence = explain(error)
        if sentence != self.problem:
            _log.error("the record can't be written: %s", sentence)
        self.problem = sentence
        if self._timer is None and not self._closing:
            self._timer = asyncio.get_running_loop().call_later(_PROBE_INTERVAL, self._begin_probe)

    def _begin_probe(self) -> None:
        self._timer = None
        if self.problem is not None and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._probe_quietly())

    async def _probe_quietly(self) -> None:
        await self.probe()

    async def probe(self) -> str | None:
        """Try to write; returns what `problem` is then."""
        try:
            await self.write(_probe, self._folder)
        except OSError:
            return self.problem
        await self._on_writable()
        return self.problem

    async def stop(self) -> None:
        """No more probes."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await asyncio.wait({self._task})

    def close(self) -> None:
        """End the threads; they have nothing to do by now."""
        self._writers.shutdown()
        self._readers.shutdown()


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


def _probe(folder: Path) -> None:
    path = folder / ".probe"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_at(descriptor, bytes(_PROBE_BYTES), 0)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def explain(error: OSError) -> str:
    """One sentence, without paths, on what to do about a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "The disk of the record is full: free space, or set record_dir to a folder on another disk."
    if error.errno == errno.EROFS:
        return "The disk of the record is read-only: make it writable, or set record_dir to another folder."
    if error.errno in (errno.EACCES, errno.EPERM):
        return "The record may not be written: let the service's user write to record_dir and state_dir."
    if error.errno == errno.ENOENT:
        return "Files of the record vanished from record_dir or state_dir: put them back."
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "The service has too many files open: raise its limit of open files."
    return f"The record can't be written ({error.strerror}): check the disk of record_dir."
