"""Sentences about what limits left out of a run. Pure."""

from collections.abc import Iterable, Sequence

from interpreter.jsontext import MAX_VALUES
from interpreter.models import JSON
from interpreter.outputs.bundles import OutputLimits
from interpreter.outputs.part import Tally
from interpreter.outputs.text import strip_ansi

_MAX_ERROR = 200  # characters of an error's name and message


def notices(
    cuts: Iterable[tuple[str, int, int]], tallies: Sequence[Tally], lost: int, limits: OutputLimits
) -> tuple[str, ...]:
    """One sentence per kind of loss. ``cuts`` are streams: name, bytes shown, bytes dropped."""
    found = [
        f"{name} was cut: {shown:,} of {shown + dropped:,} bytes are shown." for name, shown, dropped in cuts
    ]
    if n := sum(tally.values for tally in tallies):
        found.append(f"{_many(n, 'display value')} left out or cut: over {limits.max_mime_bytes:,} bytes.")
    if n := sum(tally.crowds for tally in tallies):
        found.append(f"{_many(n, 'display value')} left out: over {MAX_VALUES:,} values of JSON.")
    if n := sum(tally.displays for tally in tallies):
        found.append(
            f"{_many(n, 'display')} left out: all displays of a run may have {limits.max_display_bytes:,} bytes."
        )
    if n := sum(tally.outputs for tally in tallies):
        found.append(f"{_many(n, 'output')} left out: a run may have {limits.max_outputs:,}.")
    if n := sum(tally.errors for tally in tallies):
        found.append(f"{_many(n, 'traceback')} cut: too long.")
    if lost:
        found.append(f"{lost:,} bytes of a message that was too large were lost on the way from the kernel.")
    return tuple(found)


def shown_errors(outputs: Iterable[JSON]) -> tuple[str, ...]:
    """A sentence about the errors in the outputs of code that its kernel calls a success.

    So it is with what ``%run`` and ``%%capture`` execute: IPython shows how that failed, and the cell goes on.
    """
    errors = [output for output in outputs if output["output_type"] == "error"]
    if not errors:
        return ()
    last = f"{errors[-1]['ename']}: {errors[-1]['evalue'][: 2 * _MAX_ERROR]}"
    last = " ".join(strip_ansi(last).split()).removesuffix(":")
    last = last if len(last) <= _MAX_ERROR else f"{last[:_MAX_ERROR]}…"
    which = "An error was shown" if len(errors) == 1 else f"{len(errors):,} errors were shown"
    return (f"{which}, but did not end the cell{': ' if len(errors) == 1 else '; the last: '}{last}",)


def _many(count: int, noun: str) -> str:
    return f"1 {noun} was" if count == 1 else f"{count:,} {noun}s were"
