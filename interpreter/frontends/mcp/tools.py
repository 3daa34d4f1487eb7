"""The tools as MCP describes them, and runs as MCP's results. Pure."""

import json
from collections.abc import Sequence
from enum import StrEnum
from urllib.parse import quote, unquote

from interpreter.frontends.pictures import find_picture
from interpreter.models import JSON, FileChange, Run
from interpreter.toolcalls import Answer, Dialect, shorten, tool_definitions, tool_messages
from interpreter.workspace import FileInfo

LIST_FILES = "list_files"
RESTART_SESSION = "restart_session"

MAX_LINKS = 20
MAX_IMAGE_BYTES = 600_000  # base64; clients of the Python SDK take no event of more than 1 MiB
_MAX_FIELD_BYTES = 64 * 1024
_LEFT_OUT = (
    "But {} of the figures took too much room and was not shown: draw it smaller, or save it as a file."
)
_SCHEME = "interpreter://files/"


class Form(StrEnum):
    """How results look: MCP's full form, the keys that SMG maps, or the bare text of gpt-oss' tool."""

    FULL = "full"
    SMG = "smg"
    TEXT = "text"


INSTRUCTIONS = (
    "Runs Python in a Jupyter kernel of its own. A session keeps variables, imports and files between "
    "calls; its id is `session_id` in every result. Files that the code writes are listed in the result "
    "and can be read as resources."
)

_STATELESS_HINT = (
    "The result's session_id names the session: pass it in every later call, or the next call starts "
    "with nothing defined."
)
_SESSION = "The session to run in: session_id of an earlier result."
_OWN = " Leave it out to use the session of this connection."
_NEW = " Leave it out in the first call only, which makes a new session."
_FILE = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "size": {"type": "integer"},
        "mime_type": {"type": "string"},
        "url": {"type": "string", "description": "Path below the service's address."},
        "uri": {"type": "string", "description": "For resources/read."},
        "change": {"enum": ["created", "modified", "deleted"]},
    },
    "required": ["path", "size", "mime_type"],
}
_ERROR = {
    "type": ["object", "null"],
    "properties": {
        "ename": {"type": "string"},
        "evalue": {"type": "string"},
        "traceback": {"type": "array", "items": {"type": "string"}},
        "line": {"type": ["integer", "null"]},
    },
}
RUN_SCHEMA: JSON = {
    "type": "object",
    "properties": {
        "session_id": {"type": "string"},
        "run_id": {"type": "string"},
        "status": {
            "type": "string",
            "description": "ok, error (the code raised), timeout, interrupted, aborted, kernel_died or cancelled.",
        },
        "stdout": {"type": "string"},
        "stderr": {"type": "string"},
        "result": {"type": ["string", "null"], "description": "The value of the last expression."},
        "error": _ERROR,
        "files": {"type": "array", "items": _FILE, "description": "What the code created or changed."},
        "notices": {"type": "array", "items": {"type": "string"}},
        "execution_count": {"type": ["integer", "null"]},
        "truncated": {"type": "boolean"},
        "kernel_restarted": {"type": "boolean"},
        "duration_ms": {"type": ["integer", "null"]},
        "notebook_url": {"type": "string"},
    },
    "required": ["session_id", "run_id", "status", "stdout", "stderr", "result", "error", "files"],
}
_FILES_SCHEMA: JSON = {
    "type": "object",
    "properties": {
        "session_id": {"type": "string"},
        "files": {"type": "array", "items": _FILE},
        "has_more": {"type": "boolean"},
    },
    "required": ["session_id", "files", "has_more"],
}


def list_tools(form: Form, *, stateless: bool) -> list[JSON]:
    """The tools of a ``tools/list`` result.

    For gpt-oss' tool the list is empty: its model knows the tool from the prompt it was trained with,
    and vLLM would add a schema to it.
    """
    if form is Form.TEXT:
        return []
    session = {"type": "string", "description": _SESSION + (_NEW if stateless else _OWN)}
    run: JSON = tool_definitions(Dialect.MCP)[0]
    schema = run["inputSchema"]
    run["inputSchema"] = {**schema, "properties": {**schema["properties"], "session_id": session}}
    if stateless:
        run["description"] += f"\n{_STATELESS_HINT}"
    if form is Form.SMG:
        return [run]
    run["outputSchema"] = RUN_SCHEMA
    return [run, _files_tool(session), _restart_tool(session)]


def _files_tool(session: JSON) -> JSON:
    return {
        "name": LIST_FILES,
        "title": "List files",
        "description": "List the files in a session's working directory.",
        "inputSchema": _only_session(session),
        "outputSchema": _FILES_SCHEMA,
        "annotations": {"title": "List files", "readOnlyHint": True, "openWorldHint": False},
    }


def _restart_tool(session: JSON) -> JSON:
    return {
        "name": RESTART_SESSION,
        "title": "Restart the kernel",
        "description": "Restart a session's kernel: variables and imports are gone, files stay.",
        "inputSchema": _only_session(session),
        "annotations": {
            "title": "Restart the kernel",
            "readOnlyHint": False,
            "destructiveHint": True,
            "idempotentHint": True,
            "openWorldHint": False,
        },
    }


def _only_session(session: JSON) -> JSON:
    return {"type": "object", "properties": {"session_id": session}, "additionalProperties": False}


def text_result(text: str, *, is_error: bool = False) -> JSON:
    """A result that is a sentence."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def run_result(answer: Answer, form: Form, max_bytes: int, notes: Sequence[str], *, links: bool) -> JSON:
    """The ``tools/call`` result of a run. ``notes`` are sentences for the model about its session."""
    run = answer.run
    assert run is not None
    text = "\n\n".join((*notes, answer.text))
    if form is Form.TEXT:
        return text_result(text)
    (result,) = tool_messages(Dialect.MCP, [answer])
    pictures = _fitting([block for block in result["content"] if block["type"] == "image"])
    shown = sum(find_picture(output) is not None for output in run.folded.outputs)
    if (left_out := shown - len(pictures)) > 0 and not answer.is_error:
        text += f"\n\n{_LEFT_OUT.format(left_out)}"
    if form is Form.SMG:
        return _smg_result(run, text, pictures)
    content: list[JSON] = [{"type": "text", "text": text}, *pictures]
    if links:
        content += [link_of(run.session_id, file) for file in run.files if file.change != "deleted"][
            :MAX_LINKS
        ]
    structured = _structured(run, min(max_bytes, _MAX_FIELD_BYTES))
    return {"content": content, "structuredContent": structured, "isError": answer.is_error}


def _fitting(pictures: Sequence[JSON]) -> list[JSON]:
    """The first pictures that fit into an answer."""
    left, found = MAX_IMAGE_BYTES, []
    for picture in pictures:
        if (size := len(picture["data"])) <= left:
            left -= size
            found.append(picture)
    return found


def _smg_result(run: Run, text: str, pictures: Sequence[JSON]) -> JSON:
    """The keys that SMG's ``code_interpreter_call`` format maps; the text never holds an image."""
    shown = {"container_id": run.session_id, "code": run.code, "logs": text}
    urls = [f"data:{picture['mimeType']};base64,{picture['data']}" for picture in pictures]
    outputs = [{"type": "image", "url": url} for url in urls]
    content = [{"type": "text", "text": json.dumps(shown, ensure_ascii=False)}]
    return {"content": content, "structuredContent": {**shown, "outputs": outputs}, "isError": False}


def _structured(run: Run, max_bytes: int) -> JSON:
    whole = run.as_json()
    error = whole["error"]
    if error is not None and sum(len(line) for line in error["traceback"]) > max_bytes:
        error["traceback"] = [shorten("\n".join(error["traceback"]), max_bytes, "the traceback")]
        error["evalue"] = shorten(error["evalue"], max_bytes, "the message")
    kept = ("session_id", "status", "execution_count", "truncated", "kernel_restarted", "notices")
    return {
        "run_id": run.id,
        **{name: whole[name] for name in (*kept, "duration_ms", "notebook_url")},
        "stdout": shorten(run.folded.stdout, max_bytes, "stdout"),
        "stderr": shorten(run.folded.stderr, max_bytes, "stderr"),
        "result": None
        if run.folded.result is None
        else shorten(run.folded.result, max_bytes, "the last value"),
        "error": error,
        "files": [
            {**file.as_json(), "uri": uri_of(run.session_id, file.path)} for file in run.files[:MAX_LINKS]
        ],
    }


def files_result(session_id: str, files: Sequence[FileInfo], *, has_more: bool, links: bool) -> JSON:
    """The result of `LIST_FILES`."""
    lines = [f"- {file.path} ({file.size} bytes, {file.mime_type})" for file in files]
    if has_more:
        lines.append("- and more")
    text = "\n".join(["Files:", *lines]) if lines else "The session has no files."
    content: list[JSON] = [{"type": "text", "text": text}]
    if links:
        content += [link_of(session_id, file) for file in files[:MAX_LINKS]]
    rows = [{**file.as_json(session_id), "uri": uri_of(session_id, file.path)} for file in files]
    structured = {"session_id": session_id, "files": rows, "has_more": has_more}
    return {"content": content, "structuredContent": structured, "isError": False}


def link_of(session_id: str, file: FileInfo | FileChange) -> JSON:
    """A resource link to a file."""
    return {"type": "resource_link", **resource_of(session_id, file)}


def resource_of(session_id: str, file: FileInfo | FileChange) -> JSON:
    """A file as ``resources/list`` shows it."""
    return {
        "uri": uri_of(session_id, file.path),
        "name": file.path,
        "mimeType": file.mime_type,
        "size": file.size,
    }


def uri_of(session_id: str, path: str) -> str:
    """The URI of a session's file."""
    return f"{_SCHEME}{session_id}/{quote(path)}"


URI_TEMPLATE: JSON = {
    "uriTemplate": f"{_SCHEME}{{session_id}}/{{+path}}",
    "name": "session-file",
    "title": "File of a session",
    "description": "A file in the working directory of a session.",
}


def parse_uri(uri: str) -> tuple[str, str] | None:
    """Session id and path of what `uri_of` made; None for any other URI."""
    if not uri.startswith(_SCHEME):
        return None
    session_id, _, path = uri.removeprefix(_SCHEME).partition("/")
    try:
        return (session_id, unquote(path, errors="strict")) if session_id and path else None
    except UnicodeDecodeError:
        return None
