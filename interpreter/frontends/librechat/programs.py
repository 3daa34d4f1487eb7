"""Programmatic tool calling: code whose functions are the client's tools. Pure.

The code runs once and waits where it calls a tool. ``kernel_side.py`` is in the kernel before its cell runs, so
that the record shows the client's code.
"""

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from interpreter.errors import InvalidRequestError
from interpreter.events import RunEvent
from interpreter.frontends.scripts import cell_of_script
from interpreter.models import JSON, Run, RunStatus

MIME = "application/vnd.interpreter.tool-calls+json"
PATIENCE = 300.0  # seconds that the code waits for the results of tools
MAX_TOOLS = 500

_BASH_RESERVED = frozenset(
    {
        *(
            "if",
            "then",
            "else",
            "elif",
            "fi",
            "case",
            "esac",
            "for",
            "select",
            "while",
            "until",
            "do",
            "done",
        ),
        *("in", "function", "time", "coproc", "return", "exit", "break", "continue", "shift", "export"),
        *("readonly", "local", "declare", "typeset", "unset", "alias", "unalias", "source", "echo", "printf"),
        *("read", "cd", "pwd", "kill", "trap", "wait", "eval", "exec", "jobs", "bg", "fg", "set", "let"),
        *("test", "true", "false"),
    }
)
_BASH_HEAD = """\
unset BASH_ENV
_tool_call() {
    local box input=${2-}
    [ -n "$input" ] || input='{}'
    box=$(mktemp -d "$TOOL_CALLS/XXXXXXXXXXXX") || return 1
    printf '%s' "$1" > "$box/name"
    printf '%s' "$input" > "$box/input"
    mv "$box" "$box.call"
    until [ -e "$box.call/status" ]; do sleep 0.03; done
    if [ "$(cat "$box.call/status")" = 0 ]; then
        cat "$box.call/result"
    else
        printf '%s: %s\\n' "$1" "$(cat "$box.call/result")" >&2
        return 1
    fi
}
"""
_FINDS_NAMES = re.compile(r"\b(?:globals|locals|vars|eval|exec)\b")
_ERRORS = {
    RunStatus.TIMEOUT: "Time limit exceeded",
    RunStatus.KERNEL_DIED: "Out of memory",
    RunStatus.CANCELLED: "Execution failed or timed out",
    RunStatus.INTERRUPTED: "Execution failed or timed out",
    RunStatus.ABORTED: "Execution failed or timed out",
}
"""Sentences that the client passes on to its model, by status; it passes on no others."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The results of the tools that an earlier answer asked for."""

    token: str
    results: Mapping[str, JSON]


def read_tools(body: Mapping[str, Any]) -> list[str]:
    """The names of the tools that the code may call. Raises InvalidRequestError."""
    tools = body.get("tools")
    if tools is None:
        return []
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"`tools` must be a list of at most {MAX_TOOLS} tools.", param="tools")
    names = [tool.get("name") if isinstance(tool, dict) else None for tool in tools]
    if not all(isinstance(name, str) and name and name.isprintable() for name in names):
        raise InvalidRequestError("Each of `tools` needs a `name`.", param="tools")
    return [name for name in dict.fromkeys(names) if name is not None]


def read_continuation(body: Mapping[str, Any]) -> Continuation | None:
    """The continuation that a body is; None when it starts a program. Raises InvalidRequestError."""
    token = body.get("continuation_token")
    if token is None:
        return None
    results = body.get("tool_results", [])
    if not isinstance(token, str) or not isinstance(results, list):
        raise InvalidRequestError("`continuation_token` is text and `tool_results` a list.")
    kept = {item["call_id"]: item for item in results if isinstance(item, dict) and "call_id" in item}
    if not all(isinstance(call_id, str) for call_id in kept):
        raise InvalidRequestError("Each of `tool_results` needs a `call_id`.", param="tool_results")
    return Continuation(token, kept)


def preparation_of(code: str, tools: Sequence[str], folder: str, text: str) -> str:
    """Code for the kernel that makes the tools the functions of its next cell, which is for ``text``.

    Results of tools come to ``folder`` of the workspace.
    """
    functions = _functions(code, tools)
    source = resources.files(__package__).joinpath("kernel_side.py").read_text("utf-8")
    made = (
        "(lambda space: exec({!r}, space) or space['_ToolCalls']({!r}, {!r}))({{'__name__': 'tool_calls'}})"
    )
    lines = ["import asyncio", f"_tool_calls = {made.format(source, folder, PATIENCE)}"]
    if code == "bash":
        stubs = [f'{name}() {{ _tool_call {_quoted(tool)} "$@"; }}\n' for name, tool in functions.items()]
        lines.append(f"_tool_calls.head = {_BASH_HEAD + ''.join(stubs)!r}")
    else:
        names = _names_in(text, functions)
        lines += [f"{name} = _tool_calls.function({functions[name]!r})" for name in names]
    return "\n".join(lines) + "\n"


def cell_of_program(code: str, text: str) -> str:
    """The cell that runs the client's code in a prepared kernel."""
    if code == "bash":
        return f"await _tool_calls.bash({_literal(text)})\n"
    return cell_of_script(text, (), is_body=True)


def calls_of(event: RunEvent) -> list[JSON]:
    """The calls of tools that an event of the run is; none for most."""
    output = event.data.get("output") if event.kind == "output" else None
    shown = output.get("data", {}).get(MIME) if isinstance(output, dict) else None
    calls = shown.get("calls") if isinstance(shown, dict) else None
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def final_answer(run: Run, body: JSON) -> JSON:
    """The last answer of a program. Code that raised is completed: what it printed must be seen."""
    error = _ERRORS.get(run.status)
    if error is not None:
        return {**body, "status": "error", "error": error}
    return {**body, "status": "completed"}


def _functions(code: str, tools: Sequence[str]) -> dict[str, str]:
    """The tools by the name of their function; of two with the same the last has it, as for the client."""
    return {_bash_name(tool) if code == "bash" else _python_name(tool): tool for tool in tools}


def _names_in(text: str, functions: Iterable[str]) -> list[str]:
    """The functions that Python code may mean: the others would hide variables of the session.

    A client whose code calls no tool names all that it has.
    """
    if _FINDS_NAMES.search(text):
        return list(functions)
    words = set(re.findall(r"\w+", text))
    return [name for name in functions if name in words]


def _python_name(tool: str) -> str:
    name = re.sub(r"[^a-zA-Z0-9_]", "", re.sub(r"[-\s]", "_", tool))
    name = f"_{name}" if name[:1].isdigit() else name
    return f"{name}_tool" if keyword.iskeyword(name) or name == "_tool_calls" else name or "tool"


def _bash_name(tool: str) -> str:
    name = re.sub(r"[^a-zA-Z0-9_]", "", re.sub(r"[-\s.]", "_", tool))
    name = f"_{name}" if name[:1].isdigit() else name
    return f"{name}_tool" if name in _BASH_RESERVED or name == "_tool_call" else name or "tool"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _literal(script: str) -> str:
    """A Python literal of the script, as it is where that is possible: people read it in the record."""
    script = script if script.endswith("\n") else f"{script}\n"
    return repr(script) if "'''" in script or "\r" in script or "\0" in script else f"r'''{script}'''"
