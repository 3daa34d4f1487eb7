"""Tools that a front end offers to a model as operations of an OpenAPI document. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator

from interpreter.api.validation import check
from interpreter.models import JSON
from interpreter.toolcalls import TOOL_NAME, Dialect, tool_definitions

_SESSION_ID: JSON = {
    "type": "string",
    "description": "Leave it out: the chat has a session of its own. When an answer says that its session is "
    "new and names it, pass its session_id to go on in it.",
}
_FIGURES = "When a result says that figures are saved and not seen yet, show them with read_file."
FILE: JSON = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "size": {"type": "integer", "description": "Bytes."},
        "mime_type": {"type": "string"},
        "change": {"enum": ["created", "modified", "deleted"]},
    },
    "required": ["path", "size", "mime_type"],
}
FILES: JSON = {"type": "array", "items": FILE}
TEXT: JSON = {"type": "string"}


@dataclass(frozen=True, slots=True)
class Tool:
    """One operation: ``POST /openapi-tools/<name>`` with a JSON object."""

    name: str
    summary: str
    description: str
    properties: Mapping[str, JSON]
    required: tuple[str, ...]
    answer: Mapping[str, JSON]

    @property
    def path(self) -> str:
        """Its path below the tool server's address."""
        return f"/{self.name}"

    @property
    def schema(self) -> JSON:
        """Of its arguments."""
        return {
            "type": "object",
            "properties": {**self.properties, "session_id": _SESSION_ID},
            "required": list(self.required),
        }

    def check(self, arguments: Mapping[str, Any]) -> None:
        """InvalidRequestError about the first argument that is wrong; unknown ones are ignored."""
        check(Draft202012Validator(self.schema), arguments)


def _execute_python() -> Tool:
    function: JSON = tool_definitions(Dialect.OPENAI_CHAT)[0]["function"]
    return Tool(
        TOOL_NAME,
        "Run Python code",
        f"{function['description']}\n{_FIGURES}",
        function["parameters"]["properties"],
        ("code",),
        {
            "session_id": TEXT,
            "run_id": TEXT,
            "status": {
                "type": "string",
                "description": "ok, error (the code raised), timeout, interrupted, aborted, kernel_died, cancelled.",
            },
            "output": {
                "type": "string",
                "description": "What the code printed, its last value, its traceback.",
            },
            "files": {**FILES, "description": "What the code created, modified or deleted."},
            "images": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Figures as data URIs, for clients that send `X-Inline-Images: true`.",
            },
        },
    )


EXECUTE_PYTHON = _execute_python()
