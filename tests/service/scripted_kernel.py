"""A kernel of the scripted gateway: its manner, its queue, its websockets and its death.

What its code means is in ``scripted_language``.
"""

import asyncio
import contextlib
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

JSON = dict[str, Any]


class Manner(StrEnum):
    """How a kernel behaves; each value is the name of a kernelspec that behaves so."""

    GOOD = "python3"
    IDLE_FIRST = "idle-first"
    REPLY_FIRST = "reply-first"  # the reply comes before the outputs
    FORKED_IDLE = "forked-idle"  # one more idle for the same parent before the outputs
    ABORTED = "aborted"
    NEVER_IDLE = "never-idle"
    NEVER_REPLIES = "never-replies"
    MUTE = "mute"  # takes every request and answers none, kernel_info included
    SLOW_START = "slow-start"  # POST waits for release("start")
    SLOW_WEBSOCKET = "slow-websocket"  # the upgrade waits for release("websocket")
    HANGS_ON_DELETE = "hangs-on-delete"  # DELETE waits for release("delete")
    DIES_MID_RUN = "dies-mid-run"  # parentless status dead, then 404
    DIES_AND_CLOSES = "dies-and-closes"  # the same, and the websocket is closed with 4404
    DIES_SILENTLY = "dies-silently"  # nothing at all, then 404
    RESTARTS_MID_RUN = "restarts-mid-run"  # parentless status restarting, state lost, 200
    IGNORES_INTERRUPT = "ignores-interrupt"
    SWALLOWS_INTERRUPT = "swallows-interrupt"  # stops, but the reply says ok
    NEEDS_NUDGE = "needs-nudge"  # as a top-level await: a shell request must follow the interrupt
    FLOODS = "floods"  # prints until interrupted
    IDLE_OVERTAKES = (
        "idle-overtakes"  # as Deno: late text is the end of the output; here the next request frees it
    )
    LATE_OUTPUT = "late-output"  # each run also says "late" after idle and "later" during the next run
    FOREIGN_PARENT = "foreign-parent"
    DROPS_SOCKET = "drops-socket"  # cut before the reply; the same session_id gets the rest replayed
    DROPS_AND_FORGETS = "drops-and-forgets"  # cut before the reply; nothing is replayed
    GARBAGE = "garbage"
    DEAF_AFTER_RESTART = "deaf-after-restart"  # iopub of the first two requests after a restart is lost


DEATHS = {
    Manner.DIES_MID_RUN,
    Manner.DIES_AND_CLOSES,
    Manner.DIES_SILENTLY,
    Manner.RESTARTS_MID_RUN,
}
DROPS = {Manner.DROPS_SOCKET, Manner.DROPS_AND_FORGETS}
FLOOD_SIZE = 1000  # characters of each message of Manner.FLOODS

GARBAGE_FRAMES: tuple[bytes | str, ...] = (
    "",
    "not json",
    "null",
    "[1, 2]",
    '"text"',
    "{}",
    '{"header": null, "content": {}}',
    '{"header": {"msg_type": 3}, "content": {}}',
    '{"header": {"msg_type": "stream"}, "parent_header": "x", "content": {"name": "stdout", "text": "no"}}',
    '{"header": {"msg_type": "stream"}, "content": ["no"]}',
    '{"header": {"msg_type": "status"}, "parent_header": {}, "content": {"execution_state": ["idle"]}}',
    "[" * 100_000,
    b"",
    b"\x00",
    b"\xff" * 64,
    (6).to_bytes(8, "little") + b"\x00" * 48,
    (6).to_bytes(8, "little") + b"\xff" * 48 + b"{}" * 9,
    b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
)


class Gate:
    """Something that a test holds and releases; it can also wait until somebody stands before it."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.reached = asyncio.Event()

    async def passed(self) -> None:
        """Return once the gate is open."""
        self.reached.set()
        await self.opened.wait()


class Socket(Protocol):
    """One attached websocket.

    ``deliver`` and ``deliver_raw`` queue the frame before they return; the future ends when it is sent.
    """

    session_id: str

    def deliver(self, message: JSON) -> "asyncio.Future[None]": ...
    def deliver_raw(self, frame: bytes | str) -> "asyncio.Future[None]": ...
    def cut(self) -> None: ...
    def close(self, code: int | None = None, reason: str | None = None) -> None: ...


class KernelDeathError(Exception):
    """The kernel process is gone, in the given way."""

    def __init__(self, how: Manner) -> None:
        super().__init__(how)
        self.how = how


Play = Callable[["ScriptedKernel", JSON], Awaitable[None]]


class ScriptedKernel:
    """One kernel: a queue of shell requests, one worker, any number of websockets."""

    def __init__(
        self, kernel_id: str, name: str, manner: Manner, gate: Callable[[str], Gate], play: Play
    ) -> None:
        self.id, self.name, self.manner = kernel_id, name, manner
        self.alive = True
        self.sockets: list[Socket] = []
        self.execution_state = "starting"
        self.expressions: dict[str, str] = {}  # values of user_expressions by their text
        self.gate = gate
        self._play = play
        self._backlog: list[JSON] = []
        self._backlog_owner: str | None = None
        self._begin()

    def _begin(self) -> None:
        """A fresh process: no state, no queue."""
        self.execution_count = 0
        self.variables: dict[str, str] = {}
        self.later: list[tuple[JSON, str]] = []  # parent and text of what is printed during the next run
        self.overtaken: list[tuple[JSON, str]] = []
        self.held: list[JSON] | None = None  # iopub messages that wait for the reply
        self.interrupted = asyncio.Event()
        self.aborting = 0  # how many requests to abort: those queued behind an error
        self._interrupt_pending = False
        self._deaf = 0
        self._session = uuid.uuid4().hex
        self._sent = 0
        self._queued_runs = 0
        self._queue: asyncio.Queue[tuple[str, JSON]] = asyncio.Queue()
        self._worker = asyncio.create_task(self._work())

    def attach(self, socket: Socket) -> None:
        """Add a websocket; what was kept for its session_id is replayed to it."""
        replayed = socket.session_id == self._backlog_owner and self.manner is not Manner.DROPS_AND_FORGETS
        backlog = self._backlog if replayed else []
        self._backlog, self._backlog_owner = [], None
        self.sockets.append(socket)
        for message in backlog:
            socket.deliver(message)

    def detach(self, socket: Socket) -> None:
        """Forget a websocket; when it was the last, messages are kept for its session_id."""
        if socket in self.sockets:
            self.sockets.remove(socket)
            if not self.sockets:
                self._backlog_owner = socket.session_id

    def receive(self, channel: str, request: JSON) -> None:
        """Queue a client's request; a shell request also wakes a kernel whose interrupt is pending."""
        if channel == "shell" and self._interrupt_pending:
            self._interrupt_pending = False
            self.interrupted.set()
        self._queued_runs += request["header"].get("msg_type") == "execute_request"
        self._queue.put_nowait((channel, request))

    async def answer_control(self, request: JSON) -> None:
        """Answer kernel_info on control, which works even while the shell is busy."""
        if self.alive and self.manner is not Manner.MUTE:
            await self._answer_info("control", request["header"])

    def skip_ids(self, count: int) -> None:
        """Leave a gap in the message ids, as when ZeroMQ drops messages."""
        self._sent += count

    def abort_queued(self) -> None:
        """An error aborts the execute requests that wait behind it."""
        self.aborting = self._queued_runs

    def interrupt(self) -> None:
        """What SIGINT does; to an idle kernel, nothing."""
        if self.manner is Manner.NEEDS_NUDGE:
            self._interrupt_pending = True
        elif self.manner is not Manner.IGNORES_INTERRUPT:
            self.interrupted.set()

    async def restart(self) -> None:
        """A new process under the same id; the current run gets neither reply nor idle."""
        await self._end_worker()
        self._begin()
        if self.manner is Manner.DEAF_AFTER_RESTART:
            self._deaf = 2
        await self.status("starting", {})

    async def die(self, how: Manner = Manner.DIES_MID_RUN) -> None:
        """Kill the process from outside, in one of the ways of DEATHS."""
        await self._end_worker()
        await self._fall(how)

    async def aclose(self) -> None:
        """End the worker; the websockets stay as they are."""
        self.alive = False
        await self._end_worker()

    async def send(
        self,
        channel: str,
        msg_type: str,
        content: Mapping[str, Any],
        parent: JSON,
        *,
        buffers: tuple[bytes, ...] = (),
    ) -> None:
        """Send one message with any parent header, an empty one included."""
        self._sent += 1
        header = {
            "msg_id": f"{self._session}_{os.getpid()}_{self._sent}",
            "msg_type": msg_type,
            "username": "kernel",
            "session": self._session,
            "date": datetime.now(UTC).isoformat(),
            "version": "5.4",
        }
        message = {
            "channel": channel,
            "header": header,
            "parent_header": parent,
            "metadata": {},
            "content": dict(content),
            "buffers": list(buffers),
        }
        if self.held is not None and channel == "iopub":
            self.held.append(message)
        else:
            await self.deliver(message)

    async def status(self, state: str, parent: JSON) -> None:
        """Take a state and tell it on iopub."""
        self.execution_state = state
        await self.send("iopub", "status", {"execution_state": state}, parent)

    def cut_sockets(self) -> None:
        """Cut every websocket without a close frame, as a broken network does."""
        for socket in list(self.sockets):
            self.detach(socket)
            socket.cut()

    async def deliver(self, message: JSON) -> None:
        """Hand one finished message to every websocket, or keep it for the one that was cut."""
        if self._deaf and message["channel"] == "iopub" and message["parent_header"]:
            return
        if not self.sockets and self._backlog_owner is not None:
            self._backlog.append(message)
        if sent := [socket.deliver(message) for socket in self.sockets]:
            await asyncio.wait(sent)

    async def _end_worker(self) -> None:
        self._worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._worker

    async def _work(self) -> None:
        while self.alive:
            channel, request = await self._queue.get()
            try:
                await self._answer(channel, request)
            except KernelDeathError as death:
                await self._fall(death.how)
                return
            self._deaf = max(0, self._deaf - 1)

    async def _fall(self, how: Manner) -> None:
        if how is Manner.RESTARTS_MID_RUN:
            await self.send("iopub", "status", {"execution_state": "restarting"}, {})
            self._begin()
            await self.status("starting", {})
            return
        self.alive = False
        self.execution_state = "dead"
        if how is not Manner.DIES_SILENTLY:
            await self.send("iopub", "status", {"execution_state": "dead"}, {})
        if how is Manner.DIES_AND_CLOSES:
            for socket in list(self.sockets):
                socket.close(4404, "kernel died")

    async def _answer(self, channel: str, request: JSON) -> None:
        header, kind = request["header"], request["header"].get("msg_type")
        self._queued_runs -= kind == "execute_request"
        if self.manner is Manner.MUTE:
            return
        overtaken, self.overtaken = self.overtaken, []
        for parent, text in overtaken:
            await self.send("iopub", "stream", {"name": "stdout", "text": text}, parent)
        if kind == "execute_request":
            await self._play(self, request)
        elif kind == "kernel_info_request":
            await self._answer_info(channel, header)

    async def _answer_info(self, channel: str, header: JSON) -> None:
        language = {"name": "python", "version": "3", "mimetype": "text/x-python", "file_extension": ".py"}
        name = "Deno kernel" if self.manner is Manner.IDLE_OVERTAKES else "scripted"
        info = {"status": "ok", "protocol_version": "5.4", "implementation": name, "banner": ""}
        await self.send("iopub", "status", {"execution_state": "busy"}, header)
        await self.send(channel, "kernel_info_reply", info | {"language_info": language}, header)
        await self.send("iopub", "status", {"execution_state": "idle"}, header)
        if self.execution_state == "starting":
            self.execution_state = "idle"
