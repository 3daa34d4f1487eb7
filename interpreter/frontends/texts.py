"""A run as two texts, stdout and stderr, for clients that show nothing else. Pure."""

import re
from collections.abc import Sequence

from interpreter.frontends.languages import exit_status
from interpreter.frontends.pictures import find_picture
from interpreter.models import JSON, Run, RunStatus
from interpreter.outputs.text import strip_ansi
from interpreter.toolcalls import best_text, without_hints

_LAST_WORD = re.compile(r"^Process was (?:interrupted|terminated|killed)\.\n\Z", re.MULTILINE)
_STOPPED = frozenset({RunStatus.TIMEOUT, RunStatus.INTERRUPTED, RunStatus.CANCELLED})


def texts_of(run: Run, code: str, notes: Sequence[str] = ()) -> tuple[str, str]:
    """What the client shows as stdout and stderr.

    Values that a notebook would show are in stdout. The traceback is in stderr, except for a script
    that ended itself: its own words are there already.
    """
    stdout, stderr = _Text(), _Text()
    told = False
    for output in run.folded.outputs:
        kind = output["output_type"]
        if kind == "stream":
            (stderr if output["name"] == "stderr" else stdout).add(printed_text(output))
        elif kind == "error":
            told = True
            if output["ename"] == "SystemExit" and code == "py":
                stderr.line(_farewell(output["evalue"]))
            elif exit_status(code, run) is None:
                stderr.line(strip_ansi("\n".join(output["traceback"]) or _sentence(output)))
        elif find_picture(output) is None and (text := best_text(output["data"])) is not None:
            stdout.line(strip_ansi(text))
    sentences = (*run.folded.notices, *run.notices, *notes)
    if (error := run.folded.error) is not None and not told and error.evalue not in sentences:
        stderr.line(f"{error.ename}: {error.evalue}")
    for sentence in sentences:
        stderr.line(sentence)
    return without_last_word(stdout.text, run) if code == "bash" else stdout.text, stderr.text


def printed_text(output: JSON) -> str:
    """The text of a stream, without colours and without what IPython says of itself."""
    text = strip_ansi(output["text"])
    return without_hints(text) if output["name"] == "stderr" else text


def without_last_word(stdout: str, run: Run) -> str:
    """A bash script's stdout without what IPython adds when the run was stopped: the status says it."""
    return _LAST_WORD.sub("", stdout) if run.status in _STOPPED else stdout


class _Text:
    """Text that grows."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, text: str) -> None:
        self.text += text

    def line(self, text: str) -> None:
        """Add the text on lines of its own."""
        if self.text and not self.text.endswith("\n"):
            self.text += "\n"
        self.text += text if text.endswith("\n") else f"{text}\n"


def _farewell(value: str) -> str:
    """What ``sys.exit(value)`` prints: a sentence; of a number we say that it was one."""
    return f"SystemExit: {value}" if value.removeprefix("-").isdigit() else value


def _sentence(output: JSON) -> str:
    return f"{output['ename']}: {output['evalue']}"
