"""Shell commands of a run that failed, as sentences. Pure.

A kernel with our extension (`gateway_config/ipython`) tells them in its reply; IPython itself shows what ``!command``
prints, and not how it ended.
"""

import signal
from collections.abc import Mapping
from typing import Any

MAX_SENTENCES = 3
MAX_COMMAND_CHARACTERS = 80


def failed_commands(reply: Mapping[str, Any] | None) -> tuple[str, ...]:
    """A sentence for each of the last shell commands that failed; of a reply that tells of none, nothing.

    The code can write anything into its kernel's reply, so what is no pair of command and code is passed over.
    """
    told = (reply or {}).get("interpreter")
    codes = told.get("exit_codes") if isinstance(told, dict) else None
    pairs = [pair for pair in codes if _is_pair(pair)] if isinstance(codes, list) else []
    sentences = [_sentence(command, code) for command, code in pairs[-MAX_SENTENCES:]]
    if len(pairs) > MAX_SENTENCES:
        sentences.insert(0, f"{len(pairs) - MAX_SENTENCES} more shell commands before these failed.")
    return tuple(sentences)


def _is_pair(pair: object) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and type(pair[1]) is int
        and -256 < pair[1] < 256
    )


def _sentence(command: str, code: int) -> str:
    text = " ".join(command.split())
    shown = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
    if len(shown) > MAX_COMMAND_CHARACTERS:
        shown = shown[: MAX_COMMAND_CHARACTERS - 1] + "…"
    if code >= 0:
        return f"The shell command `{shown}` ended with exit code {code}."
    try:
        name = signal.Signals(-code).name
    except ValueError:  # IPython takes each code above 128 for a signal, as shells do
        return f"The shell command `{shown}` ended with exit code {128 - code}."
    return f"The shell command `{shown}` was ended by {name}."
