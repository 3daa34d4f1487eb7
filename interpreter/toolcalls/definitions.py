"""The tool as each dialect describes it to a model."""

from typing import Any

from interpreter.models import JSON
from interpreter.toolcalls.calls import TOOL_NAME, Dialect

_TITLE = "Run Python code"

_DESCRIPTION = """\
Run Python code in a Jupyter kernel and get back what it printed, the value of its last expression, \
and the traceback if it raised.
- State is kept: variables, imports and functions of earlier calls are there, unless a result says \
that the kernel was restarted.
- The value of the last expression is shown, as in a notebook; print() what else you need. Long output \
is cut in the middle.
- matplotlib figures and other rich displays are shown to the user; you are told that they were.
- The working directory holds the user's files. Save files there, with relative paths, and the user \
gets them; the result lists what was created or modified.
- There is no stdin: input() raises an error.
- IPython syntax works (%pip install NAME for a missing package, where the network allows it; !command \
for a shell command). Top-level await works.
Correct the code and call again when it failed."""

_CODE = "The Python source to run, as plain text without Markdown fences."
_TIMEOUT = "Seconds that the code may run before it is interrupted. Leave it out for the default."


def tool_definitions(dialect: Dialect) -> list[JSON]:
    """The tools, as the value of ``tools`` in a request of that dialect.

    For ``mcp`` it is the ``tools`` of a ``tools/list`` result. One tool, `TOOL_NAME`:
    ``code`` (required) and ``timeout`` (seconds).
    """
    if dialect is Dialect.OPENAI_CHAT:
        function = {"name": TOOL_NAME, "description": _DESCRIPTION, "parameters": _schema()}
        return [{"type": "function", "function": function}]
    if dialect is Dialect.OPENAI_RESPONSES:
        # strict wants every property to be required; `timeout` is not.
        return [
            {
                "type": "function",
                "name": TOOL_NAME,
                "description": _DESCRIPTION,
                "parameters": _schema(),
                "strict": False,
            }
        ]
    if dialect is Dialect.ANTHROPIC:
        return [{"name": TOOL_NAME, "description": _DESCRIPTION, "input_schema": _schema()}]
    if dialect is Dialect.GEMINI:
        declaration = {"name": TOOL_NAME, "description": _DESCRIPTION, "parameters": _open_schema()}
        return [{"functionDeclarations": [declaration]}]
    return [_mcp_tool()]


def _open_schema() -> dict[str, Any]:
    """The parameters in the OpenAPI subset that Gemini reads: no ``additionalProperties`` there."""
    return {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": _CODE},
            "timeout": {"type": "number", "description": _TIMEOUT},
        },
        "required": ["code"],
    }


def _schema() -> dict[str, Any]:
    return {**_open_schema(), "additionalProperties": False}


def _mcp_tool() -> JSON:
    """MCP's Tool. Code can overwrite the session's files and may reach the network: the hints say so."""
    return {
        "name": TOOL_NAME,
        "title": _TITLE,
        "description": _DESCRIPTION,
        "inputSchema": _schema(),
        "annotations": {
            "title": _TITLE,
            "readOnlyHint": False,
            "destructiveHint": True,
            "idempotentHint": False,
            "openWorldHint": True,
        },
    }
