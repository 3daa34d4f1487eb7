"""Open Terminal's commands: each is a run of a shell script in the chat's session, and goes on in the background."""

import asyncio
import shlex
from collections.abc import Mapping
from typing import Any, ClassVar

from interpreter.errors import InvalidRequestError, NotFoundError
from interpreter.events import COMPLETED
from interpreter.frontends.dialect import text_of
from interpreter.frontends.languages import cell_of, exit_status
from interpreter.frontends.open_terminal.base import TerminalHandler, operation
from interpreter.frontends.texts import printed_text, without_last_word
from interpreter.models import JSON, Run, RunRequest, RunStatus, parse_run_id

_DEFAULT_WAIT = 30.0  # seconds
_MAX_WAIT = 300.0  # seconds
_AT_ONCE = 0.05  # seconds that are enough to get the events which are there
_MAX_PROCESSES = 50  # runs that are looked at for commands
_HEAD = cell_of("bash", ":", ()).partition("\n")[0]
_KILLED = frozenset({RunStatus.CANCELLED, RunStatus.INTERRUPTED})


class ProcessHandler(TerminalHandler):
    """What the routes of commands share."""

    async def run_of(self, process_id: str) -> Run:
        """The run of a command of this chat. Raises NotFoundError."""
        session = self.chats.find(self.principal, self.chat[1])
        known = parse_run_id(process_id)
        if session is None or known is None or known[0] != session.info.id:
            raise NotFoundError("There is no such command.", param="process_id")
        return await self.services.runs.get(self.principal, process_id)

    def number(self, name: str, default: float, most: float) -> float:
        """A number of the query. Raises InvalidRequestError."""
        try:
            value = float(self.query(name, str(default)))
        except ValueError:
            value = -1
        if not 0 <= value <= most:
            raise InvalidRequestError(f"`{name}` must be a number from 0 to {most:g}.", param=name)
        return value

    async def answer_process(self, run: Run, wait: float, offset: int = 0) -> None:
        """Answer with what a command has printed after the event ``offset``, and how it stands."""
        output, seen = await self._collect(run.id, wait, offset)
        run = await self.services.runs.get(self.principal, run.id)
        output = _without_last_word(output, run)
        tail = int(self.number("tail", 0, 10_000))
        self.reply(
            {
                **describe(run),
                "output": output[-tail:] if tail else output,
                "truncated": run.folded.truncated or 0 < tail < len(output),
                "next_offset": seen,
            }
        )

    async def _collect(self, run_id: str, wait: float, offset: int) -> tuple[list[JSON], int]:
        events = await self.services.runs.events(self.principal, run_id, offset)
        output: list[JSON] = []
        seen = offset
        following = asyncio.ensure_future(anext(events, None))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        try:
            while True:
                left = max(_AT_ONCE, deadline - loop.time())
                done, _ = await asyncio.wait({following}, timeout=left)
                if not done or (event := following.result()) is None:
                    return output, seen
                seen = event.id
                output += _pieces(event.kind, event.data)
                following = asyncio.ensure_future(anext(events, None))
        finally:
            following.cancel()
            await asyncio.wait({following})


class ProcessesHandler(ProcessHandler):
    """``/open-terminal/execute``"""

    operations: ClassVar = {
        "GET": operation("list_processes", "List commands"),
        "POST": operation("run_command", "Run a command"),
    }

    async def do_get(self) -> None:
        session = self.chats.find(self.principal, self.chat[1])
        ids = await self.services.runs.list_ids(self.principal, session.info.id) if session else []
        runs = [await self.services.runs.get(self.principal, run_id) for run_id in ids[-_MAX_PROCESSES:]]
        self.reply([describe(run) for run in runs if run.code.startswith(_HEAD)])

    async def do_post(self) -> None:
        body = self.body_object()
        folder = self.place(text_of(body, "cwd", "."))
        script = _script(text_of(body, "command"), folder, body.get("env"))
        wait = self.number("wait", _DEFAULT_WAIT, _MAX_WAIT)
        code = self.request_of(cell_of("bash", script, ())).code
        request = RunRequest(code, timeout=self.settings_.max_execute_timeout, background=True)
        active = await self.services.runs.submit(self.principal, await self.session(), request)
        await self.answer_process(active.run, wait)


class StatusHandler(ProcessHandler):
    """``/open-terminal/execute/{process_id}/status``"""

    operations: ClassVar = {"GET": operation("get_process_status", "Look at a command")}

    async def do_get(self, process_id: str) -> None:
        run = await self.run_of(process_id)
        offset = int(self.number("offset", 0, 1e9))
        await self.answer_process(run, self.number("wait", 0, _MAX_WAIT), offset)


class InputHandler(ProcessHandler):
    """``/open-terminal/execute/{process_id}/input``"""

    operations: ClassVar = {"POST": operation("send_process_input", "Refuse input to a command")}

    async def do_post(self, process_id: str) -> None:
        await self.run_of(process_id)
        raise InvalidRequestError("Commands have no stdin here; put the input into the command.")


class KillHandler(ProcessHandler):
    """``/open-terminal/execute/{process_id}``"""

    operations: ClassVar = {"DELETE": operation("kill_process", "End a command")}

    async def do_delete(self, process_id: str) -> None:
        run = await self.run_of(process_id)
        await self.services.runs.cancel(self.principal, run.id, reason="It was ended on request.")
        self.reply({"status": "killed"})


def describe(run: Run) -> JSON:
    """A command without its output."""
    _, _, command = run.code.partition("\n")
    status, code = "done", 0
    if not run.status.is_final:
        return {"id": run.id, "command": command, "status": "running", "exit_code": None, "log_path": None}
    if run.status is not RunStatus.OK:
        failed = exit_status("bash", run)
        code = failed[0] if failed else 1
        status = "killed" if run.status in _KILLED else "done"
    return {"id": run.id, "command": command, "status": status, "exit_code": code, "log_path": None}


def _script(command: str, folder: str, env: Any) -> str:
    if not isinstance(env, Mapping | None) or not all(
        isinstance(value, str) for value in (env or {}).values()
    ):
        raise InvalidRequestError("`env` must be an object of texts.", param="env")
    lines = [f"cd -- {shlex.quote(folder)} || exit"] if folder else []
    for name, value in (env or {}).items():
        if not (name.isascii() and name.isidentifier()):
            raise InvalidRequestError("A name in `env` is none of a variable.", param="env")
        lines.append(f"export {name}={shlex.quote(value)}")
    return "\n".join((*lines, command))


def _without_last_word(output: list[JSON], run: Run) -> list[JSON]:
    """Without what IPython adds to the stdout of a command that was stopped."""
    shown = [
        {**piece, "data": without_last_word(piece["data"], run)} if piece["type"] == "stdout" else piece
        for piece in output
    ]
    return [piece for piece in shown if piece["data"]]


def _pieces(kind: str, data: JSON) -> list[JSON]:
    """The pieces of output that an event brings; the last event, what the service says of the run."""
    if kind == COMPLETED:
        error = data.get("error") or {}
        said = [*data.get("notices", ())]
        if error and error.get("ename") != "CalledProcessError":
            said.append(f"{error.get('ename')}: {error.get('evalue')}")
        return [{"type": "stderr", "data": f"{sentence}\n"} for sentence in said]
    output = data.get("output") if kind == "output" else None
    if output is None or output.get("output_type") != "stream":
        return []
    name = "stderr" if output["name"] == "stderr" else "stdout"
    text = printed_text(output)
    return [{"type": name, "data": text}] if text else []
