"""``jupyter interpreter record``: read, prove, copy, shorten and replay the record, without a service."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from traitlets import Bool, Enum, Unicode

from interpreter.app import InterpreterApp
from interpreter.cli.command import Command, options_of
from interpreter.cli.dates import local_time, read_date
from interpreter.cli.output import counted, harmless, note, say, table, write
from interpreter.cli.show import session_text, statuses_text
from interpreter.errors import SettingsError
from interpreter.models import RunStatus
from interpreter.record import Recorder, RecordReader, SessionRecord, Verification
from interpreter.settings import Settings

PROBLEM = 1
_STORAGE = ("record_dir", "state_dir")


class RecordApp(InterpreterApp):
    """Read, prove, copy, shorten and replay the record."""

    description = (
        "Read, prove, copy, shorten and replay the record; all but prune also while the service runs."
    )
    examples = """
    jupyter interpreter record list --since=2030-01-31 --status=error
    jupyter interpreter record show SESSION
    jupyter interpreter record verify --all
    jupyter interpreter record export --all --out=record.zip
    """
    aliases: ClassVar[dict[Any, Any]] = options_of()
    subcommands: ClassVar[dict[str, tuple[str, str]]] = {
        "list": ("interpreter.cli.record.RecordListApp", "List and search the recorded sessions."),
        "show": ("interpreter.cli.record.RecordShowApp", "Show a session's code and outputs."),
        "verify": (
            "interpreter.cli.record.RecordVerifyApp",
            "Look whether the record is whole and unchanged.",
        ),
        "export": ("interpreter.cli.record.RecordExportApp", "Copy journals and notebooks into a zip file."),
        "prune": ("interpreter.cli.record.RecordPruneApp", "Remove the sessions that ended before a date."),
        "replay": ("interpreter.cli.record_replay.RecordReplayApp", "Run a session again and compare."),
    }


class RecordCommand(Command):
    """A command that reads the record."""

    aliases: ClassVar[dict[Any, Any]] = options_of(*_STORAGE)

    def reader(self, settings: Settings) -> RecordReader:
        """The record of the settings. Raises SettingsError when it is not there."""
        folder = Path(settings.record_dir)
        if not folder.is_dir():
            raise SettingsError(f"record_dir ({folder}) is not a folder.")
        return RecordReader(folder, Path(settings.state_dir))

    def find(self, reader: RecordReader, session_id: str) -> SessionRecord:
        """A session; ends the program when there is none."""
        record = reader.find_session(session_id)
        return record if record is not None else self.unknown(session_id)

    def unknown(self, session_id: str) -> NoReturn:
        """End the program: there is no such session."""
        self.exit_with(
            f"jupyter interpreter: There is no session {harmless(session_id)} in the record.", PROBLEM
        )


class RecordListApp(RecordCommand):
    """List and search the recorded sessions."""

    description = "List and search the recorded sessions, newest first."
    aliases: ClassVar[dict[Any, Any]] = {
        **RecordCommand.aliases,
        "q": "RecordListApp.q",
        "status": "RecordListApp.status",
        "since": "RecordListApp.since",
        "until": "RecordListApp.until",
        "kernel-name": "RecordListApp.of_kernel",
    }

    q = Unicode("", help="Text in the code or the outputs; case does not matter.").tag(config=True)
    status = Enum(
        [status.value for status in RunStatus if status.is_final],
        default_value=None,
        allow_none=True,
        help="Sessions with a run that ended so.",
    ).tag(config=True)
    since = Unicode("", help="Sessions used since this ISO 8601 date or time.").tag(config=True)
    until = Unicode("", help="Sessions begun up to this ISO 8601 date or time.").tag(config=True)
    of_kernel = Unicode("", help="Sessions of this kernelspec.").tag(config=True)

    async def main(self, settings: Settings) -> int:
        """List them."""
        wanted, reader = self._filter(), self.reader(settings)
        records = [record for record in reader.list_sessions() if wanted(record)]
        if self.q:
            found = set(reader.search(self.q))
            records = [record for record in records if record.info.id in found]
        if self.json_output:
            say(json.dumps([record.as_json() for record in records], indent=2))
            return 0
        rows = [_HEADER, *map(_row, records)]
        say(table(rows) if records else "No sessions.")
        return 0

    def _filter(self) -> Callable[[SessionRecord], bool]:
        since = read_date(self.since, "since") if self.since else None
        until = read_date(self.until, "until") if self.until else None

        def wanted(record: SessionRecord) -> bool:
            return (
                (not self.of_kernel or record.info.kernel_name == self.of_kernel)
                and (self.status is None or self.status in record.statuses)
                and (since is None or record.last_activity_at >= since)
                and (until is None or record.info.created_at <= until)
            )

        return wanted


_HEADER: tuple[str, ...] = ("SESSION", "CREATED", "KERNEL", "OWNER", "RUNS", "STATUSES", "STATE")


def _row(record: SessionRecord) -> tuple[str, ...]:
    info = record.info
    cells = (info.kernel_name, info.owner_name, str(record.run_count), statuses_text(record))
    return (
        info.id,
        local_time(info.created_at),
        *map(harmless, cells),
        record.ended_reason or "open",
    )


class RecordShowApp(RecordCommand):
    """Show a session's code and outputs."""

    description = """Show a session's code and outputs.

    usage: jupyter interpreter record show [options] SESSION
    """
    takes_arguments = True
    flags: ClassVar[dict[Any, Any]] = {
        **Command.flags,
        "notebook": ({"RecordShowApp": {"as_notebook": True}}, "Print the notebook (.ipynb)."),
    }

    as_notebook = Bool(False, help="Print the notebook (.ipynb).").tag(config=True)

    async def main(self, settings: Settings) -> int:
        """Show it."""
        session_id, reader = self.only_argument("session id"), self.reader(settings)
        record = self.find(reader, session_id)
        if self.as_notebook:
            write(sys.stdout, (reader.notebook(session_id) or b"").decode())
            return 0
        runs = reader.list_runs(session_id)
        if self.json_output:
            say(json.dumps({**record.as_json(), "runs": [run.as_json() for run in runs]}, indent=2))
        else:
            say(session_text(record, runs))
        return 0


class RecordVerifyApp(RecordCommand):
    """Look whether the record is whole and unchanged."""

    description = """Look whether sessions, or all of the record, are whole and unchanged; exit code 1 if not.

    usage: jupyter interpreter record verify [options] SESSION...|--all
    """
    takes_arguments = True
    flags: ClassVar[dict[Any, Any]] = {
        **Command.flags,
        "all": ({"RecordVerifyApp": {"every": True}}, "Every session, and that none is missing."),
    }

    every = Bool(False, help="Every session, and that none is missing.").tag(config=True)

    async def main(self, settings: Settings) -> int:
        """Verify them."""
        if bool(self.extra_args) == self.every:
            raise SettingsError("Give session ids, or --all.")
        reader = self.reader(settings)
        found = reader.verify_all() if self.every else {i: self._verify(reader, i) for i in self.extra_args}
        if self.json_output:
            say(json.dumps({name: _verification_json(result) for name, result in found.items()}, indent=2))
        else:
            for name, result in found.items():
                say(f"{name}: {'valid' if result.valid else 'NOT VALID'}, runs: {result.runs}")
                for problem in result.problems:
                    say(f"    {harmless(problem)}")
        wrong = sum(not result.valid for result in found.values())
        note(f"{len(found)} verified, {wrong} with problems.")
        return PROBLEM if wrong else 0

    def _verify(self, reader: RecordReader, session_id: str) -> Verification:
        result = reader.verify(session_id)
        return result if result is not None else self.unknown(session_id)


def _verification_json(result: Verification) -> dict[str, Any]:
    return {"valid": result.valid, "runs": result.runs, "problems": list(result.problems)}


class RecordExportApp(RecordCommand):
    """Copy journals and notebooks into a zip file."""

    description = """Copy journals and notebooks into a new zip file.

    usage: jupyter interpreter record export --out=FILE.zip SESSION...|--all
    """
    takes_arguments = True
    aliases: ClassVar[dict[Any, Any]] = {**RecordCommand.aliases, "out": "RecordExportApp.out"}
    flags: ClassVar[dict[Any, Any]] = {
        **InterpreterApp.flags,
        "all": ({"RecordExportApp": {"every": True}}, "Every session."),
    }

    out = Unicode("", help="The zip file to make.").tag(config=True)
    every = Bool(False, help="Every session.").tag(config=True)

    async def main(self, settings: Settings) -> int:
        """Export them; a file that is there stays as it is."""
        if bool(self.extra_args) == self.every:
            raise SettingsError("Give session ids, or --all.")
        if not self.out:
            raise SettingsError("--out must be given: the zip file to make.")
        reader = self.reader(settings)
        for session_id in self.extra_args:
            self.find(reader, session_id)
        count = self._export(reader, Path(self.out))
        note(f"{counted(count, 'session')} exported to {self.out}.")
        return 0

    def _export(self, reader: RecordReader, target: Path) -> int:
        partial = target.with_name(f".{target.name}.partial")
        try:
            if target.exists():
                raise SettingsError(f"{target} exists already; give another name to --out.")
            partial.unlink(missing_ok=True)
            count = reader.export(partial, None if self.every else set(self.extra_args))
            partial.replace(target)
            return count
        except OSError as error:
            raise SettingsError(f"{target} can't be written: {error.strerror}.") from error
        finally:
            partial.unlink(missing_ok=True)


class RecordPruneApp(RecordCommand):
    """Remove the sessions that ended before a date."""

    description = """Remove the sessions that ended before a date, for good.

    usage: jupyter interpreter record prune --before=DATE [-y]

    An entry of each stays, so that verify can tell it from a session that was lost. The service must be
    stopped.
    """
    aliases: ClassVar[dict[Any, Any]] = {**RecordCommand.aliases, "before": "RecordPruneApp.before"}
    flags: ClassVar[dict[Any, Any]] = dict(InterpreterApp.flags)

    before = Unicode("", help="An ISO 8601 date or time.").tag(config=True)

    async def main(self, settings: Settings) -> int:
        """Ask, then remove them."""
        if not self.before:
            raise SettingsError("--before must be given: an ISO 8601 date or time.")
        before, reader = read_date(self.before, "before"), self.reader(settings)
        os.close(reader.layout.lock())  # refuse before the question rather than after it
        old = [r for r in reader.list_sessions() if r.ended_at is not None and r.ended_at < before]
        if not old:
            note(f"No session ended before {local_time(before)}.")
            return 0
        if not self.answer_yes and not await self._agreed(len(old), before):
            note("Nothing was removed.")
            return PROBLEM
        recorder = Recorder(
            Path(settings.record_dir), Path(settings.state_dir), clock=lambda: datetime.now(UTC)
        )
        try:
            await recorder.start()
            removed = await recorder.prune(before)
        finally:
            await recorder.aclose()
        note(f"Removed: {counted(len(removed), 'session')}.")
        return 0

    @staticmethod
    async def _agreed(count: int, before: datetime) -> bool:
        old = counted(count, "session")
        write(sys.stderr, f"Remove {old} that ended before {local_time(before)}, for good? [y/N] ")
        answer = await asyncio.to_thread(sys.stdin.readline)
        return answer.strip().lower() in ("y", "yes")
