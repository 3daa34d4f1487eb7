"""``jupyter interpreter record replay``: does a recorded session give the same again?"""

import json
from typing import Any, ClassVar

from interpreter.cli.check import GATEWAY_SETTINGS, opened_gateway
from interpreter.cli.command import options_of
from interpreter.cli.output import harmless, say
from interpreter.cli.record import PROBLEM, RecordCommand
from interpreter.cli.replay import Comparison, Replay, ReplayedRun
from interpreter.errors import SettingsError
from interpreter.record.entries import BadEntryError
from interpreter.record.stored import StoredSession
from interpreter.settings import Settings


class RecordReplayApp(RecordCommand):
    """Run a session again and compare."""

    description = """Run every cell of a session again, in order, on a fresh kernel, and compare the outputs.

    usage: jupyter interpreter record replay [options] SESSION

    The kernel is one of the configured gateway, else of one that is started for it. It finds none of the
    session's files. Memory addresses, measured times, execution counts and random ids may differ. Nothing is
    recorded. The exit code is 0 when all outputs are equal and 1 otherwise.
    """
    takes_arguments = True
    aliases: ClassVar[dict[Any, Any]] = options_of("record_dir", "state_dir", *GATEWAY_SETTINGS)

    async def main(self, settings: Settings) -> int:
        """Replay it."""
        session_id = self.only_argument("session id")
        record = self.find(self.reader(settings), session_id)
        try:
            recorded = StoredSession.load(record.path).runs()
        except (BadEntryError, OSError) as error:
            raise SettingsError("The session's journal can't be read; see `record verify`.") from error
        async with opened_gateway(settings) as gateway:
            replayed = await Replay(gateway, record.info.kernel_name, settings).run(recorded)
        equal = not any(item.comparison is Comparison.DIFFERS for item in replayed)
        if self.json_output:
            report = {"session_id": session_id, "equal": equal, "runs": [item.as_json() for item in replayed]}
            say(json.dumps(report, indent=2))
        else:
            for item in replayed:
                say(_text(item))
            say("All outputs are equal." if equal else "Some outputs differ.")
        return 0 if equal else PROBLEM


def _text(item: ReplayedRun) -> str:
    reason = f": {item.reason}" if item.reason else ""
    head = f"run {item.run.number}: {item.comparison.value}{reason}"
    return "\n".join([head, *(f"    {harmless(line)}" for line in item.diff)])
