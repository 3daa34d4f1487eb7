"""The OpenAPI document of Open Terminal: each operation becomes a tool of Open WebUI. Pure.

Ids, paths and parameters are those of Open Terminal (0.11), because Open WebUI knows them by name.
"""

from collections.abc import Mapping
from typing import Any

from interpreter import __version__
from interpreter.frontends.tools import EXECUTE_PYTHON
from interpreter.models import JSON

PREFIX = "/open-terminal"
HOME = "/mnt/data"

PROMPT = f"""\
You have a computer of this chat's own, with a shell and a Python kernel. Files are in {HOME}, which is \
the working directory of both; they and the variables of execute_python are kept between calls. \
Use execute_python for Python, run_command for everything else; commands run one after the other, and \
what a command leaves in the background ends with it. Check the output before you say that something \
worked, and use display_file to show a file to the user."""

_PATH = {"type": "string", "description": f"Path of the file, absolute below {HOME} or relative to it."}
_FOLDER = {
    "type": "string",
    "description": f"Folder, absolute below {HOME} or relative to it.",
    "default": ".",
}
_LINE = {"type": "integer", "minimum": 1}
_WAIT = {"type": "number", "minimum": 0, "maximum": 300}
_TAIL = {"type": "integer", "minimum": 1, "description": "Only the last N pieces of output."}
_MAX_RESULTS = {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}
_PROCESS = {"type": "string", "description": "The id that run_command gave."}


def _operation(
    name: str,
    summary: str,
    description: str,
    query: Mapping[str, JSON] | None = None,
    *,
    body: Mapping[str, JSON] | None = None,
    required: tuple[str, ...] = (),
    process: bool = False,
) -> JSON:
    parameters: list[JSON] = [
        {"name": key, "in": "query", "required": key in required, "schema": schema}
        for key, schema in (query or {}).items()
    ]
    if process:
        parameters.append({"name": "process_id", "in": "path", "required": True, "schema": _PROCESS})
    found: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "description": description,
        "parameters": parameters,
        "responses": {"200": {"description": "What came of it."}},
    }
    if body is not None:
        schema = {"type": "object", "properties": dict(body), "required": [n for n in required if n in body]}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


_REPLACEMENT: JSON = {
    "type": "object",
    "properties": {
        "target": {"type": "string", "description": "Text to find, exactly."},
        "replacement": {"type": "string", "description": "What to put in its place."},
        "start_line": {**_LINE, "description": "Look from this line on."},
        "end_line": {**_LINE, "description": "Look up to this line."},
        "allow_multiple": {"type": "boolean", "description": "Replace all; else more than one is an error."},
    },
    "required": ["target", "replacement"],
}

PATHS: Mapping[str, JSON] = {
    "/execute_python": {
        "post": _operation(
            EXECUTE_PYTHON.name,
            EXECUTE_PYTHON.summary,
            EXECUTE_PYTHON.description,
            body=EXECUTE_PYTHON.properties,
            required=("code",),
        )
    },
    "/execute": {
        "get": _operation("list_processes", "List commands", "List the commands of this chat."),
        "post": _operation(
            "run_command",
            "Run a command",
            "Run a bash command, and get its output and exit code. Give `wait`; a command that takes longer goes "
            "on, and get_process_status has the rest of its output.",
            {
                "wait": {**_WAIT, "description": "Seconds to wait for its end; 30 when left out."},
                "tail": _TAIL,
            },
            body={
                "command": {"type": "string", "description": "The command, a script of several lines too."},
                "cwd": {"type": "string", "description": f"The folder to run it in; {HOME} when left out."},
                "env": {
                    "type": "object",
                    "additionalProperties": {"type": "string"},
                    "description": "Environment variables to set.",
                },
            },
            required=("command",),
        ),
    },
    "/execute/{process_id}/status": {
        "get": _operation(
            "get_process_status",
            "Look at a command",
            "Get the status, the exit code and the output of a command that run_command started.",
            {
                "wait": {**_WAIT, "description": "Seconds to wait for its end; at once when left out."},
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "next_offset of the last answer: only what came since.",
                },
                "tail": _TAIL,
            },
            process=True,
        )
    },
    "/execute/{process_id}": {
        "delete": _operation("kill_process", "End a command", "End a command that runs.", process=True)
    },
    "/files/list": {
        "get": _operation(
            "list_files", "List files", "List files and folders of a folder.", {"directory": _FOLDER}
        )
    },
    "/files/read": {
        "get": _operation(
            "read_file",
            "Read a file",
            "Read a text file, or some of its lines; an image is shown to you. Use display_file to show a file to "
            "the user.",
            {
                "path": _PATH,
                "start_line": {**_LINE, "description": "First line, from 1."},
                "end_line": {**_LINE, "description": "Last line."},
            },
            required=("path",),
        )
    },
    "/files/display": {
        "get": _operation(
            "display_file",
            "Show a file to the user",
            "Open a file in the user's viewer. You do not get its content.",
            {"path": _PATH},
            required=("path",),
        )
    },
    "/files/write": {
        "post": _operation(
            "write_file",
            "Write a file",
            "Write a text file. What was there is replaced; missing folders are made.",
            body={"path": _PATH, "content": {"type": "string", "description": "The whole content."}},
            required=("path", "content"),
        )
    },
    "/files/replace": {
        "post": _operation(
            "replace_file_content",
            "Replace text in a file",
            "Find and replace exact text in a file, several in one call.",
            body={"path": _PATH, "replacements": {"type": "array", "items": _REPLACEMENT}},
            required=("path", "replacements"),
        )
    },
    "/files/grep": {
        "get": _operation(
            "grep_search",
            "Search in files",
            "Search text files for a Python regular expression; gives files, line numbers and lines.",
            {
                "query": {"type": "string", "description": "What to search for."},
                "path": _FOLDER,
                "regex": {
                    "type": "boolean",
                    "default": True,
                    "description": "false: `query` is plain text.",
                },
                "case_insensitive": {"type": "boolean", "default": False},
                "include": {"type": "array", "items": {"type": "string"}, "description": "Like `*.py`."},
                "match_per_line": {
                    "type": "boolean",
                    "default": True,
                    "description": "false: file names only.",
                },
                "max_results": _MAX_RESULTS,
            },
            required=("query",),
        )
    },
    "/files/glob": {
        "get": _operation(
            "glob_search",
            "Find files",
            "Find files and folders by name.",
            {
                "pattern": {"type": "string", "description": "Like `*.py`."},
                "path": _FOLDER,
                "exclude": {"type": "array", "items": {"type": "string"}, "description": "Like `*.tmp`."},
                "type": {"type": "string", "enum": ["file", "directory", "any"], "default": "any"},
                "max_results": _MAX_RESULTS,
            },
            required=("pattern",),
        )
    },
}


def build_document(address: str) -> JSON:
    """The document (OpenAPI 3.1) of the terminal that is reached at ``address``."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Open Terminal",
            "version": __version__,
            "description": "A computer for each chat.",
        },
        "servers": [{"url": address}],
        "paths": dict(PATHS),
    }
