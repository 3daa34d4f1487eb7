"""``jupyter interpreter run``: execute code on a running service and show what it prints."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TextIO

from traitlets import Float, Unicode

from interpreter.cli.client import Address, ClientError, ServiceClient
from interpreter.cli.command import JSON_FLAG, Command, options_of
from interpreter.cli.events import ServerEvent
from interpreter.cli.output import coloured, note, say, write
from interpreter.cli.show import plain_of, size_text, traceback_of, unshown
from interpreter.errors import SettingsError
from interpreter.models import JSON, RunStatus, is_id
from interpreter.outputs import strip_ansi
from interpreter.runtime_file import find_running
from interpreter.settings import Settings

NEW_SESSION = "new"
NO_SERVICE = 3
CANCEL_TIMEOUT = 15.0  # seconds that a cancellation may take after Ctrl-C
EXIT_CODES: Mapping[str, int] = {
    RunStatus.OK: 0,
    RunStatus.ERROR: 1,
    RunStatus.TIMEOUT: 124,
    RunStatus.ABORTED: 125,
    RunStatus.INTERRUPTED: 130,
    RunStatus.KERNEL_DIED: 137,
    RunStatus.CANCELLED: 143,
}


class RunApp(Command):
    """Execute a file, or standard input, on a running service."""

    description = """Execute a file, or standard input, on a running service, and show what it prints.

    usage: jupyter interpreter run [options] FILE|-

    The service is the one of --url (or INTERPRETER_URL), else the one that was started last on this
    machine with the same state_dir. What the code prints goes to standard output and standard error, the
    text of its result to standard output, tracebacks to standard error. Ctrl-C cancels the run.

    Exit codes: 0 ok, 1 the code raised, 124 timeout, 125 aborted, 130 interrupted (also by Ctrl-C),
    137 the kernel died, 143 cancelled; 2 wrong usage, 3 the service can't be reached or refuses.
    """
    examples = """
    jupyter interpreter run analysis.py             # in a fresh kernel that is discarded
    echo 'x = 1' | jupyter interpreter run --session=new -
    jupyter interpreter run --session=ID --timeout=10 more.py
    jupyter interpreter run --json - < code.py | jq .status
    """
    takes_arguments = True
    aliases: ClassVar[dict[Any, Any]] = {
        **options_of("state_dir"),
        "token": ("InterpreterApp.token", "A token of the service. [INTERPRETER_TOKEN]"),
        "url": "RunApp.url",
        "session": "RunApp.session",
        "timeout": "RunApp.timeout",
        "kernel": "RunApp.kernel",
        "ca-file": "RunApp.ca_file",
    }
    flags: ClassVar[dict[Any, Any]] = {
        **Command.flags,
        "json": (JSON_FLAG["json"][0], "Print nothing but the run as JSON when it has ended."),
    }

    url = Unicode("", help="URL of the service, also as it prints it. [INTERPRETER_URL]").tag(config=True)
    session = Unicode(
        "",
        help="Session to run in; `new` makes one and prints its id on standard error. Empty: a fresh kernel.",
    ).tag(config=True)
    timeout = Float(0.0, help="Seconds that the run may take; 0: what the session or service says.").tag(
        config=True
    )
    kernel = Unicode("", help="Kernelspec of a fresh kernel or new session.").tag(config=True)
    ca_file = Unicode("", help="CA certificates (PEM) that vouch for a service with https.").tag(config=True)

    async def main(self, settings: Settings) -> int:
        """Run it; the exit code by status."""
        body: JSON = {"code": self._read_code(), "stream": True}
        if self.timeout:
            body["timeout"] = self.timeout
        try:
            client = ServiceClient(self._address(settings), ca_file=self.ca_file)
            try:
                return await self._run(client, body)
            finally:
                client.close()
        except ClientError as error:
            self.exit_with(f"jupyter interpreter: {error}", NO_SERVICE)

    def _read_code(self) -> str:
        name = self.only_argument("FILE, or - for standard input")
        try:
            content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
            return content.decode("utf-8-sig")
        except OSError as error:
            raise SettingsError(f"{name} can't be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"{name} is not UTF-8 text.") from error

    def _address(self, settings: Settings) -> Address:
        if self.url:
            return Address.parse(self.url, settings.token)
        running = find_running(Path(settings.state_dir))
        if running is None:
            raise ClientError(
                "No service runs here; start one with `jupyter interpreter serve`, or set --url "
                "(INTERPRETER_URL) and INTERPRETER_TOKEN."
            )
        return Address.parse(running.url, settings.token or running.token)

    async def _run(self, client: ServiceClient, body: JSON) -> int:
        path = await self._path(client, body)
        show = _Terminal(quiet=self.json_output)
        try:
            async with contextlib.aclosing(client.stream(path, body)) as events:
                async for event in events:
                    show.take(event)
        except asyncio.CancelledError:
            if show.run_id:
                with contextlib.suppress(ClientError, TimeoutError):
                    async with asyncio.timeout(CANCEL_TIMEOUT):
                        await client.post(f"/v1/runs/{show.run_id}/cancel", {})
            raise
        if show.run is None:
            raise ClientError("The service ended the stream before the run had ended.")
        if self.json_output:
            say(json.dumps(show.run, indent=2, ensure_ascii=False))
        else:
            show.end(show.run)
        return EXIT_CODES.get(str(show.run.get("status")), 1)

    async def _path(self, client: ServiceClient, body: JSON) -> str:
        kernel = {"kernel_name": self.kernel} if self.kernel else {}
        if not self.session:
            body.update(kernel)
            return "/v1/runs"
        if self.session != NEW_SESSION:
            if self.kernel:
                raise SettingsError("kernel is for a fresh kernel or --session=new only.")
            if not is_id(self.session):
                raise SettingsError("session must be the id of a session, or `new`.")
            return f"/v1/sessions/{self.session}/runs"
        made = await client.post("/v1/sessions", kernel)
        note(f"session {made['id']}")
        return f"/v1/sessions/{made['id']}/runs"


class _Terminal:
    """Shows the events of one run; ``quiet`` only keeps the run."""

    def __init__(self, *, quiet: bool) -> None:
        self.run_id = ""
        self.run: JSON | None = None
        self._quiet = quiet
        self._raised = False
        self._at_line_start = True

    def take(self, event: ServerEvent) -> None:
        """Show an event. Raises ClientError for one that is not the service's."""
        try:
            data = json.loads(event.data)
        except ValueError as error:
            raise ClientError("The service sent an event that is not JSON.") from error
        if event.kind in ("run.started", "run.completed"):
            self.run_id = str(data.get("id", ""))
        if event.kind == "run.completed":
            self.run = data
        elif event.kind in ("output", "output.update") and not self._quiet:
            self._show(data["output"])

    def end(self, run: JSON) -> None:
        """What only the ended run tells: an error that was not shown, sentences, files."""
        error, notices = run.get("error"), run.get("notices") or []
        if error and not self._raised and error.get("evalue") not in notices:
            self._put(sys.stderr, f"{traceback_of(error)}\n")
        for sentence in notices:
            self._line(sentence)
        for file in run.get("files") or []:
            self._line(f"{file['change']} {file['path']} ({size_text(file['size'])})")
        if run["status"] not in (RunStatus.OK, RunStatus.ERROR) and not notices:
            self._line(f"The run's status is {run['status']}.")
        if not run.get("recorded", True):
            self._line("The outcome of the run could not be recorded.")

    def _show(self, output: JSON) -> None:
        kind = output.get("output_type")
        if kind == "stream":
            self._put(
                sys.stderr if output.get("name") == "stderr" else sys.stdout, str(output.get("text", ""))
            )
        elif kind == "error":
            self._raised = True
            self._put(sys.stderr, f"{traceback_of(output)}\n")
        else:
            text = plain_of(output)
            if text:
                self._put(sys.stdout, f"{text}\n")
            for phrase in unshown(output):
                self._line(f"[{phrase}: not shown]")

    def _line(self, text: str) -> None:
        self._put(sys.stderr, f"{text}\n", new_line=True)

    def _put(self, stream: TextIO, text: str, *, new_line: bool = False) -> None:
        """Colours go to a terminal only; a line of ours never continues one of the code's."""
        text = coloured(text) if stream.isatty() else strip_ansi(text)
        if stream.isatty() and new_line and not self._at_line_start:
            text = f"\n{text}"
        write(stream, text)
        if text and stream.isatty():
            self._at_line_start = text.endswith("\n")
