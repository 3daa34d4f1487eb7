"""Why a kernel did not start, in a sentence for people: without paths, tokens or lines of code. Pure."""

import re

MAX_CAUSE = 300
"""Characters, as many as the service takes."""
_PATH = re.compile(
    r"""(?<=')~?/[^'\n]*(?=')|(?<=")~?/[^"\n]*(?=")|(?<![\w/])~?/[^\s'":;,)\]]*"""  # in quotes with spaces, too
)
_TOKEN = re.compile(r"(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{20,}")
"""Ids and tokens: long, of letters and digits."""


def cause(error: BaseException) -> str:
    """What the error says, or of what kind it is. The log has the rest."""
    text = getattr(error, "strerror", None) or str(error)
    line = next((line.strip() for line in str(text).splitlines() if line.strip()), "")
    line = "" if line.startswith("Traceback") else line
    told = _TOKEN.sub("…", _PATH.sub("…", line))[:MAX_CAUSE].rstrip(". ")
    kind = type(error).__name__
    return f"{kind}: {told}" if told and isinstance(error, OSError | LookupError) else told or kind
