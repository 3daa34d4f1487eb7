"""Measured rows as a Markdown table, with the machine that they were measured on.

``python -m bench`` measures and prints. Numbers of shared machines vary: compare ratios.
"""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

PACKAGES = ("ipykernel", "jupyter_client", "jupyter_kernel_gateway", "tornado", "pyzmq")


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: ``value`` in ``unit``, from ``samples`` runs or starts of ``system``."""

    name: str
    system: str
    value: float
    unit: str
    samples: int


def machine() -> str:
    """One line: processors, memory, kernel, Python and the packages that matter."""
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"{os.cpu_count()} CPUs ({platform.machine()}), {gibibytes:.0f} GiB, load {os.getloadavg()[0]:.1f}, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, {packages}"
    )


def table(rows: Sequence[Row], *, baseline: str) -> str:
    """The rows as a Markdown table; ``ratio`` is the value over the baseline system's of that name."""
    base = {row.name: row.value for row in rows if row.system == baseline}
    lines = ["| measurement | system | value | ratio | samples |", "|---|---|---:|---:|---:|"]
    for row in rows:
        ratio = f"{row.value / base[row.name]:.2f}×" if base.get(row.name) else "–"
        lines.append(f"| {row.name} | {row.system} | {row.value:.4g} {row.unit} | {ratio} | {row.samples} |")
    return "\n".join(lines)


def report(rows: Sequence[Row], *, baseline: str) -> str:
    """The table under the line about the machine."""
    return f"{machine()}\n\n{table(rows, baseline=baseline)}\n"
