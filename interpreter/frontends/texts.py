"""A run as two texts, stdout and stderr, for clients that show nothing else. Pure."""

from collections.abc import Sequence

from interpreter.frontends.languages import exit_status
from interpreter.frontends.pictures import find_picture
from interpreter.models import JSON, Run
from interpreter.outputs.text import strip_ansi


def texts_of(run: Run, code: str, notes: Sequence[str] = ()) -> tuple[str, str]:
    """What the client shows as stdout and stderr.

    Values that a notebook would show are in stdout. The traceback is in stderr, except for a bash
    script that failed: its own words are there already.
    """
    stdout, stderr = _Text(), _Text()
    told = False
    for output in run.folded.outputs:
        kind = output["output_type"]
        if kind == "stream":
            (stderr if output["name"] == "stderr" else stdout).add(strip_ansi(output["text"]))
        elif kind == "error":
            told = True
            if exit_status(code, run) is None:
                stderr.line(strip_ansi("\n".join(output["traceback"]) or _sentence(output)))
        elif find_picture(output) is None and isinstance(text := output["data"].get("text/plain"), str):
            stdout.line(strip_ansi(text))
    sentences = (*run.folded.notices, *run.notices, *notes)
    if (error := run.folded.error) is not None and not told and error.evalue not in sentences:
        stderr.line(f"{error.ename}: {error.evalue}")
    for sentence in sentences:
        stderr.line(sentence)
    return stdout.text, stderr.text


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


def _sentence(output: JSON) -> str:
    return f"{output['ename']}: {output['evalue']}"
