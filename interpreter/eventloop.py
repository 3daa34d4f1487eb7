"""The event loop of our processes: libuv's, and how often Python looks for cycles meanwhile."""

import asyncio
import gc

import uvloop

GC_THRESHOLD = 5000
"""Objects made and not freed between two searches for cycles (Python's own: 700). One run makes some
thousands that reference counting frees; the searches in between took a tenth of a run's time."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop for `asyncio.Runner`; also sets the threshold of this process."""
    gc.set_threshold(GC_THRESHOLD)
    return uvloop.new_event_loop()


def make_default() -> None:
    """For programs that make their loop themselves: theirs are such loops from now on."""
    gc.set_threshold(GC_THRESHOLD)
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
