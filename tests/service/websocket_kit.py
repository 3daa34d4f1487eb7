"""A server that is nothing but the websocket of kernels, and says what a test wants."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application
from tornado.websocket import WebSocketHandler

from interpreter.kernels.gateway import Gateway
from interpreter.kernels.target import GatewayTarget


@asynccontextmanager
async def serving(handler: type[WebSocketHandler]) -> AsyncIterator[Gateway]:
    """The gateway whose kernels' websockets are the handler's, which gets the kernel's name."""
    [listening] = bind_sockets(0, "127.0.0.1")
    server = HTTPServer(Application([(r"/api/kernels/(\w+)/channels", handler)]))
    server.add_socket(listening)
    gateway = Gateway(GatewayTarget(f"http://127.0.0.1:{listening.getsockname()[1]}"))
    try:
        yield gateway
    finally:
        gateway.close()
        server.stop()
        await server.close_all_connections()
