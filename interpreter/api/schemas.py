"""The JSON schemas (Draft 2020-12) of requests and responses: one table that validates and documents.

`Schemas.components` is what ``/openapi.json`` publishes, and `Schemas.validate` checks input with
the very same objects.
"""

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

from interpreter.api.paging import DEFAULT_LIMIT, MAX_LIMIT
from interpreter.api.shapes import reference, request, response
from interpreter.api.validation import check
from interpreter.models import JSON, RunStatus, SessionStatus
from interpreter.settings import NETWORKS, Settings, allowed_networks
from interpreter.toolcalls import MAX_CALLS, Dialect

_MAX_IDLE = 365 * 86400
_METADATA = {
    "type": ["object", "null"],
    "maxProperties": 16,
    "propertyNames": {"maxLength": 64},
    "additionalProperties": {"type": "string", "maxLength": 512},
    "description": "Up to 16 texts of your own (keys of up to 64, values of up to 512 characters).",
}
_TIME = {"type": "string", "format": "date-time"}
_MAYBE_TIME = {"type": ["string", "null"], "format": "date-time"}
_TEXT = {"type": "string"}
_MAYBE_TEXT = {"type": ["string", "null"]}
_COUNT = {"type": "integer", "minimum": 0}
_FLAG = {"type": "boolean"}
_TOKEN_OPTIONS = {
    "keep_state": {**_FLAG, "description": "One session for all runs over the Jupyter routes."},
    "stderr_to_stdout": {**_FLAG, "description": "Over the Jupyter routes, stdout repeats what stderr says."},
}


def _list_of(name: str) -> JSON:
    return response(
        {
            "data": {"type": "array", "items": reference(name)},
            "has_more": {"type": "boolean", "description": "Whether more follow after `last_id`."},
            "first_id": _MAYBE_TEXT,
            "last_id": _MAYBE_TEXT,
        }
    )


def _timeout(settings: Settings) -> JSON:
    return {
        "type": ["number", "null"],
        "exclusiveMinimum": 0,
        "maximum": settings.max_execute_timeout,
        "description": "Seconds that a run may take.",
    }


def _kernel_name(settings: Settings) -> JSON:
    return {
        "type": ["string", "null"],
        "minLength": 1,
        "maxLength": 200,
        "description": f"A kernelspec's name; `{settings.kernel_name}` when absent.",
    }


def _run_requests(settings: Settings) -> dict[str, JSON]:
    run = {
        "code": {"type": "string", "description": f"At most {settings.max_code_bytes} bytes of UTF-8."},
        "timeout": _timeout(settings),
        "tool_call_id": {"type": ["string", "null"], "maxLength": 256},
        "stream": {"type": ["boolean", "null"], "description": "Answer with server-sent events."},
        "background": {
            "type": ["boolean", "null"],
            "description": "Answer at once, and go on when the client leaves.",
        },
    }
    return {
        "RunCreate": request(run, required=("code",)),
        "OneOffRunCreate": request({**run, "kernel_name": _kernel_name(settings)}, required=("code",)),
        "ToolCallsCreate": request(
            {
                "session_id": {**_MAYBE_TEXT, "description": "A session is made when absent."},
                "tool_calls": {
                    "type": ["array", "object", "string"],
                    "description": f"One call or a list (at most {MAX_CALLS}), as the model's API gave them, "
                    "what holds them, or the JSON text of it.",
                },
                "stateless": {"type": ["boolean", "null"], "description": "Each call in a fresh kernel."},
            },
            required=("tool_calls",),
        ),
    }


def _other_requests(settings: Settings) -> dict[str, JSON]:
    return {
        "Empty": request({}),
        "SessionRestart": request(
            {"replay": {"type": ["boolean", "null"], "description": "Execute the earlier runs' code again."}}
        ),
        "SessionCreate": request(
            {
                "kernel_name": _kernel_name(settings),
                "timeout": _timeout(settings),
                "idle_timeout": {
                    "type": ["number", "null"],
                    "exclusiveMinimum": 0,
                    "maximum": _MAX_IDLE,
                    "description": "Seconds without a run after which the session ends.",
                },
                "metadata": _METADATA,
                "network": {
                    "enum": [*NETWORKS, None],
                    "description": "What the kernel may reach: "
                    f"{', '.join(f'`{name}`' for name in allowed_networks(settings))}; "
                    f"`{settings.kernel_network}` when absent.",
                },
            }
        ),
        "TokenCreate": request(
            {
                "name": {"type": "string", "minLength": 1, "maxLength": 100},
                "role": {"enum": ["run", "review", "admin"]},
                "expires_at": {**_MAYBE_TIME, "description": "A future time with its offset from UTC."},
                "options": {
                    **request(_TOKEN_OPTIONS),
                    "type": ["object", "null"],
                    "description": "For front ends that send nothing but a token.",
                },
            },
            required=("name", "role"),
        ),
    }


def _forms() -> dict[str, JSON]:
    xsrf = {"_xsrf": _TEXT}
    return {
        "LoginForm": request({**xsrf, "token": _TEXT, "next": _TEXT}, required=("_xsrf", "token")),
        "LogoutForm": request(xsrf, required=("_xsrf",)),
        "UploadForm": {
            "type": "object",
            "properties": {
                "path": {
                    "type": "string",
                    "description": "The folder of the files (with a slash at its end), or the path of the only one.",
                },
                "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            },
            "required": ["file"],
        },
    }


def _queries() -> dict[str, JSON]:
    paging = {
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
        "after": {"type": "string", "minLength": 1, "description": "The id that the last page ended with."},
        "order": {"enum": ["asc", "desc"], "default": "desc", "description": "By creation time."},
    }
    return {
        "ListQuery": request(paging),
        "NotebooksQuery": request(
            {
                **paging,
                "session_id": _TEXT,
                "q": {"type": "string", "maxLength": 1000, "description": "Text in code or outputs."},
                "status": {"enum": [s.value for s in RunStatus], "description": "A run ended like this."},
                "since": {**_TIME, "description": "Active at or after this time."},
                "until": {**_TIME, "description": "Made at or before this time."},
                "kernel_name": _TEXT,
            }
        ),
        "ToolsQuery": request(
            {"dialect": {"enum": [d.value for d in Dialect], "default": Dialect("openai-chat").value}}
        ),
        "FilesQuery": request(
            {
                "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1000},
                "after": {
                    "type": "string",
                    "minLength": 1,
                    "description": "The path that the last page ended with.",
                },
                "order": {"enum": ["asc", "desc"], "default": "asc", "description": "By path."},
            }
        ),
        "NotebookQuery": request(
            {"download": {"enum": ["1"], "description": "The file, to be saved; never a page."}}
        ),
        "EventsQuery": request(
            {"after": {"type": "integer", "minimum": 0, "description": "The last event that was seen."}}
        ),
    }


def _session_responses() -> dict[str, JSON]:
    return {
        "Session": response(
            {
                "id": _TEXT,
                "kernel_name": _TEXT,
                "status": {"enum": [s.value for s in SessionStatus]},
                "created_at": _TIME,
                "last_activity_at": _TIME,
                "expires_at": _TIME,
                "run_count": _COUNT,
                "metadata": {"type": "object", "additionalProperties": _TEXT},
                "timeout": {"type": "number"},
                "idle_timeout": {"type": "number"},
                "network": _MAYBE_TEXT,
                "sandboxed": {
                    "type": ["boolean", "null"],
                    "description": "Null: the kernel is an external gateway's.",
                },
                "notebook_url": _TEXT,
                "notice": {"type": "string", "description": "What a replay came to."},
            },
            optional=("notice",),
        ),
        "SessionList": _list_of("Session"),
        "Kernelspecs": response(
            {
                "default": _TEXT,
                "kernelspecs": {
                    "type": "object",
                    "additionalProperties": response({"display_name": _TEXT, "language": _TEXT}),
                },
            }
        ),
    }


def _run() -> JSON:
    return response(
        {
            "id": _TEXT,
            "session_id": _TEXT,
            "status": {"enum": [s.value for s in RunStatus]},
            "code": _TEXT,
            "execution_count": {"type": ["integer", "null"]},
            "outputs": {
                "type": "array",
                "items": {"type": "object"},
                "description": "nbformat 4.5 outputs; a multi-line value is one string.",
            },
            "stdout": _TEXT,
            "stderr": _TEXT,
            "result": _MAYBE_TEXT,
            "error": {"anyOf": [reference("RunError"), {"type": "null"}]},
            "files": {"type": "array", "items": reference("File")},
            "truncated": _FLAG,
            "dropped_bytes": _COUNT,
            "kernel_restarted": _FLAG,
            "recorded": {"type": "boolean", "description": "Whether the record holds the outcome."},
            "notices": {"type": "array", "items": _TEXT},
            "created_at": _TIME,
            "started_at": _MAYBE_TIME,
            "ended_at": _MAYBE_TIME,
            "duration_ms": {"type": ["integer", "null"]},
            "tool_call_id": _MAYBE_TEXT,
            "notebook_url": _TEXT,
        }
    )


def _run_responses() -> dict[str, JSON]:
    return {
        "RunError": response(
            {
                "ename": _TEXT,
                "evalue": _TEXT,
                "traceback": {"type": "array", "items": _TEXT},
                "line": {"type": ["integer", "null"]},
            }
        ),
        "File": response(
            {
                "path": _TEXT,
                "size": _COUNT,
                "mime_type": _TEXT,
                "url": _TEXT,
                "change": _TEXT,
                "modified_at": _TIME,
            },
            optional=("change", "modified_at"),
        ),
        "FileList": _list_of("File"),
        "Uploaded": {
            "anyOf": [reference("File"), response({"data": {"type": "array", "items": reference("File")}})],
        },
        "Run": _run(),
        "Event": response({"id": _TEXT, "event": _TEXT, "data": {"type": "string", "description": "JSON."}}),
        "RunList": _list_of("Run"),
        "ToolDefinitions": {"description": "What the dialect's API takes as `tools`."},
        "ToolCallsAnswer": response(
            {
                "session_id": _MAYBE_TEXT,
                "messages": {"type": "array", "items": {"type": "object"}},
                "runs": {"type": "array", "items": reference("Run")},
            }
        ),
    }


def _record_responses() -> dict[str, JSON]:
    return {
        "Notebook": response(
            {
                "id": _TEXT,
                "session_id": _TEXT,
                "owner": response({"id": _TEXT, "name": _TEXT}),
                "kernel_name": _TEXT,
                "created_at": _TIME,
                "last_activity_at": _TIME,
                "ended_at": _MAYBE_TIME,
                "ended_reason": _MAYBE_TEXT,
                "run_count": _COUNT,
                "statuses": {"type": "object", "additionalProperties": _COUNT},
                "one_off": _FLAG,
                "metadata": {"type": "object", "additionalProperties": _TEXT},
                "notebook_url": _TEXT,
            }
        ),
        "NotebookList": _list_of("Notebook"),
        "NotebookFile": {"type": "object", "description": "A notebook of nbformat 4.5."},
        "Verification": response(
            {"valid": _FLAG, "runs": _COUNT, "problems": {"type": "array", "items": _TEXT}}
        ),
    }


def _other_responses() -> dict[str, JSON]:
    token = {
        "id": _TEXT,
        "name": _TEXT,
        "role": {"enum": ["run", "review", "admin"]},
        "created_at": _TIME,
        "expires_at": _MAYBE_TIME,
        "last_used_at": _MAYBE_TIME,
        "options": response(_TOKEN_OPTIONS),
    }
    return {
        "Token": response(token),
        "TokenWithSecret": response(
            {**token, "token": {"type": "string", "description": "Shown this once."}}
        ),
        "TokenList": _list_of("Token"),
        "Health": response({"status": _TEXT}),
        "Readiness": response(
            {
                "status": {"enum": ["ok", "unavailable"]},
                "checks": {
                    "type": "object",
                    "additionalProperties": response({"ok": _FLAG, "detail": _TEXT}),
                },
            }
        ),
        "OpenAPI": {"type": "object"},
        "Error": response(
            {
                "error": response(
                    {"type": _TEXT, "message": _TEXT, "param": _MAYBE_TEXT, "code": _MAYBE_TEXT}
                ),
                "message": _TEXT,
                "request_id": _TEXT,
            }
        ),
    }


class Schemas:
    """All schemas under the bounds of the settings, by name."""

    def __init__(self, settings: Settings) -> None:
        inputs = {**_run_requests(settings), **_other_requests(settings), **_queries()}
        self.components: Mapping[str, JSON] = {
            **inputs,
            **_forms(),
            **_session_responses(),
            **_run_responses(),
            **_record_responses(),
            **_other_responses(),
        }
        self._validators = {name: Draft202012Validator(self.components[name]) for name in inputs}

    def validate(self, name: str, value: Any) -> None:
        """InvalidRequestError, with ``param`` naming the field, unless the value fits the schema."""
        check(self._validators[name], value)

    def properties(self, name: str) -> Mapping[str, JSON]:
        """The fields of a schema."""
        fields: Mapping[str, JSON] = self.components[name]["properties"]
        return fields
