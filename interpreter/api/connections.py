"""The connection that a request came over."""

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPConnection, HTTPServerRequest


def connection_of(request: HTTPServerRequest) -> HTTP1Connection:
    """The connection of a request that a server has taken."""
    return http1(request.connection)


def http1(connection: HTTPConnection | None) -> HTTP1Connection:
    """Every connection of Tornado's server is of this class; its types promise only what any could do."""
    assert isinstance(connection, HTTP1Connection)
    return connection
