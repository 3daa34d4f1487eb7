"""The OpenAPI document of the tool server: each operation is a tool that a model can use as it is. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator

from interpreter import __version__
from interpreter.api.validation import check
from interpreter.models import JSON
from interpreter.toolcalls import TOOL_NAME, Dialect, tool_definitions

PREFIX = "/openapi-tools"

_SESSION_ID: JSON = {
    "type": "string",
    "description": "Leave it out: the chat has a session of its own. When an answer says that its session is "
    "new and names it, pass its session_id to go on in it.",
}
_FIGURES = "When a result says that figures are saved and not seen yet, show them with read_file."
_PATH: JSON = {"type": "string", "description": "Path of the file, relative to the working directory."}
_FILE: JSON = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "size": {"type": "integer", "description": "Bytes."},
        "mime_type": {"type": "string"},
        "change": {"enum": ["created", "modified", "deleted"]},
    },
    "required": ["path", "size", "mime_type"],
}
_FILES: JSON = {"type": "array", "items": _FILE}
_TEXT: JSON = {"type": "string"}


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
            "session_id": _TEXT,
            "run_id": _TEXT,
            "status": {
                "type": "string",
                "description": "ok, error (the code raised), timeout, interrupted, aborted, kernel_died, cancelled.",
            },
            "output": {
                "type": "string",
                "description": "What the code printed, its last value, its traceback.",
            },
            "files": {**_FILES, "description": "What the code created, modified or deleted."},
            "images": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Figures as data URIs, for clients that send `X-Inline-Images: true`.",
            },
        },
    )


EXECUTE_PYTHON = _execute_python()
LIST_FILES = Tool(
    "list_files",
    "List files",
    "List the files in the working directory of the Python session: the user's, and those that code saved.",
    {},
    (),
    {"session_id": _TEXT, "files": _FILES, "has_more": {"type": "boolean"}},
)
READ_FILE = Tool(
    "read_file",
    "Read a file",
    "Read a file of the working directory. Text is returned as text, the middle of a long one is left out. "
    "An image is shown. Use execute_python for other formats and for parts of large files.",
    {"path": _PATH},
    ("path",),
    {
        "session_id": _TEXT,
        "path": _TEXT,
        "size": {"type": "integer"},
        "mime_type": _TEXT,
        "content": _TEXT,
    },
)
WRITE_FILE = Tool(
    "write_file",
    "Write a file",
    "Write a file into the working directory, where code finds it. What was there is replaced; missing folders "
    "are made.",
    {
        "path": _PATH,
        "content": {"type": "string", "description": "The whole content of the file."},
        "encoding": {
            "type": "string",
            "enum": ["utf-8", "base64"],
            "description": "base64 for content that is not text; utf-8 when left out.",
        },
    },
    ("path", "content"),
    {"session_id": _TEXT, **_FILE["properties"]},
)
DELETE_FILE = Tool(
    "delete_file",
    "Delete a file",
    "Delete a file, or an empty folder, of the working directory.",
    {"path": _PATH},
    ("path",),
    {"session_id": _TEXT, "path": _TEXT},
)
RESTART_SESSION = Tool(
    "restart_session",
    "Restart Python",
    "Restart the Python kernel: variables and imports are gone, files stay. For code that hangs or for a state "
    "that is beyond repair.",
    {},
    (),
    {"session_id": _TEXT},
)

TOOLS = (EXECUTE_PYTHON, LIST_FILES, READ_FILE, WRITE_FILE, DELETE_FILE, RESTART_SESSION)


def build_document(address: str, tools: Iterable[Tool] = TOOLS) -> JSON:
    """The document (OpenAPI 3.1) of the tool server that is reached at ``address``."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Python code interpreter",
            "version": __version__,
            "description": "Runs Python in a Jupyter kernel of the chat's own, with files and plots.",
        },
        "servers": [{"url": address}],
        "security": [{"bearer": []}],
        "paths": {tool.path: {"post": _operation(tool)} for tool in tools},
        "components": {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(tool: Tool) -> JSON:
    """Schemas stand where they are used: some importers follow no references."""
    answer = {"schema": {"type": "object", "properties": dict(tool.answer)}}
    error = {"schema": {"type": "object", "properties": {"message": _TEXT}}}
    return {
        "operationId": tool.name,
        "summary": tool.summary,
        "description": tool.description,
        "requestBody": {
            "required": bool(tool.required),
            "content": {"application/json": {"schema": tool.schema}},
        },
        "responses": {
            "200": {"description": "What came of it.", "content": {"application/json": answer}},
            "default": {"description": "Why it failed.", "content": {"application/json": error}},
        },
    }
