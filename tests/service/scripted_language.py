"""The tiny language that a scripted kernel runs, and the manners of a run.

One command a line (blank lines and ``#`` lines do nothing). TEXT that begins with a double quote is
read as a JSON string, so escapes can be written::

    print TEXT       stderr TEXT      write TEXT (no newline)   result TEXT    mime TYPE TEXT
    display ID TEXT  update ID TEXT   clear      clear wait     comm ID        page TEXT
    set NAME TEXT    get NAME         (a result, or NameError when unset: state that a restart loses)
    raise NAME MSG   iopub error, and the reply says error
    fail NAME MSG    the reply says error, without an iopub error
    wait GATE        until the test releases that gate (interruptible)
    sleep SECONDS    at most that long; an interrupt or ``release("sleep")`` ends it early
    flood N SIZE     N stdout messages of SIZE characters each
    lose N           N message ids are skipped, as when ZeroMQ drops messages
    late TEXT        printed after idle, with this run as the parent
    later TEXT       printed during the next run, with this run as the parent
    drop             every websocket is cut without a close frame; the kernel goes on
    die              the death that the manner names, DIES_MID_RUN for most
    exit             reply ok with the payload ``ask_exit``, then the kernel is gone

Everything else is a SyntaxError, except in silent requests, where it does nothing.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import ClassVar

from scripted_kernel import (
    DEATHS,
    DROPS,
    FLOOD_SIZE,
    GARBAGE_FRAMES,
    JSON,
    KernelDeathError,
    Manner,
    ScriptedKernel,
)


class ScriptError(Exception):
    """Ends a script: the ename, the evalue, and whether iopub hears of it."""

    def __init__(self, ename: str, evalue: str, *, on_iopub: bool = True) -> None:
        super().__init__(ename, evalue)
        self.ename, self.evalue, self.on_iopub = ename, evalue, on_iopub


class KernelInterruptError(Exception):
    """The interrupt came while the script waited."""


async def play(kernel: ScriptedKernel, request: JSON) -> None:
    """Answer one execute request in the kernel's manner. Raises KernelDeathError."""
    await Script(kernel, request).play()


class Script:
    """One execute request on its way."""

    def __init__(self, kernel: ScriptedKernel, request: JSON) -> None:
        content = request["content"]
        self.kernel, self.header = kernel, request["header"]
        self.code: str = content["code"]
        self.silent: bool = content.get("silent", False)
        self.stops_on_error: bool = content.get("stop_on_error", True)
        self.wanted: JSON = content.get("user_expressions") or {}
        self.payload: list[JSON] = []
        self.late: list[str] = []
        self.exits = False

    async def play(self) -> None:
        """The whole life of the run, busy to idle and after."""
        kernel, manner = self.kernel, self.kernel.manner
        kernel.interrupted.clear()
        await kernel.status("busy", self.header)
        if self._is_aborted():
            await kernel.status("idle", self.header)
            await self._send_reply({"status": "aborted"})
            return
        if not self.silent:
            kernel.execution_count += 1
            await self._say("execute_input", {"code": self.code, "execution_count": kernel.execution_count})
        await self._begin(manner)
        reply = await self._run()
        await self._complete(manner, reply)
        for text in self.late:
            if manner is Manner.IDLE_OVERTAKES:
                kernel.overtaken.append((self.header, text + "\n"))
            else:
                await self._stream("stdout", text + "\n")
        if self.exits:
            raise KernelDeathError(Manner.DIES_MID_RUN)

    def _is_aborted(self) -> bool:
        if self.kernel.aborting:
            self.kernel.aborting -= 1
            return True
        return self.kernel.manner is Manner.ABORTED and not self.silent

    async def _begin(self, manner: Manner) -> None:
        """What the manner does before the first line."""
        kernel = self.kernel
        for parent, text in kernel.later:
            await kernel.send("iopub", "stream", {"name": "stdout", "text": text + "\n"}, parent)
        kernel.later.clear()
        if manner is Manner.REPLY_FIRST:
            kernel.held = []
        elif manner is Manner.FORKED_IDLE:
            await kernel.status("idle", self.header)
        elif manner is Manner.GARBAGE:
            for frame in GARBAGE_FRAMES:
                if sent := [socket.deliver_raw(frame) for socket in kernel.sockets]:
                    await asyncio.wait(sent)
        elif manner is Manner.FOREIGN_PARENT:
            await self._send_foreign()

    async def _send_foreign(self) -> None:
        """A whole run of another client, and an idle that has no parent."""
        other = dict(self.header, msg_id="foreign", session="another-client")
        error = {"ename": "ForeignError", "evalue": "foreign", "traceback": ["foreign"]}
        await self.kernel.send("iopub", "status", {"execution_state": "busy"}, other)
        await self.kernel.send("iopub", "stream", {"name": "stdout", "text": "foreign\n"}, other)
        await self.kernel.send("iopub", "error", error, other)
        await self.kernel.send("shell", "execute_reply", error | {"status": "error"}, other)
        await self.kernel.send("iopub", "status", {"execution_state": "idle"}, other)
        await self.kernel.send("iopub", "status", {"execution_state": "idle"}, {})

    async def _run(self) -> JSON:
        """Run the lines; the content of the reply."""
        try:
            for line in self.code.splitlines():
                await self._run_line(line.strip())
            if not self.silent:
                await self._misbehave()
        except ScriptError as error:
            return await self._failed(error)
        except KernelInterruptError:
            if self.kernel.manner is Manner.SWALLOWS_INTERRUPT:
                return self._succeeded()
            nudged = self.kernel.manner is Manner.NEEDS_NUDGE
            return await self._failed(ScriptError("CancelledError" if nudged else "KeyboardInterrupt", ""))
        return self._succeeded()

    async def _misbehave(self) -> None:
        """What the manner does after the last line."""
        manner = self.kernel.manner
        if manner is Manner.FLOODS:
            while not self.kernel.interrupted.is_set():
                await self._stream("stdout", "f" * (FLOOD_SIZE - 1) + "\n")
                await asyncio.sleep(0)
            raise KernelInterruptError
        if manner is Manner.LATE_OUTPUT:
            self.late.append("late")
            self.kernel.later.append((self.header, "later"))
        elif manner in DROPS:
            self.kernel.cut_sockets()
        elif manner in DEATHS:
            raise KernelDeathError(manner)

    def _succeeded(self) -> JSON:
        values = {
            key: {
                "status": "ok",
                "data": {"text/plain": self.kernel.expressions.get(text, "None")},
                "metadata": {},
            }
            for key, text in self.wanted.items()
        }
        return {"status": "ok", "payload": self.payload, "user_expressions": values}

    async def _failed(self, error: ScriptError) -> JSON:
        content = {
            "ename": error.ename,
            "evalue": error.evalue,
            "traceback": [f"\x1b[31m{error.ename}\x1b[39m: {error.evalue}"],
        }
        if error.on_iopub:
            await self._say("error", content)
        if self.stops_on_error:
            self.kernel.abort_queued()
        return content | {"status": "error", "user_expressions": {}, "payload": []}

    async def _complete(self, manner: Manner, reply: JSON) -> None:
        """Reply and idle, in the manner's order."""
        kernel = self.kernel
        reply = reply | {"execution_count": kernel.execution_count}
        manner = Manner.GOOD if self.silent else manner
        if manner in {Manner.IDLE_FIRST, Manner.NEVER_REPLIES}:
            await kernel.status("idle", self.header)
        if manner is not Manner.NEVER_REPLIES:
            await self._send_reply(reply)
        held, kernel.held = kernel.held or [], None
        for message in held:
            await kernel.deliver(message)
        if manner not in {Manner.IDLE_FIRST, Manner.NEVER_REPLIES, Manner.NEVER_IDLE}:
            await kernel.status("idle", self.header)

    # Messages

    async def _say(self, msg_type: str, content: JSON, *, buffers: tuple[bytes, ...] = ()) -> None:
        await self.kernel.send("iopub", msg_type, content, self.header, buffers=buffers)

    async def _stream(self, name: str, text: str) -> None:
        await self._say("stream", {"name": name, "text": text})

    async def _send_reply(self, content: JSON) -> None:
        await self.kernel.send("shell", "execute_reply", content, self.header)

    async def _until(self, opened: asyncio.Event, seconds: float | None = None) -> None:
        """Wait for the event, at most so long. Raises KernelInterruptError when that comes first."""
        waits = [asyncio.ensure_future(event.wait()) for event in (opened, self.kernel.interrupted)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if self.kernel.interrupted.is_set():
            raise KernelInterruptError

    # The commands

    async def _run_line(self, line: str) -> None:
        verb, _, rest = line.partition(" ")
        if not line or line.startswith("#"):
            return
        if verb in self.COMMANDS:
            try:
                await self.COMMANDS[verb](self, rest)
            except ValueError as error:
                raise ScriptError("SyntaxError", f"{verb}: {error}") from error
        elif not self.silent:
            raise ScriptError("SyntaxError", f"the scripted kernel does not know {verb!r}")

    async def _print(self, rest: str) -> None:
        await self._stream("stdout", _text(rest) + "\n")

    async def _write(self, rest: str) -> None:
        await self._stream("stdout", _text(rest))

    async def _stderr(self, rest: str) -> None:
        await self._stream("stderr", _text(rest) + "\n")

    async def _result(self, rest: str) -> None:
        data = {"text/plain": _text(rest)}
        count = self.kernel.execution_count
        await self._say("execute_result", {"data": data, "metadata": {}, "execution_count": count})

    async def _mime(self, rest: str) -> None:
        kind, _, text = rest.partition(" ")
        await self._say("display_data", {"data": {kind: _text(text)}, "metadata": {}, "transient": {}})

    async def _display(self, rest: str, msg_type: str = "display_data") -> None:
        display_id, _, text = rest.partition(" ")
        transient = {"display_id": display_id}
        await self._say(
            msg_type, {"data": {"text/plain": _text(text)}, "metadata": {}, "transient": transient}
        )

    async def _update(self, rest: str) -> None:
        await self._display(rest, "update_display_data")

    async def _clear(self, rest: str) -> None:
        await self._say("clear_output", {"wait": rest == "wait"})

    async def _comm(self, rest: str) -> None:
        content = {"comm_id": rest, "target_name": "scripted", "data": {}}
        await self._say("comm_open", content, buffers=(b"\x00\x01buffer",))

    async def _page(self, rest: str) -> None:
        self.payload.append({"source": "page", "data": {"text/plain": _text(rest)}, "start": 0})

    async def _set(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        self.kernel.variables[name] = _text(text)

    async def _get(self, rest: str) -> None:
        if rest not in self.kernel.variables:
            raise ScriptError("NameError", f"name {rest!r} is not defined")
        await self._result(json.dumps(self.kernel.variables[rest]))

    async def _raise(self, rest: str) -> None:
        ename, _, text = rest.partition(" ")
        raise ScriptError(ename, _text(text))

    async def _fail(self, rest: str) -> None:
        ename, _, text = rest.partition(" ")
        raise ScriptError(ename, _text(text), on_iopub=False)

    async def _wait(self, rest: str) -> None:
        gate = self.kernel.gate(rest)
        gate.reached.set()
        await self._until(gate.opened)

    async def _sleep(self, rest: str) -> None:
        gate = self.kernel.gate("sleep")
        gate.reached.set()
        await self._until(gate.opened, float(rest))

    async def _flood(self, rest: str) -> None:
        count, size = (int(number) for number in rest.split())
        for _ in range(count):
            await self._stream("stdout", "f" * (size - 1) + "\n")

    async def _lose(self, rest: str) -> None:
        self.kernel.skip_ids(int(rest))

    async def _late(self, rest: str) -> None:
        self.late.append(_text(rest))

    async def _later(self, rest: str) -> None:
        self.kernel.later.append((self.header, _text(rest)))

    async def _drop(self, _rest: str) -> None:
        self.kernel.cut_sockets()

    async def _die(self, _rest: str) -> None:
        raise KernelDeathError(self.kernel.manner if self.kernel.manner in DEATHS else Manner.DIES_MID_RUN)

    async def _exit(self, _rest: str) -> None:
        self.payload.append({"source": "ask_exit", "keepkernel": False})
        self.exits = True

    COMMANDS: ClassVar[dict[str, Callable[["Script", str], Awaitable[None]]]] = {
        "print": _print,
        "write": _write,
        "stderr": _stderr,
        "result": _result,
        "mime": _mime,
        "display": _display,
        "update": _update,
        "clear": _clear,
        "comm": _comm,
        "page": _page,
        "set": _set,
        "get": _get,
        "raise": _raise,
        "fail": _fail,
        "wait": _wait,
        "sleep": _sleep,
        "flood": _flood,
        "lose": _lose,
        "late": _late,
        "later": _later,
        "drop": _drop,
        "die": _die,
        "exit": _exit,
    }


def _text(text: str) -> str:
    """The text itself, or what the JSON string says."""
    if not text.startswith('"'):
        return text
    value: str = json.loads(text)
    return value
