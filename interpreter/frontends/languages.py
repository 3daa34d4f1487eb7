"""Languages by their short codes: their kernelspecs, and a client's code as the code of a cell. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interpreter.frontends.scripts import cell_of_script, exit_code
from interpreter.models import Run

_LANGUAGES: Mapping[str, tuple[str, ...]] = {
    "py": ("python",),
    "bash": ("python",),
    "js": ("javascript", "typescript"),
    "ts": ("typescript",),
    "c": ("c",),
    "cpp": ("c++", "c++11", "c++14", "c++17", "c++20", "c++23"),
    "java": ("java",),
    "php": ("php",),
    "rs": ("rust",),
    "go": ("go",),
    "d": ("d",),
    "f90": ("fortran",),
    "r": ("r",),
}
"""The codes (LibreChat's list), and what kernelspecs call the language.

bash runs in the Python kernel of the session, so that both share one folder and one record.
"""

_ALIASES = {
    "python": "py",
    "python3": "py",
    "sh": "bash",
    "shell": "bash",
    "javascript": "js",
    "node": "js",
    "nodejs": "js",
    "typescript": "ts",
    "rust": "rs",
}

_BASH = (
    "%%script bash -c 'set -m; bash /dev/fd/3 3<&0 </dev/null & set +m; "
    'trap "kill -INT -- -$!" INT; wait $!; set -- $?; kill -KILL -- -$! 2>/dev/null; exit $1\'\n'
)
"""The first line of a cell that runs a bash script.

The script comes by descriptor 3, so that its commands find an empty stdin instead of the script. It
has a process group of its own, of which nothing is left when it ends: what it leaves in the background
would hold the cell. No variable has a name that IPython could replace.
"""

_EXIT_STATUS = re.compile(r"returned non-zero exit status (\d+)|died with <Signals\.(\w+)")


@dataclass(frozen=True, slots=True)
class Language:
    """A language that can run here: its code, and the kernelspec (None: the default one)."""

    code: str
    kernel_name: str


def parse_language(lang: str) -> str | None:
    """The code of a language, which may go by another name; None for one that is not listed."""
    known = lang.strip().lower()
    known = _ALIASES.get(known, known)
    return known if known in _LANGUAGES else None


def find_language(code: str, kernelspecs: Mapping[str, Any]) -> Language | None:
    """The kernelspec that runs the language, the default one first; None without one.

    ``kernelspecs`` is what `SessionManager.kernelspecs` gives.
    """
    specs = kernelspecs["kernelspecs"]
    default = kernelspecs["default"]
    for name in sorted(specs, key=lambda name: (name != default, name)):
        if specs[name]["language"].lower() in _LANGUAGES[code]:
            return Language(code, name)
    return None


def available_codes(kernelspecs: Mapping[str, Any]) -> list[str]:
    """The languages that can run here."""
    return [code for code in _LANGUAGES if find_language(code, kernelspecs)]


def cell_of(code: str, text: str, args: Sequence[str]) -> str:
    """The code of the cell that runs the client's code, with arguments where the language has them."""
    if code == "bash":
        script = text if text.strip() else ":"
        return _BASH + (f"set -- {shlex.join(args)}\n" if args else "") + script
    if code == "py":
        return cell_of_script(text, args)
    return text


def exit_status(code: str, run: Run) -> tuple[int, str | None] | None:
    """Exit status and signal of a script that failed by itself; None for any other run."""
    error = run.folded.error
    if code == "py" and (status := exit_code(run)) is not None:
        return status, None
    if code != "bash" or error is None or error.ename != "CalledProcessError":
        return None
    found = None
    for found in _EXIT_STATUS.finditer(error.evalue):  # noqa: B007 - the last one: the script comes before
        pass
    if found is None:
        return 1, None
    return (int(found[1]), None) if found[1] else (1, found[2])
