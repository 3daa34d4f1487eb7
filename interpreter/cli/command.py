"""What the subcommands share: how they start, print and end."""

import asyncio
import os
import sys
from abc import abstractmethod
from typing import Any, ClassVar

from jupyter_core.application import base_aliases
from traitlets import Bool

from interpreter.app import InterpreterApp, aliases_of
from interpreter.errors import InterpreterError, SettingsError
from interpreter.settings import Settings

INTERRUPTED = 130  # as a shell reports SIGINT

JSON_FLAG: dict[str, Any] = {"json": ({"Command": {"json_output": True}}, "Print JSON instead of text.")}


def options_of(*names: str) -> dict[Any, Any]:
    """The usual options of an application and those of these settings."""
    return {**base_aliases, **aliases_of("log_level", *names)}


class Command(InterpreterApp):
    """A subcommand that does its work in `main` and ends with the exit code that it returns."""

    subcommands: ClassVar[dict[str, Any]] = {}
    flags: ClassVar[dict[Any, Any]] = {**InterpreterApp.flags, **JSON_FLAG}

    json_output = Bool(False, help="Print JSON instead of text.").tag(config=True)

    def start(self) -> None:
        """Do the work. A wrong setting, or what a part refuses, ends it with one sentence."""
        super().start()
        try:
            code = asyncio.run(self.main(self.settings()))
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:
            # Whoever read has enough. Python would complain once more when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 1
        except (SettingsError, InterpreterError) as error:
            self.fail(str(error))
        self.exit(code)

    @abstractmethod
    async def main(self, settings: Settings) -> int:
        """The work; the exit code. May raise SettingsError and InterpreterError."""

    def only_argument(self, what: str) -> str:
        """The one argument. Raises SettingsError when there is none, or more."""
        if len(self.extra_args) != 1:
            raise SettingsError(f"Give exactly one {what}; see --help.")
        return str(self.extra_args[0])
