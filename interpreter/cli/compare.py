"""Do two runs of the same code put out the same? Pure.

What differs from one execution to the next by its nature is made equal first: memory addresses, measured
times, execution counts, the numbers of kernels and random ids.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from interpreter.models import JSON
from interpreter.outputs import strip_ansi

MAX_DIFF_LINES = 20
_MEASURED = (
    (re.compile(r"\b0x[0-9a-fA-F]{4,16}\b"), "0x…"),
    (re.compile(r"^(CPU times|Wall time): .*$", re.MULTILINE), r"\1: …"),
    (re.compile(r"^.* ± .* per loop \(mean ± std\. dev\. of .*$", re.MULTILINE), "… per loop"),
    (re.compile(r"\[\d+:[\d:]+<[^\]\n]*\]"), "[…]"),  # tqdm: elapsed, remaining, rate
    (re.compile(r"\b(In|Out)\s?\[\d+\]"), r"\1[…]"),
    (re.compile(r"\S*ipykernel_\d+/\d+\.py"), "<cell>"),
    (re.compile(r"<ipython-input-\d+-[0-9a-f]+>"), "<cell>"),
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<id>"),
)


def differences(recorded: Sequence[JSON], replayed: Sequence[JSON]) -> list[str]:
    """A short unified diff of two lists of outputs; empty when they are equal."""
    before, after = list(_lines(recorded)), list(_lines(replayed))
    if before == after:
        return []
    diff = list(difflib.unified_diff(before, after, "recorded", "replayed", n=1, lineterm=""))
    if len(diff) > MAX_DIFF_LINES:
        left = len(diff) - MAX_DIFF_LINES
        diff[MAX_DIFF_LINES:] = [f"... {left} more lines"]
    return diff


def normalize(text: str) -> str:
    """Text without what differs by its nature, and without ANSI codes."""
    text = strip_ansi(text)
    for pattern, replacement in _MEASURED:
        text = pattern.sub(replacement, text)
    return text


def _lines(outputs: Iterable[JSON]) -> Iterable[str]:
    for output in outputs:
        kind = str(output.get("output_type"))
        if kind == "stream":
            yield f"[{output.get('name')}]"
            yield from normalize(str(output.get("text", ""))).split("\n")
        elif kind == "error":
            yield f"[error {output.get('ename')}]"
            yield from normalize("\n".join(map(str, output.get("traceback") or ()))).split("\n")
            yield from normalize(str(output.get("evalue"))).split("\n")
        else:
            yield f"[{kind}]"
            yield from _bundle_lines(output.get("data") or {})


def _bundle_lines(data: Mapping[str, Any]) -> Iterable[str]:
    for mime in sorted(data):
        value = data[mime]
        if not isinstance(value, str):
            value = json.dumps(value, sort_keys=True, ensure_ascii=False)
        if mime.startswith("text/") or mime.endswith(("json", "xml")):
            yield f"{mime}:"
            yield from normalize(value).split("\n")
        else:
            yield f"{mime}: sha256 {hashlib.sha256(value.encode('utf-8', 'replace')).hexdigest()[:16]}"
