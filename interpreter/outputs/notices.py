"""Sentences about what limits left out of a run. Pure."""

from collections.abc import Iterable, Sequence

from interpreter.jsontext import MAX_VALUES
from interpreter.outputs.bundles import OutputLimits
from interpreter.outputs.part import Tally


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


def _many(count: int, noun: str) -> str:
    return f"1 {noun} was" if count == 1 else f"{count:,} {noun}s were"
