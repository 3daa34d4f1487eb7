"""The text of a run for a model: bounded, without ANSI codes, never empty."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from interpreter.models import JSON, FileChange, Run, RunError, RunStatus, in_seconds
from interpreter.toolcalls.displays import Displays, read_displays

NO_OUTPUT = "The code ran without output."
_MAX_FILES = 20
_MAX_NOTICES = 10
_MAX_SUMMARY = 160  # characters of an error's name and message
_MAX_LINE = 300  # characters of a path or of a notice

_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?"  # OSC and other strings
    r"|\x1b[ -/]*[0-~]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_EXIT_HINT = re.compile(
    r"^\S*interactiveshell\.py:\d+: UserWarning: To exit: use [^\n]*\n?(?:[ \t]+warn\([^\n]*\n?)?",
    re.MULTILINE,
)
_DATA_URI = re.compile(r"data:[\w.+-]{1,64}/[\w.+-]{1,64};base64,[A-Za-z0-9+/=]{64,}")

_STATUS = {
    RunStatus.QUEUED: "The code has not started yet.",
    RunStatus.RUNNING: "The code is still running; this is its output so far.",
    RunStatus.ERROR: "The code raised an error.",
    RunStatus.INTERRUPTED: "The run was interrupted before it ended.",
    RunStatus.ABORTED: "The code was not run: a run before it in this session failed or was stopped.",
    RunStatus.KERNEL_DIED: "The kernel died while the code ran, perhaps for lack of memory.",
}
_STATE_LOST = (
    "The kernel was restarted: variables, imports and functions are lost, files are kept. "
    "Define again what you need."
)

_NOT_STARTED = "The code was not run: the kernel did not start."
_STATE_TOLD = re.compile(
    r"(?:\s*The kernel (?:was restarted|is a fresh one)|, so the kernel is a fresh one)"
    r": earlier variables(?: and imports)? are gone"
)
"""What notices say of it; `_STATE_LOST` takes its place. Before it may stand what made the last kernel end."""
_REPLAYED = "was executed again"
_SVG = "image/svg+xml"
_SAVE = "only text, PNG and JPEG can be; save it as a file."
_REASON = {
    RunStatus.TIMEOUT: re.compile(r"longer than its timeout"),
    RunStatus.INTERRUPTED: re.compile(r"on request"),
    RunStatus.ABORTED: re.compile(r"The service"),
    RunStatus.KERNEL_DIED: re.compile(r"kernel (?:died|ended)|ended the kernel|connection to the kernel"),
}
"""A notice that says why a run ended so, which then need not be said in general."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the text. ``head`` is the share of the bytes that stay which its beginning gets.

    ``ending`` is added to what is left of a text that had to be cut.
    """

    name: str
    label: str
    text: str
    head: float = 0.5
    always_labelled: bool = False
    ending: str = ""


def model_text(run: Run, max_bytes: int, *, shows_rich: bool = True) -> str:
    """What a model reads of a run, at most ``max_bytes`` of UTF-8.

    stdout, stderr, displayed text, the last value, the traceback, then notes: status, kernel restart,
    figures and files made, notices. Images are told of, never included. Parts that are too long lose
    their middle, each to a fair share, so that the last value, the end of the traceback and the notes
    stay visible beside a flood of output. ``shows_rich`` is whether the user's client shows charts, SVG
    and HTML; the model is told so.
    """
    displays = read_displays(run.folded.outputs, run.folded.result)
    parts = [part for part in _parts(run, displays) if part.text.strip()]
    notes = "\n".join(_notes(run, displays, shows_rich=shows_rich))
    if not parts and not notes:
        return _cut(NO_OUTPUT, max_bytes, "text", 0.5)
    labelled = len(parts) > 1
    parts = [_labelled(part) if labelled or part.always_labelled else part for part in parts]
    if notes:
        parts.append(_Part("notes", "", notes, head=0.8))
    room = max(0, max_bytes - 2 * (len(parts) - 1))
    shares = _shares([_size(part.text) for part in parts], room)
    shown = [_shown(part, share) for part, share in zip(parts, shares, strict=True)]
    return _cut("\n\n".join(shown), max_bytes, "text", 0.5)


def clean(text: str) -> str:
    """``text`` without ANSI codes, control characters, lone surrogates and embedded base64 data."""
    text = _CONTROL.sub("", _ANSI.sub("", text.replace("\r\n", "\n")))
    return _DATA_URI.sub("[base64 data]", _SURROGATE.sub("\ufffd", text))


def without_hints(stderr: str) -> str:
    """``stderr`` without IPython's advice how to leave it, which follows each SystemExit."""
    return _EXIT_HINT.sub("", stderr) if "To exit: use" in stderr else stderr


def shorten(text: str, max_bytes: int, name: str = "text") -> str:
    """``text`` cleaned, in at most ``max_bytes`` of UTF-8; where it is longer its middle is cut."""
    return _cut(clean(text), max_bytes, name, 0.5)


def _parts(run: Run, displays: Displays) -> Iterable[_Part]:
    folded = run.folded
    yield _Part("stdout", "stdout:\n", _trimmed(folded.stdout))
    yield _Part("stderr", "stderr:\n", _trimmed(without_hints(folded.stderr)), always_labelled=True)
    yield _Part("displayed text", "Displayed:\n", _trimmed("\n\n".join(displays.texts)))
    yield _Part("the last value", "Last value:\n", _trimmed(displays.result or ""), head=0.7)
    error = folded.error or _shown_error(folded.outputs)
    if error is not None and error.evalue not in run.notices:  # else the notes say it
        yield _error_part(error)


def _trimmed(text: str) -> str:
    return clean(text).strip("\n")


def _labelled(part: _Part) -> _Part:
    return replace(part, label="", text=part.label + part.text)


def _shown_error(outputs: Sequence[JSON]) -> RunError | None:
    """The last error that code has shown which went on after it, as IPython's ``%run`` does; a notice says that."""
    shown = next((o for o in reversed(outputs) if o.get("output_type") == "error"), None)
    if shown is None:
        return None
    ename, evalue, lines = (shown.get(key) for key in ("ename", "evalue", "traceback"))
    traceback = tuple(map(str, lines)) if isinstance(lines, list | tuple) else ()
    return RunError(str(ename or ""), str(evalue or ""), traceback)


def _error_part(error: RunError) -> _Part:
    """The traceback; where it must be cut, it still ends with the error's name and message."""
    traceback = _trimmed("\n".join(error.traceback))
    name = _line(error.ename) or "Error"
    value = clean(error.evalue)
    summary = f"{name}: {value}" if value else name
    if not traceback:
        traceback = summary
    elif name not in traceback:  # a custom traceback may leave it out
        traceback += f"\n{summary}"
    ending = summary if len(summary) <= _MAX_SUMMARY else summary[:_MAX_SUMMARY] + "..."
    return _Part("the traceback", "", traceback, head=0.3, ending=f"\n{ending}")


def _notes(run: Run, displays: Displays, *, shows_rich: bool) -> Iterable[str]:
    own = [notice for notice in run.notices if not _STATE_TOLD.search(notice)]
    reason = next((n for n in own if run.status in _REASON and _REASON[run.status].search(n)), None)
    yield from (_line(sentence) for sentence in _earlier(run.notices, but=reason))
    if status := reason or _status_note(run):
        yield _line(status)
    if _is_state_lost(run):
        yield _STATE_LOST
    yield from _display_notes(displays, shows_rich=shows_rich)
    if run.files:
        yield _file_notes(run.files)
    notices = list(dict.fromkeys(_line(n) for n in (*run.folded.notices, *own) if n and n != reason))
    yield from notices[:_MAX_NOTICES]
    if len(notices) > _MAX_NOTICES:
        yield f"{len(notices) - _MAX_NOTICES} more notices are in the run's record."
    if run.folded.truncated and not run.folded.notices:
        yield f"The output was over the limits: {run.folded.dropped_bytes} bytes of it were dropped."


def _earlier(notices: Iterable[str], but: str | None) -> Iterable[str]:
    """What happened to the session's kernel before the run; not ``but``, the same as has ended the run."""
    for notice in notices:
        told = _STATE_TOLD.search(notice)
        cause = notice[: told.start()].rstrip(".") if told else ""
        if cause and cause != (but or "").rstrip("."):
            yield f"Before this run: {cause[:1].lower()}{cause[1:]}."


def _status_note(run: Run) -> str | None:
    if _is_start_error(run):
        return _NOT_STARTED
    if run.status is RunStatus.TIMEOUT:
        return f"The run was stopped: it took longer than its timeout of {in_seconds(run.timeout)}."
    if run.status is RunStatus.CANCELLED:
        return f"The run was cancelled before it {'ended' if run.started_at else 'started'}."
    if run.status is RunStatus.ERROR and run.folded.error is not None:
        return None  # the traceback says it
    return _STATUS.get(run.status)


def _is_state_lost(run: Run) -> bool:
    """Whether the model has to be told so: not when a notice says what the kernel knows again."""
    if any(_REPLAYED in notice for notice in run.notices) or _is_start_error(run):
        return False
    return run.kernel_restarted or run.status is RunStatus.KERNEL_DIED


def _is_start_error(run: Run) -> bool:
    return run.folded.error is not None and run.folded.error.ename == "KernelStartError"


def _display_notes(displays: Displays, *, shows_rich: bool) -> Iterable[str]:
    figures, hidden = dict(displays.figures), dict[str, int]()
    if not shows_rich:
        hidden = dict(displays.others)
        if drawings := figures.pop(_SVG, 0):
            hidden["SVG picture"] = drawings
    total = sum(figures.values())
    if total:
        by_type = sorted(figures.items())
        types = ", ".join(clean(m) if len(by_type) == 1 else f"{n} {clean(m)}" for m, n in by_type)
        yield f"{_counted(total, 'figure')} ({types[:_MAX_LINE]}) {_were(total)} shown to the user."
    for noun, count in sorted(hidden.items() if not shows_rich else displays.others.items()):
        shown = "shown to the user." if shows_rich else f"not shown to the user: {_SAVE}"
        yield f"{_counted(count, noun)} {_were(count)} {shown}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _file_notes(files: Sequence[FileChange]) -> str:
    lines = ["Files:"]
    for file in files[:_MAX_FILES]:
        line = f"- {file.change} {_line(file.path)}"
        if file.change != "deleted":
            line += f" ({_counted(file.size, 'byte')}, {_line(file.mime_type)}): {_line(file.url)}"
        lines.append(line)
    if len(files) > _MAX_FILES:
        lines.append(f"- and {len(files) - _MAX_FILES} more")
    return "\n".join(lines)


def _line(text: str) -> str:
    """``text`` as one line of bounded length."""
    line = " ".join(clean(text).split())
    return line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + "..."


def _size(text: str) -> int:
    return len(text.encode())


def _shares(sizes: Sequence[int], room: int) -> list[int]:
    """Bytes for each part: the short ones whole, what they leave shared alike by the long ones."""
    shares = [0] * len(sizes)
    order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    for place, index in enumerate(order):
        shares[index] = min(sizes[index], room // (len(sizes) - place))
        room -= shares[index]
    return shares


def _shown(part: _Part, share: int) -> str:
    if _size(part.text) <= share or _size(part.ending) >= share:
        return _cut(part.text, share, part.name, part.head)
    return _cut(part.text, share - _size(part.ending), part.name, part.head) + part.ending


def _cut(text: str, max_bytes: int, name: str, head: float) -> str:
    """``text`` in at most ``max_bytes`` of UTF-8; its middle makes way for a count of what was cut."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    # One digit too many at most: the count is written with the width of the whole size.
    width = len(str(len(data)))
    room = max_bytes - len(f"\n[... {'9' * width} bytes of {name} cut ...]\n")
    if room <= 0:
        return data[:max_bytes].decode(errors="ignore")
    first = data[: int(room * head)].decode(errors="ignore")
    last = data[len(data) - (room - int(room * head)) :].decode(errors="ignore")
    cut = len(data) - _size(first) - _size(last)
    return f"{first}\n[... {cut} bytes of {name} cut ...]\n{last}"
