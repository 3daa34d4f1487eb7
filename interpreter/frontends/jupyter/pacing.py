"""What is large goes out to the clients of a token one at a time, so that others have the loop in between."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from interpreter.frontends.jupyter.wire import Outgoing

LARGE = 64 * 1024  # characters
PEACE = 4  # nothing large is sent for so many times as long as the last took …
MAX_PEACE = 0.25  # … at most so many seconds


class Turns:
    """Of the clients of each token, as each of them costs the time to write the message anew."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def turn(self, token_id: str, message: Outgoing) -> AsyncIterator[None]:
        """Wait for the token's turn to send the message; at once when it is small."""
        if not _is_large(message):
            yield
            return
        async with self._locks[token_id]:
            start = time.thread_time()
            yield
            await asyncio.sleep(min(MAX_PEACE, PEACE * (time.thread_time() - start)))


def _is_large(message: Outgoing) -> bool:
    """By a look only: a display that is no text counts as large, as to measure it costs as much."""
    content = message.content
    values = [*content.values(), *content.get("data", {}).values(), *content.get("traceback", ())]
    if any(isinstance(value, dict | list) for value in content.get("data", {}).values()):
        return True
    return sum(len(value) for value in values if isinstance(value, str)) > LARGE
