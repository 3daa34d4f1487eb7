"""Writes the reference pages that are made from the code: ``python -m docs.generate [--check]``."""

import ast
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from interpreter import errors
from interpreter.api.openapi import build_openapi
from interpreter.api.routes import ROUTES
from interpreter.api.schemas import Schemas
from interpreter.models import RunStatus
from interpreter.settings import Settings, env_name, options

FOLDER = Path(__file__).parent
NOTE = "<!-- Made by `make format` from the code; change it there. -->\n\n"

STATUSES = {
    RunStatus.QUEUED: "It waits for the runs before it. Not final.",
    RunStatus.RUNNING: "Its code is running. Not final.",
    RunStatus.OK: "The code ran to its end.",
    RunStatus.ERROR: "The code raised; `error` holds the exception.",
    RunStatus.TIMEOUT: "The code ran longer than its timeout and was ended.",
    RunStatus.INTERRUPTED: "The session was interrupted or restarted on request.",
    RunStatus.ABORTED: "It never ran to an end that somebody saw: the service stopped, or the kernel refused it.",
    RunStatus.KERNEL_DIED: "The kernel ended while the code ran, or could not be started for it.",
    RunStatus.CANCELLED: "It was cancelled, its client went away, or its session was deleted.",
}

EXAMPLES: dict[str, dict[str, Any]] = {
    "createSession": {"timeout": 60, "metadata": {"chat": "42"}},
    "createRun": {"code": "x = 6 * 7\nx", "timeout": 30},
    "createOneOffRun": {"code": "print('hello')", "stream": True},
    "createToken": {"name": "chat", "role": "run"},
    "runToolCalls": {
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "execute_python", "arguments": '{"code": "6 * 7"}'},
            }
        ]
    },
}
"""Request bodies by operation id; each is checked against the schema of its route."""


UPLOADS = {"uploadFile": "-T sales.csv", "uploadFiles": "-F file=@sales.csv -F file=@costs.csv"}
"""The options of curl that send a body which is no JSON, by operation id."""


def configuration() -> str:
    """The table of settings."""
    rows = [
        "# Configuration\n",
        "Every setting can stand on the command line (`--execute-timeout=60`), in the file",
        "`jupyter_interpreter_config.py` (`c.InterpreterApp.execute_timeout = 60`; `jupyter interpreter",
        "--generate-config` writes one) or in the environment. The command line wins over the file, the file",
        "over the environment. An unknown name or a wrong value stops the start with a sentence.",
        "`jupyter interpreter --show-config` prints each value and where it comes from.\n",
        "Times are seconds, sizes are bytes. In the environment, true and false are `1` and `0`.\n",
        "| setting | environment | default | meaning |",
        "|---|---|---|---|",
    ]
    for field in options():
        default = "*(none)*" if field.default == "" else f"`{field.default}`"
        choices = field.metadata["choices"]
        meaning = field.metadata["help"] + (f" One of: {', '.join(choices)}." if choices else "")
        secret = " Secret: never printed." if field.metadata["secret"] else ""
        rows.append(f"| `{field.name}` | `{env_name(field.name)}` | {default} | {meaning}{secret} |")
    return NOTE + "\n".join(rows) + "\n"


def error_reference() -> str:
    """The statuses of runs, the errors and their codes, from the exception tree and where it is raised."""
    rows = [
        "# Errors\n",
        "## Not errors: how a run ended\n",
        "Code that raised, ran into its timeout, was interrupted or lost its kernel is a normal answer: HTTP",
        "status 200 and a run whose `status` says so. The run's `notices` say in sentences what was cut and",
        "whether the kernel is a new one.\n",
        "| `status` | meaning |",
        "|---|---|",
        *(f"| `{status.value}` | {STATUSES[status]} |" for status in RunStatus),
        "\n## Errors\n",
        "What never became a run is an error, and every error of every route has this one shape:\n",
        "```json",
        '{"error": {"type": "invalid_request", "message": "…", "param": "code", "code": null},',
        ' "message": "…", "request_id": "…"}',
        "```\n",
        "`message` names what to change, `param` the field, `code` the case where there are several.",
        "`request_id` is also in the `X-Request-Id` header and in the service's log. With status 429 and 503",
        "there may be a `Retry-After` header, in seconds.\n",
        "| status | type | meaning |",
        "|---|---|---|",
    ]
    seen = set()
    for kind in _error_types(errors.InterpreterError):
        if (kind.status, kind.type) not in seen:
            seen.add((kind.status, kind.type))
            meaning = (kind.__doc__ or "").splitlines()[0].replace("``", "`")
            rows.append(f"| {kind.status} | `{kind.type}` | {meaning} |")
    rows += [
        "| 500 | `internal_error` | A bug of the service; the log has it under the request id. |",
        "\n## Codes\n",
        "| type | code |",
        "|---|---|",
        *(f"| `{name}` | {', '.join(f'`{code}`' for code in codes)} |" for name, codes in _codes()),
    ]
    return NOTE + "\n".join(rows) + "\n"


def _error_types(root: type[errors.InterpreterError]) -> Iterator[type[errors.InterpreterError]]:
    for kind in sorted(root.__subclasses__(), key=lambda k: k.status):
        yield kind
        yield from _error_types(kind)


def _codes() -> list[tuple[str, list[str]]]:
    """The codes that the code gives to errors, by the errors' type: calls like ``SomeError(…, code="…")``."""
    found: dict[str, set[str]] = {}
    for path in sorted(Path(errors.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                kind = getattr(errors, node.func.id, None)
                if isinstance(kind, type) and issubclass(kind, errors.InterpreterError):
                    values = [word.value for word in node.keywords if word.arg == "code"]
                    found.setdefault(kind.type, set()).update(
                        leaf.value
                        for value in values
                        for leaf in ast.walk(value)
                        if isinstance(leaf, ast.Constant)
                        and isinstance(leaf.value, str)
                        and "_" in leaf.value
                    )
    return [(name, sorted(codes)) for name, codes in sorted(found.items()) if codes]


def http_api() -> str:
    """All operations and objects, from the same tables that guard the routes."""
    schemas = Schemas(Settings())
    document = build_openapi(((path, handler.operations) for path, handler in ROUTES), schemas)
    groups: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    rows = [
        "# HTTP API\n",
        "The service describes itself at `/openapi.json` (OpenAPI 3.1) and, for people, at `/docs`; both want a",
        "token. Every route but `/healthz`, `/login` and static files wants `Authorization: Bearer <token>`.",
        "`Authorization: token <token>` works too. Bodies are JSON (`Content-Type: application/json`), UTF-8;",
        "unknown fields are refused. Times are ISO 8601 in UTC. Limits below are those of the default settings.",
        "Errors and the statuses of runs are in [errors.md](errors.md).\n",
        "A list has `data`, `has_more`, `first_id` and `last_id`; give `last_id` as `after` to go on.",
    ]
    for tag, members in groups.items():
        rows.append(f"\n## {tag}")
        for method, path, operation in members:
            rows += _operation_rows(method, path, operation, schemas)
    rows.append("\n## Objects\n\nClients must accept more fields than these.")
    for name in sorted(_referred(document["paths"], schemas)):
        rows += [f"\n### {name}\n", *_fields(schemas.components[name])]
    return NOTE + "\n".join(rows) + "\n"


def _operation_rows(method: str, path: str, operation: dict[str, Any], schemas: Schemas) -> Iterator[str]:
    yield f"\n### {method} {path}\n"
    yield f"{operation['summary'].rstrip('.')}. {operation['description']}\n"
    parameters = [p for p in operation["parameters"] if p["in"] != "path"]
    if parameters:
        yield "| parameter | in | type | meaning |"
        yield "|---|---|---|---|"
        for parameter in parameters:
            schema = {"description": parameter.get("description", ""), **parameter["schema"]}
            yield f"| `{parameter['name']}` | {parameter['in']} | {_type(schema)} | {_meaning(schema)} |"
        yield ""
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        if "schema" not in content:
            yield f"Body (`{kind}`): the content, as it is.\n"
            yield from _upload_example(path, operation["operationId"])
            continue
        name = _name(content["schema"])
        if not schemas.components[name].get("properties"):
            continue
        yield f"Body (`{kind}`):\n"
        yield from _fields(schemas.components[name])
        yield ""
        yield from _upload_example(path, operation["operationId"])
        yield from _example(method, path, operation["operationId"], name, schemas)
    for status, answer in operation["responses"].items():
        if not status.startswith(("4", "5", "d")):
            kinds = (
                f"`{kind}`{_shape(content['schema'])}" for kind, content in answer.get("content", {}).items()
            )
            yield f"- {status}: {answer['description']} {'; '.join(kinds)}".rstrip()


def _example(method: str, path: str, operation: str, body: str, schemas: Schemas) -> Iterator[str]:
    example = EXAMPLES.get(operation)
    if example is None:
        return
    schemas.validate(body, example)
    yield "```sh"
    yield f'curl -X {method} "{_address(path)}" -H "Authorization: Bearer $TOKEN" \\'
    text = json.dumps(example).replace("'", "'\\''")
    yield f"  -H \"Content-Type: application/json\" -d '{text}'"
    yield "```\n"


def _upload_example(path: str, operation: str) -> Iterator[str]:
    option = UPLOADS.get(operation)
    if option is not None:
        yield "```sh"
        yield f'curl {option} "{_address(path)}" -H "Authorization: Bearer $TOKEN"'
        yield "```\n"


def _address(path: str) -> str:
    path = path.replace("{session_id}", "$SESSION").replace("{path}", "data/sales.csv")
    return f"http://127.0.0.1:{Settings().port}{path}"


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    fields = schema.get("properties", {})
    if not fields:
        yield schema.get("description") or "No fields."
        return
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    closed = schema.get("additionalProperties") is False
    for name, field in fields.items():
        needed = "**required** " if closed and name in schema.get("required", ()) else ""
        yield f"| `{name}` | {_type(field)} | {(needed + _meaning(field)).strip()} |"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _shown(_name(schema))
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " or ".join("null" if value is None else f"`{value}`" for value in schema["enum"])
    kinds = schema.get("type", "any")
    text = kinds if isinstance(kinds, str) else " or ".join(kinds)
    items = schema.get("items")
    return f"{text} of {_type(items)}" if items else text


def _meaning(schema: dict[str, Any]) -> str:
    parts = [schema.get("description", "")]
    for key, words in (
        ("format", "{}"),
        ("exclusiveMinimum", "more than {}"),
        ("minimum", "at least {}"),
        ("maximum", "at most {:,.0f}"),
        ("maxLength", "at most {:,} characters"),
        ("default", "default `{}`"),
    ):
        if key in schema:
            parts.append(words.format(schema[key]).replace("date-time", "ISO 8601 time") + ".")
    return " ".join(part[:1].upper() + part[1:] for part in parts if part).replace("|", "\\|")


def _name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _shown(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _shape(schema: dict[str, Any]) -> str:
    return f" {_shown(_name(schema))}" if "$ref" in schema else ""


def _referred(value: Any, schemas: Schemas, *, answers: bool = False) -> set[str]:
    """The names of the objects that answers hold, also those inside of them."""
    found: set[str] = set()
    if isinstance(value, dict):
        if answers and "$ref" in value:
            name = _name(value)
            return {name} | _referred(schemas.components[name], schemas, answers=True)
        for key, item in value.items():
            found |= _referred(item, schemas, answers=answers or key == "responses")
    elif isinstance(value, list):
        for item in value:
            found |= _referred(item, schemas, answers=answers)
    return found


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "errors.md": error_reference,
    "http-api.md": http_api,
}


def main() -> int:
    """Write the pages; with ``--check``, only say which are out of date."""
    stale = [name for name, make in PAGES.items() if _read(FOLDER / name) != make()]
    for name in stale:
        if "--check" not in sys.argv:
            (FOLDER / name).write_text(PAGES[name](), encoding="utf-8")
        sys.stdout.write(f"{name} {'is out of date' if '--check' in sys.argv else 'written'}\n")
    return 1 if stale and "--check" in sys.argv else 0


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
