"""HTTP requests whose caller may be cancelled."""

import asyncio

from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse


async def fetch(client: AsyncHTTPClient, request: HTTPRequest, *, raise_error: bool = True) -> HTTPResponse:
    """As the client's own. When the caller is cancelled, what the request still comes to is nobody's matter.

    Tornado would log a failure that comes after that as an error.
    """
    fetching = asyncio.ensure_future(client.fetch(request, raise_error=raise_error))
    try:
        return await asyncio.shield(fetching)
    except asyncio.CancelledError:
        fetching.add_done_callback(_look_at)
        raise


def _look_at(done: "asyncio.Future[HTTPResponse]") -> None:
    if not done.cancelled():
        done.exception()
