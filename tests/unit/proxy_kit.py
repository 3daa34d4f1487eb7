"""A proxy of a sandbox on a port of this host, as it runs beside a sandbox."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from interpreter.gateway_extension.sandbox.proxy import Policy, Proxy


@asynccontextmanager
async def running(policy: Policy) -> AsyncIterator[tuple[str, int]]:
    """The address of a proxy with this policy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(Proxy(policy).run(listener))
        try:
            yield listener.getsockname()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
