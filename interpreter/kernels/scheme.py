"""Whether a gateway that can't be asked would answer to the other scheme: `http` or `https`."""

import asyncio
import contextlib
import ssl
from urllib.parse import urlsplit

from interpreter.errors import GatewayError
from interpreter.kernels.target import GatewayTarget

_MAY_BE_SCHEME = frozenset({"gateway_timeout", "gateway_tls", "gateway_unreachable", "gateway_failed"})
_PORTS = {"http": 80, "https": 443}


async def other_scheme(target: GatewayTarget, error: GatewayError) -> GatewayError | None:
    """The error that names the scheme, when that is what is wrong; None when it is not.

    A server that is spoken to in the wrong way waits, hangs up, or answers 400, so it is asked in the
    other one. Takes at most ``connect_timeout`` of the target; sends no credentials.
    """
    if error.code not in _MAY_BE_SCHEME:
        return None
    split = urlsplit(target.url)
    port = split.port or _PORTS[split.scheme]
    speaks = _speaks_plainly if split.scheme == "https" else _speaks_tls
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(target.connect_timeout):
            if await speaks(target.host, port):
                right = "http" if split.scheme == "https" else "https"
                return GatewayError(
                    f"The server at {target.url} speaks {right}, not {split.scheme}: "
                    f"let gateway_url begin with {right}://.",
                    code="gateway_scheme",
                )
    return None


async def _speaks_plainly(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return await reader.read(5) == b"HTTP/"
    finally:
        writer.transport.abort()


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False  # whether it can be trusted is asked when the scheme is right
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.transport.abort()
    return True
