"""Long answers end with the token that asked for them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from interpreter.tokens import TokenStore

_INTERVAL = 1.0  # seconds between two looks


async def while_valid(work: Coroutine[Any, Any, None], tokens: TokenStore, token_id: str) -> bool:
    """Do the work as long as the token is valid; whether it came to its end. Raises what the work raises."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(until_ended(tokens, token_id))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        elif not watching.cancelled():
            watching.result()
        return working.done()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.wait({working, watching})


async def until_ended(tokens: TokenStore, token_id: str) -> None:
    """Return when the token was revoked or has expired."""
    while True:
        if await tokens.has_ended(token_id):
            return
        await asyncio.sleep(_INTERVAL)
