"""A kernel gateway with named bad manners: a real Tornado server on a real socket, no real kernels.

It speaks the REST and websocket protocol of Jupyter Kernel Gateway and, with ``auth="password"``,
the login form of Jupyter Server. What code does is in ``scripted_language``; how a kernel behaves is
its kernelspec's name (``Manner``), and can be changed at any time (``gateway.kernel.manner = ...``)::

    async with ScriptedGateway() as gateway:
        gateway.manner = Manner.NEVER_IDLE         # of the kernels that "python3" starts from now on
        gateway.answer("delete", HTTP_500, times=1)  # the next DELETE is answered so, and does nothing
        gateway.hold("interrupt")                  # interrupts wait ...
        await gateway.reached("interrupt")         # ... until the test saw one
        gateway.release("interrupt")

Operations: api, kernelspecs, list, start, get, delete, interrupt, restart, websocket, login, and ``*``.
"""

import asyncio
import socket
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

from scripted_answers import (
    CUT,
    HTTP_401,
    HTTP_403,
    HTTP_404,
    HTTP_500,
    MAX_KERNELS,
    NO_SUCH_KERNELSPEC,
    NOT_JSON,
    NOT_JUPYTER,
    TRACEBACK_MARK,
    WRONG_SHAPE,
    Answer,
    SeenMessage,
    SeenRequest,
)
from scripted_handlers import ChannelsHandler, routes
from scripted_kernel import Gate, Manner, ScriptedKernel
from scripted_language import play
from tornado.httpserver import HTTPServer
from tornado.web import Application

__all__ = [
    "CUT",
    "HTTP_401",
    "HTTP_403",
    "HTTP_404",
    "HTTP_500",
    "MAX_KERNELS",
    "NOT_JSON",
    "NOT_JUPYTER",
    "NO_SUCH_KERNELSPEC",
    "TRACEBACK_MARK",
    "WRONG_SHAPE",
    "Answer",
    "Manner",
    "ScriptedGateway",
    "ScriptedKernel",
    "SeenMessage",
    "SeenRequest",
]

MAX_REQUEST_BYTES = 10 * 1024 * 1024  # of one client message, as Tornado's default in the real gateway
HELD_BY_MANNER = {
    Manner.SLOW_START: "start",
    Manner.SLOW_WEBSOCKET: "websocket",
    Manner.HANGS_ON_DELETE: "delete",
}


class ScriptedGateway:
    """The server. ``url`` ends without a slash; ``token`` is empty unless ``auth="token"``."""

    def __init__(
        self,
        *,
        auth: Literal["none", "token", "password"] = "token",
        v1: bool = True,
        manner: Manner = Manner.GOOD,
        max_kernels: int | None = None,
        list_kernels: bool = True,
        closes_on_delete: bool = False,
        base_url: str = "",
    ) -> None:
        self.auth, self.v1, self.manner = auth, v1, manner
        self.max_kernels, self.list_kernels, self.closes_on_delete = (
            max_kernels,
            list_kernels,
            closes_on_delete,
        )
        self.token = uuid.uuid4().hex if auth == "token" else ""
        self.password = uuid.uuid4().hex if auth == "password" else ""
        self.base_url = base_url.rstrip("/")
        self.kernels: dict[str, ScriptedKernel] = {}
        self.requests: list[SeenRequest] = []
        self.messages: list[SeenMessage] = []
        self.sockets: set[ChannelsHandler] = set()
        self.closing = False
        self.port = 0
        self._gates: dict[str, Gate] = {}
        self._held: set[str] = set()
        self._answers: dict[str, tuple[Answer, int | None]] = {}
        self._changed = asyncio.Event()
        self._waiting = 0
        self._server: HTTPServer | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"http://127.0.0.1:{self.port}{self.base_url}"

    @property
    def kernel(self) -> ScriptedKernel:
        """The kernel that was started last."""
        return list(self.kernels.values())[-1]

    @property
    def codes(self) -> list[str]:
        """The code of every execute request that was not silent, in the order of arrival."""
        return [
            seen.text
            for seen in self.messages
            if seen.msg_type == "execute_request" and not seen.message["content"].get("silent")
        ]

    def count(self, op: str) -> int:
        """How many requests of this operation came."""
        return sum(seen.op == op for seen in self.requests)

    async def start(self) -> None:
        """Listen; after ``stop`` on the same port, without the kernels of before."""
        self.closing = False
        application = Application(
            routes(self),
            cookie_secret=uuid.uuid4().hex,
            log_function=lambda _handler: None,
            websocket_max_message_size=MAX_REQUEST_BYTES,
        )
        listener = socket.create_server(("127.0.0.1", self.port))
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self._server = HTTPServer(application)
        self._server.add_socket(listener)

    async def stop(self) -> None:
        """End as a killed process does: kernels gone, connections cut, port free."""
        if self._server is None:
            return
        self.closing = True
        self._server.stop()
        for gate in self._gates.values():
            gate.opened.set()
        for kernel in list(self.kernels.values()):
            await kernel.aclose()
        for handler in list(self.sockets):
            handler.cut()
        await self.until(lambda: not self._waiting and not self.sockets)
        await self._server.close_all_connections()
        self._server = None
        self.kernels.clear()
        self._gates.clear()
        self._held.clear()

    def add_kernel(self, name: str) -> ScriptedKernel:
        """Start a kernel as POST /api/kernels does; its manner is its name, or ``self.manner``."""
        manner = self.find_manner(name) or Manner.GOOD
        kernel = ScriptedKernel(str(uuid.uuid4()), name, manner, self.gate, play)
        self.kernels[kernel.id] = kernel
        return kernel

    def find_manner(self, name: str) -> Manner | None:
        """The manner of a new kernel of this kernelspec, None for an unknown one."""
        if name not in list(Manner):
            return None
        return self.manner if name == Manner.GOOD else Manner(name)

    def answer(self, op: str, answer: Answer, *, times: int | None = None) -> None:
        """Answer the operation so, for the next ``times`` requests, or until ``heal``."""
        self._answers[op] = (answer, times)

    def heal(self, op: str) -> None:
        """Tell the truth again."""
        self._answers.pop(op, None)

    def take_answer(self, op: str) -> Answer | None:
        """The canned answer for this request, if there is one; it counts as given."""
        key = op if op in self._answers else "*"
        if key not in self._answers:
            return None
        answer, times = self._answers[key]
        if times is not None:
            self._answers[key] = (answer, times - 1)
            if times <= 1:
                del self._answers[key]
        return answer

    def gate(self, name: str) -> Gate:
        """The gate of that name; a new one is closed."""
        return self._gates.setdefault(name, Gate())

    def hold(self, op: str) -> None:
        """From now on requests of this operation wait."""
        self._gates[op] = Gate()
        self._held.add(op)

    def release(self, name: str) -> None:
        """Open a gate, for those who wait and for all who come."""
        self._held.discard(name)
        self.gate(name).opened.set()

    async def reached(self, name: str) -> None:
        """Return once somebody has come to that gate."""
        await self.gate(name).reached.wait()

    async def pass_gate(self, op: str, manner: Manner | None) -> None:
        """Let a request of this operation through, when it may."""
        if op not in self._held and (manner is None or HELD_BY_MANNER.get(manner) != op):
            return
        self._waiting += 1
        try:
            await self.gate(op).passed()
        finally:
            self._waiting -= 1
            self.changed()

    def changed(self) -> None:
        """Something happened that a test may wait for."""
        self._changed.set()

    async def until(self, claim: Callable[[], bool]) -> None:
        """Return once the claim about requests, messages, kernels or sockets holds."""
        while not claim():
            self._changed.clear()
            await self._changed.wait()
