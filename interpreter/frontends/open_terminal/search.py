"""Searches through a session's files, as programs for its shell: a model's patterns run in the sandbox. Pure."""

import ast
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from interpreter.errors import InvalidRequestError
from interpreter.models import JSON, Run

_MARK = "<<open-terminal>>"
_MAX_PATTERNS = 4096  # characters
_PROGRAM = """\
import fnmatch, json, os, re, sys
asked = json.loads(sys.argv[1])
top, limit, found = asked["path"] or ".", asked["max_results"], []

def wanted(path, patterns):
    return any(fnmatch.fnmatch(os.path.basename(path), p) or fnmatch.fnmatch(path, p) for p in patterns)

def walk():
    if os.path.isfile(top):
        yield top, "file"
    for folder, folders, files in os.walk(top):
        folders.sort()
        for kind, names in (("directory", folders), ("file", sorted(files))):
            for name in names:
                yield os.path.normpath(os.path.join(folder, name)), kind

def grep():
    flags = re.IGNORECASE if asked["case_insensitive"] else 0
    pattern = re.compile(asked["query"] if asked["regex"] else re.escape(asked["query"]), flags)
    for path, kind in walk():
        if kind != "file" or (asked["include"] and not wanted(path, asked["include"])):
            continue
        try:
            with open(path, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    if pattern.search(line):
                        if not asked["match_per_line"]:
                            yield {"file": path}
                            break
                        yield {"file": path, "line": number, "content": line.rstrip()[:1000]}
        except (OSError, ValueError):
            pass

def glob():
    for path, kind in walk():
        relative = os.path.relpath(path, top)
        if asked["type"] not in ("any", kind) or not wanted(relative, [asked["pattern"]]):
            continue
        if not wanted(relative, asked["exclude"]):
            try:
                status = os.stat(path)
            except OSError:
                continue
            yield {"path": relative, "type": kind, "size": status.st_size, "modified": status.st_mtime}

problem = None
try:
    if not os.path.exists(top):
        problem = "There is no such folder."
    else:
        for match in (grep if "query" in asked else glob)():
            if len(found) == limit:
                found.append(None)
                break
            found.append(match)
except re.error as error:
    problem = f"The regular expression is wrong: {error}."
truncated = len(found) > limit
print("MARK" + json.dumps({"matches": found[:limit], "truncated": truncated, "problem": problem}))
"""


def search_script(asked: Mapping[str, Any]) -> str:
    """The shell script that searches; `read_matches` reads what it prints."""
    program = _PROGRAM.replace("MARK", _MARK)
    arguments = json.dumps(dict(asked)).replace("'", "'\\''")
    return f"python3 - '{arguments}' <<'END_OF_PROGRAM'\n{program}END_OF_PROGRAM"


def read_matches(run: Run) -> tuple[list[JSON], bool]:
    """The matches, and whether there are more. Raises InvalidRequestError."""
    _, mark, text = run.folded.stdout.partition(_MARK)
    answer: JSON
    try:
        answer = json.loads(text) if mark else {"problem": "The search did not end; narrow it."}
    except ValueError:
        answer = {"problem": "There are too many matches; narrow the search."}
    if answer["problem"]:
        raise InvalidRequestError(answer["problem"])
    return answer["matches"], answer["truncated"]


def read_patterns(values: Sequence[str]) -> list[str]:
    """The patterns of a query. Open WebUI before 0.12 sends a list as one value: as Python writes it."""
    if len(values) == 1 and values[0].startswith("[") and len(values[0]) <= _MAX_PATTERNS:
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            found = ast.literal_eval(values[0])
            if isinstance(found, list) and all(isinstance(pattern, str) for pattern in found):
                return found
    return list(values)
