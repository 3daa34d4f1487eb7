"""How a kernel ended, as far as its gateway tells. Pure.

Our own gateway extension tells it in the last status message of a kernel and in the refusals of a dead one:
``"interpreter": {"exit_code", "signal", "reason"}``. Other gateways tell nothing.
"""

import json
from dataclasses import dataclass
from typing import Any

START_FAILED = "Kernel did not start"
"""Our gateway's ``reason`` of a refusal whose message says why."""
MAX_REASON = 300  # characters; ours are much shorter


@dataclass(frozen=True, slots=True)
class KernelDeath:
    """Why a kernel is gone, as far as it can be known."""

    sentence: str
    exit_code: int | None = None
    signal: str | None = None


GONE = KernelDeath("The kernel died, or somebody ended it: the gateway does not know it any more.")


def death_told(cause: object) -> KernelDeath:
    """The death that the value of ``interpreter`` tells, whatever that is."""
    cause = cause if isinstance(cause, dict) else {}
    exit_code, signal, reason = (cause.get(key) for key in ("exit_code", "signal", "reason"))
    exit_code = exit_code if isinstance(exit_code, int) else None
    signal = signal if isinstance(signal, str) else None
    if isinstance(reason, str) and 0 < len(reason) <= MAX_REASON:
        sentence = f"The kernel died: {reason}."
    elif signal:
        sentence = f"The kernel died: it was ended by {signal}."
    elif exit_code is not None:
        sentence = f"The kernel died: its process ended with exit code {exit_code}."
    else:
        sentence = "The kernel died."
    return KernelDeath(sentence, exit_code, signal)


def find_death(body: bytes | None) -> KernelDeath | None:
    """The death that a refusal's body tells of, if it does."""
    cause = _object(body).get("interpreter")
    return death_told(cause) if isinstance(cause, dict) else None


def find_start_failure(body: bytes | None) -> str | None:
    """Why our own gateway could not start a kernel, as a sentence; None if the body of a refusal does not say so."""
    told = _object(body)
    cause = told.get("message")
    if told.get("reason") != START_FAILED or not isinstance(cause, str) or not 0 < len(cause) <= MAX_REASON:
        return None
    return f"The gateway could not start the kernel: {cause.rstrip('.')}."


def start_failure(death: KernelDeath) -> str:
    """What to tell of a kernel that died before it could be used."""
    advice = " kernel_memory_bytes is too small for it." if "out of memory" in death.sentence else ""
    return f"The kernel ended while it started. {death.sentence}{advice}"


def _object(body: bytes | None) -> dict[str, Any]:
    try:
        told = json.loads(body or b"")
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}
