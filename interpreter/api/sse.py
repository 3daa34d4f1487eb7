"""Server-sent events (WHATWG HTML, "Server-sent events"): one run's events to one client."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

from interpreter.api.streaming import send_part
from interpreter.api.unread import CountedAnswers
from interpreter.jsontext import dump, has_few_values

if TYPE_CHECKING:
    from interpreter.runs import RunEvent

EVENT_STREAM = "text/event-stream"
KEEPALIVE = b": keep-alive\n\n"


def encode_event(event: "RunEvent") -> bytes:
    """The bytes of one event. ASCII only: some clients end lines at U+2028 and its like."""
    data = dump(event.data, ensure_ascii=True, separators=(",", ":"))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), data)


async def send_events(
    handler: CountedAnswers, events: "AsyncIterator[RunEvent]", keepalive_interval: float
) -> None:
    """Send all events, and a comment after each ``keepalive_interval`` seconds, output or not.

    Waits for the client to take each, and ends with StreamClosedError when it is gone.
    """
    handler.set_header("Content-Type", EVENT_STREAM)
    handler.set_header("X-Accel-Buffering", "no")
    handler.write(b": stream\n\n")
    await handler.flush()
    now = asyncio.get_running_loop().time
    comment_at = now() + keepalive_interval
    following = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait({following}, timeout=max(0.0, comment_at - now()))
            if now() >= comment_at:
                handler.write(KEEPALIVE)
                comment_at = now() + keepalive_interval
            if done:
                if (event := following.result()) is None:
                    return
                following = asyncio.ensure_future(anext(events, None))
                await send_part(handler, partial(_encode, event))
            await handler.flush()
    finally:
        following.cancel()
        await asyncio.wait({following})


async def _encode(event: "RunEvent") -> bytes:
    few = has_few_values(event.data)
    return encode_event(event) if few else await asyncio.to_thread(encode_event, event)


def wants_events(accept: str) -> bool:
    """Whether an Accept header asks for events and would not take JSON."""
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return EVENT_STREAM in kinds and "application/json" not in kinds
