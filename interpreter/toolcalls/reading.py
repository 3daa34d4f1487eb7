"""What a call asks for: its tool's name and arguments checked, and repaired where one reading fits."""

import math
import re
from collections.abc import Mapping
from typing import Any

from interpreter.toolcalls.calls import TOOL_NAME, BadCall, CallKind, Invocation, ToolCall
from interpreter.toolcalls.repair import BareCode, Unreadable, decode_arguments
from interpreter.toolcalls.snippets import unfenced_code

_NAMES = frozenset(
    f"{TOOL_NAME} python python3 ipython code_interpreter run_python python_interpreter execute_code run_code "
    "execute_python_code run_python_code python_exec exec_python python_repl execute exec_code eval_python "
    "code_execution python_execute jupyter".split()
)
# Models add the namespace of the tool or the number of the call: functions.execute_python:0, mcp__x__run_code
_NAMESPACE = re.compile(r"__|[./:]")
_CALL_NUMBER = re.compile(r":\d+$")

_CODE_KEYS = frozenset(
    [
        "source",
        "script",
        "python",
        "python_code",
        "py",
        "input",
        "cmd",
        "command",
        "query",
        "program",
        "snippet",
        "content",
        "text",
        "body",
        "expression",
        "code_string",
        "source_code",
        "cell",
        "statement",
        "code_block",
        "code_snippet",
        "pythoncode",
        "sourcecode",
        "__arg1",
    ]
)
_TIMEOUT_KEYS = ("timeout", "timeout_seconds", "timeout_s", "timeout_sec")
_WRAPPERS = frozenset({"arguments", "args", "parameters", "params", "input", "kwargs", "tool_input"})
_SECONDS = re.compile(r"\s*(\d{1,9}(?:\.\d{0,9})?)\s*(?:s|secs?|seconds?)?\s*", re.IGNORECASE)

_HOW_TO_CALL = (
    f"Call {TOOL_NAME} with one JSON object, for example "
    '{"code": "print(1 + 1)"}; "code" is the Python source as a string and "timeout" (seconds) is optional.'
)


def read_call(call: ToolCall) -> Invocation | BadCall:
    """The code and timeout of a call, or a sentence that tells the model how to call.

    Code in valid arguments is passed on as it is, except that a leading byte order mark goes and
    that code which is one fenced block as a whole is unwrapped. Never raises.
    """
    if not is_tool_name(call.name):
        return _bad(f"there is no tool named {_shown(call.name)}; the tool is named {TOOL_NAME}")
    if call.kind is CallKind.CUSTOM:
        if not isinstance(call.arguments, str):
            return _bad("the input is not text")
        return _invocation(call.arguments, None)
    arguments = call.arguments
    if isinstance(arguments, str):
        arguments = decode_arguments(arguments)
    if isinstance(arguments, BareCode):
        return _invocation(arguments.code, None)
    if isinstance(arguments, Unreadable):
        return _bad(arguments.problem)
    if arguments is None or arguments == {}:
        return _bad("the arguments are empty")
    if not isinstance(arguments, Mapping):
        return _bad("the arguments are not a JSON object")
    return _from_object(arguments, 0)


def is_tool_name(name: str) -> bool:
    """Whether this names the tool, as it is or as models write it."""
    plain = _CALL_NUMBER.sub("", name.strip().lower()).replace("-", "_").replace(" ", "_")
    return plain in _NAMES or _NAMESPACE.split(plain)[-1] in _NAMES


def _bad(problem: str) -> BadCall:
    return BadCall(f"The code was not run: {problem}. {_HOW_TO_CALL}")


def _shown(name: str) -> str:
    """The name as one short line of printable ASCII."""
    return ascii(name if len(name) <= 80 else name[:80] + "...")


def _from_object(arguments: Mapping[str, Any], depth: int) -> Invocation | BadCall:
    timeout = _timeout(arguments)
    if isinstance(timeout, BadCall):
        return timeout
    if "code" in arguments:
        return _invocation(arguments["code"], timeout)
    keys = [key for key in arguments if isinstance(key, str) and _is_code_key(key)]
    strings = [key for key in keys if isinstance(arguments[key], str)]
    wrapped = [key for key in arguments if key in _WRAPPERS and isinstance(arguments[key], Mapping | str)]
    if len(wrapped) == 1 and depth == 0:
        inside = _unwrapped(arguments[wrapped[0]])
        if inside is not None:
            read = _from_object(inside, 1)
            if isinstance(read, Invocation) and read.timeout is None:
                return Invocation(read.code, timeout)
            return read
    if len(strings) == 1:
        return _invocation(arguments[strings[0]], timeout)
    if len(strings) > 1:
        return _bad(f'"code" is missing, and {_listed(strings)} could each be meant')
    return _bad('"code" is missing from the arguments')


def _is_code_key(key: str) -> bool:
    plain = key.strip().lower().replace("-", "_").replace(" ", "_")
    return plain in _CODE_KEYS or plain == "code"


def _listed(keys: list[str]) -> str:
    return " and ".join(f'"{key}"' for key in keys[:4])


def _unwrapped(value: Any) -> Mapping[str, Any] | None:
    """The arguments inside ``{"arguments": …}``; text counts only when it is an object's."""
    if isinstance(value, str):
        if not value.lstrip().startswith("{"):
            return None
        value = decode_arguments(value)
    return value if isinstance(value, dict) and any(map(_is_code_key, map(str, value))) else None


def _invocation(code: Any, timeout: float | None) -> Invocation | BadCall:
    if not isinstance(code, str):
        return _bad('"code" is not a string')
    code = code.removeprefix("\ufeff")
    inside = unfenced_code(code)
    if inside is not None:
        code = inside
    if not code.strip():
        return _bad("the code is empty")
    try:
        code.encode()
    except UnicodeEncodeError:
        return _bad("the code holds half of a surrogate pair, which is no character")
    return Invocation(code, timeout)


def _timeout(arguments: Mapping[str, Any]) -> float | BadCall | None:
    value = next((arguments[key] for key in _TIMEOUT_KEYS if arguments.get(key) is not None), None)
    if isinstance(value, str):
        if not value.strip():
            return None
        match = _SECONDS.fullmatch(value)
        value = float(match[1]) if match else math.nan
    if value is None:
        return None
    # The bound keeps an integer of thousands of digits from float().
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e9:
        return _bad('"timeout" is not a positive number of seconds')
    return float(value)
