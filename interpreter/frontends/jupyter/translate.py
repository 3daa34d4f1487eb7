"""A run's events as the messages that a kernel would have sent. Pure.

Sources: "Messaging in Jupyter" (jupyter-client.readthedocs.io). What a run has and a kernel has not
(a timeout of its own, a lost kernel, cut output) becomes an ``error`` or text on stderr, because
clients end at ``idle`` and show nothing else.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from interpreter.events import COMPLETED, RunEvent
from interpreter.frontends.jupyter.wire import Outgoing
from interpreter.models import JSON
from interpreter.outputs.text import strip_ansi

_NOT_LIVE = re.compile(
    r"\n\[… the rest of [^\n]* is not shown live …\]\n\Z"
)  # the last word of `outputs.live`
_NAMES = {
    "timeout": "TimeoutError",
    "interrupted": "KeyboardInterrupt",
    "aborted": "RunAborted",
    "cancelled": "RunCancelled",
    "kernel_died": "KernelDied",
}
_NOT_RECORDED = "This run could not be written to the record in full."


class Translator:
    """The messages of one run; ``parent`` is the header of its request.

    ``execution_count`` is what the kernel will probably count. ``silent`` leaves out what a kernel then does: input and result.
    ``errors_last`` is for clients that stop at the first error (smolagents, AutoGen): they would not learn of the
    time limit that made it, and one that hangs up would cancel the run whose error it was told.
    """

    def __init__(
        self,
        parent: Mapping[str, Any],
        run_id: str,
        *,
        execution_count: int,
        stderr_to_stdout: bool = False,
        silent: bool = False,
        errors_last: bool = False,
    ) -> None:
        self.execution_count = execution_count
        self._parent = parent
        self._run_id = run_id
        self._stderr_to_stdout = stderr_to_stdout
        self._silent = silent
        self._sent: dict[int, list[str]] = {}  # what was sent of outputs, of streams their text, by index
        self._broken_off: set[int] = set()  # streams whose rest comes at the end
        self._errors: list[str] = []
        self._errors_last = errors_last
        self._held: list[Outgoing] = []  # errors that wait for the end

    def translate(self, event: RunEvent) -> list[Outgoing]:
        """The messages of the next event; with the last one comes the reply."""
        if event.kind == COMPLETED:
            return self._end(event.data)
        messages = self._live(event)
        is_error = event.kind == "output" and event.data["output"]["output_type"] == "error"
        if is_error and self._errors_last:
            self._held += messages
            return []
        return messages

    def _live(self, event: RunEvent) -> list[Outgoing]:
        data = event.data
        if event.kind == "run.started":
            return self._shown(self._input(data))
        if event.kind == "output":
            return self._shown(*self._output(data["index"], data["output"]))
        if event.kind == "output.update":
            return self._shown(self._display("update_display_data", data["index"], data["output"]))
        if event.kind == "output.clear":
            self._sent.clear()
            self._broken_off.clear()
            self._held.clear()
            return self._shown(self._iopub("clear_output", {"wait": False}))
        return []

    def _shown(self, *messages: Outgoing) -> list[Outgoing]:
        hidden = ("execute_input", "execute_result") if self._silent else ()
        return [message for message in messages if message.msg_type not in hidden]

    def _iopub(self, msg_type: str, content: JSON) -> Outgoing:
        return Outgoing("iopub", msg_type, content, self._parent)

    def _input(self, run: JSON) -> Outgoing:
        return self._iopub("execute_input", {"code": run["code"], "execution_count": self.execution_count})

    def _output(self, index: int, output: JSON) -> Iterator[Outgoing]:
        kind, sent = output["output_type"], self._sent.setdefault(index, [])
        if kind == "stream":
            text, broken_off = _NOT_LIVE.subn("", output["text"])
            sent.append(text)
            if broken_off:
                self._broken_off.add(index)
            yield from self._stream(output["name"], text)
        elif kind == "error":
            yield from self._error(output["ename"], output["evalue"], output["traceback"])
        else:
            yield self._display(kind, index, output)

    def _stream(self, name: str, text: str) -> Iterator[Outgoing]:
        if not text:
            return
        yield self._iopub("stream", {"name": name, "text": text})
        if name == "stderr" and self._stderr_to_stdout:
            yield self._iopub("stream", {"name": "stdout", "text": text})

    def _error(self, ename: str, evalue: str, traceback: list[str]) -> Iterator[Outgoing]:
        self._errors.append(ename)
        content = error_content(ename, evalue, traceback)
        yield self._iopub("error", content)
        if self._stderr_to_stdout:
            yield self._iopub("stream", {"name": "stdout", "text": "\n".join(content["traceback"]) + "\n"})

    def _display(self, msg_type: str, index: int, output: JSON) -> Outgoing:
        """A display. The id is ours: updates come by the place of the output."""
        content = {
            "data": output["data"],
            "metadata": output["metadata"],
            "transient": {"display_id": f"{self._run_id}_{index}"},
        }
        if msg_type == "execute_result":
            self.execution_count = output.get("execution_count") or self.execution_count
            content["execution_count"] = self.execution_count
        return self._iopub(msg_type, content)

    # The end

    def _end(self, run: JSON) -> list[Outgoing]:
        self.execution_count = run["execution_count"] or self.execution_count
        messages = self._shown(*self._missing(run["outputs"]))
        notices = [*run["notices"], *([] if run["recorded"] else [_NOT_RECORDED])]
        status, error, held = run["status"], run["error"], self._held
        if status not in ("ok", "error"):
            sentence = " ".join(notices) or f"The run ended with status {status}."
            error, notices = self._failure(status, sentence, error), []
            if held and error is not run["error"]:
                error["traceback"] = [*held[0].content["traceback"], *error["traceback"]]
                self._errors, held = [], []
        if notices:
            messages += self._shown(*self._stream("stderr", "".join(f"{line}\n" for line in notices)))
        messages += held
        if error is not None and error["ename"] not in self._errors:
            messages += self._shown(*self._error(error["ename"], error["evalue"], error["traceback"]))
        return [*messages, self._reply(run, error)]

    @staticmethod
    def _failure(status: str, sentence: str, error: JSON | None) -> JSON:
        """Why the run has no end of its own."""
        if status == "interrupted" and error is not None:
            return error
        ename = error["ename"] if error and status == "kernel_died" else _NAMES[status]
        return {"ename": ename, "evalue": sentence, "traceback": [f"{ename}: {sentence}"]}

    def _missing(self, outputs: list[JSON]) -> Iterator[Outgoing]:
        """What was not shown live: the tail of a flood, and outputs beyond what events carry."""
        for index, output in enumerate(outputs):
            if index not in self._sent:
                yield from self._output(index, output)
            elif index in self._broken_off and output["output_type"] == "stream":
                start = _common_length("".join(self._sent[index]), output["text"])
                yield from self._stream(output["name"], output["text"][start:])

    def _reply(self, run: JSON, error: JSON | None) -> Outgoing:
        content: JSON = {"status": "ok", "payload": [], "user_expressions": {}}
        if error is not None:
            content = {
                "status": "error",
                **error_content(error["ename"], error["evalue"], error["traceback"]),
                "payload": [],
            }
        content["execution_count"] = self.execution_count
        metadata = {"started": run["started_at"], "dependencies_met": True, "status": content["status"]}
        return Outgoing("shell", "execute_reply", content, self._parent, metadata)


def _common_length(one: str, other: str) -> int:
    """How many characters both begin with."""
    different = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(different, min(len(one), len(other)))


def error_content(ename: str, evalue: str, traceback: list[str]) -> JSON:
    """The content of an ``error``: always with a traceback, which is plain text."""
    lines = [strip_ansi(line) for line in traceback] or [f"{ename}: {evalue}" if evalue else ename]
    return {"ename": ename, "evalue": evalue, "traceback": lines}


def refusal(parent: Mapping[str, Any], ename: str, sentence: str) -> list[Outgoing]:
    """What is sent for code that never became a run: the error, then the reply."""
    content = error_content(ename, sentence, [])
    reply = {"status": "error", "execution_count": 0, "payload": [], **content}
    return [
        Outgoing("iopub", "error", content, parent),
        Outgoing("shell", "execute_reply", reply, parent, {"status": "error"}),
    ]


def status(parent: Mapping[str, Any], state: str) -> Outgoing:
    """The kernel's state, as part of what ``parent`` began; ``{}`` for none."""
    return Outgoing("iopub", "status", {"execution_state": state}, parent)
