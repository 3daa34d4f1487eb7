"""The OpenAPI document of the tool server: each operation is a tool that a model can use as it is. Pure."""

from collections.abc import Iterable

from interpreter import __version__
from interpreter.frontends.tools import EXECUTE_PYTHON, FILE, FILES, TEXT, Tool
from interpreter.models import JSON

PREFIX = "/openapi-tools"

_PATH: JSON = {"type": "string", "description": "Path of the file, relative to the working directory."}


LIST_FILES = Tool(
    "list_files",
    "List files",
    "List the files in the working directory of the Python session: the user's, and those that code saved.",
    {},
    (),
    {"session_id": TEXT, "files": FILES, "has_more": {"type": "boolean"}},
)
READ_FILE = Tool(
    "read_file",
    "Read a file",
    "Read a file of the working directory. Text is returned as text, the middle of a long one is left out. "
    "An image is shown. Use execute_python for other formats and for parts of large files.",
    {"path": _PATH},
    ("path",),
    {
        "session_id": TEXT,
        "path": TEXT,
        "size": {"type": "integer"},
        "mime_type": TEXT,
        "content": TEXT,
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
    {"session_id": TEXT, **FILE["properties"]},
)
DELETE_FILE = Tool(
    "delete_file",
    "Delete a file",
    "Delete a file, or an empty folder, of the working directory.",
    {"path": _PATH},
    ("path",),
    {"session_id": TEXT, "path": TEXT},
)
RESTART_SESSION = Tool(
    "restart_session",
    "Restart Python",
    "Restart the Python kernel: variables and imports are gone, files stay. For code that hangs or for a state "
    "that is beyond repair.",
    {},
    (),
    {"session_id": TEXT},
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
    error = {"schema": {"type": "object", "properties": {"message": TEXT}}}
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
