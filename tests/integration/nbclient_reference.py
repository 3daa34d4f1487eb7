"""What nbclient makes of a notebook, and the form in which two executions are equal."""

import copy
import os
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient

JSON = dict[str, Any]

_REPLACEMENTS = (
    (re.compile(r"0x[0-9a-fA-F]{6,}"), "0x…"),
    # What differs from kernel to kernel: process ids, random ids, folders.
    (re.compile(r"ipykernel_\d+"), "ipykernel_…"),
    (re.compile(r"(?<=ipykernel_…/)\d+"), "…"),
    (re.compile(r"Thread-\d+"), "Thread-…"),
    (re.compile(r"\b[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\b"), "uuid"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "uuid"),
    (re.compile(r"(sk-(?:container|estimator)-(?:id-)?)\d+"), r"\1…"),
    (re.compile(r"altair-viz-\w+"), "altair-viz"),
    (re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)? ?(?:ns|μs|µs|us|ms|s|min)\b"), "<time>"),
    (re.compile(r"/(?:tmp|var|home|root|work|mnt)/[^\s'\":]*"), "<path>"),
    (re.compile(r"<dc:date>.*?</dc:date>"), "<dc:date/>"),
)


def execute_with_nbclient(cells: list[str], jupyter_path: Path, folder: Path) -> list[list[JSON]]:
    """The outputs of each cell after all of them were executed."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    (home := folder / "home").mkdir()
    (work := folder / "work").mkdir()
    environment = {
        "JUPYTER_PATH": str(jupyter_path),
        "HOME": str(home),
        "MPLCONFIGDIR": str(home),
        "SHELL": "/bin/bash",
    }
    with patch.dict(os.environ, environment):
        del os.environ["PYTEST_CURRENT_TEST"]  # in a test, ipykernel leaves file descriptors 1 and 2 alone
        client = NotebookClient(
            notebook,
            timeout=60,
            kernel_name="python3",
            allow_errors=True,
            coalesce_streams=False,
            resources={"metadata": {"path": str(work)}},
        )
        client.execute()
    return [copy.deepcopy([dict(output) for output in cell.outputs]) for cell in notebook.cells]


def normalised(outputs: Iterable[JSON]) -> list[JSON]:
    """Outputs without what differs between two executions of the same code.

    Streams that follow each other are joined by name: how often a kernel flushes each of the two, and
    in which order, is a matter of time.
    """
    result: list[JSON] = []
    for is_stream, group in groupby(outputs, lambda output: output["output_type"] == "stream"):
        if not is_stream:
            result += [_clean(output) for output in group]
            continue
        texts: dict[str, str] = {}
        for output in group:
            texts[output["name"]] = texts.get(output["name"], "") + output["text"]
        for name in sorted(texts):
            text = _clean(fold_text(texts[name]))
            result.append({"output_type": "stream", "name": name, "text": text})
    return result


def fold_text(text: str) -> str:
    """Text after its backspaces and carriage returns, as JupyterLab's `fixOverwrittenChars` has it."""
    done = []
    for line in text.split("\n"):
        kept: list[str] = []
        for character in line:
            if character != "\b":
                kept.append(character)
            elif kept and kept[-1] != "\r":
                kept.pop()
        body = "".join(kept)
        ending = "\r" if body.endswith("\r") else ""
        done.append(body.removesuffix("\r").rpartition("\r")[2] + ending)
    return "\n".join(done)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        for pattern, replacement in _REPLACEMENTS:
            value = pattern.sub(replacement, value)
        return value
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
