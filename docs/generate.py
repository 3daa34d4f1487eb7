"""Writes the reference pages that are made from the code: ``python -m docs.generate [--check]``."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from interpreter import errors
from interpreter.api.openapi import build_openapi
from interpreter.api.routes import ROUTES
from interpreter.api.schemas import Schemas
from interpreter.settings import Settings, env_name, options

FOLDER = Path(__file__).parent
NOTE = "<!-- Made by `make format` from the code; change it there. -->\n\n"


def configuration() -> str:
    """The table of settings."""
    rows = [
        "# Configuration\n",
        "Every setting can stand on the command line (`--execute-timeout=60`), in the file",
        "`jupyter_interpreter_config.py` (`c.InterpreterApp.execute_timeout = 60`; `jupyter interpreter",
        "--generate-config` writes one) or in the environment. The command line wins over the file, the file",
        "over the environment. An unknown name or a wrong value stops the start with a sentence.\n",
        "Times are seconds, sizes are bytes.\n",
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
    """The table of errors, from the exception tree."""
    rows = [
        "# Errors\n",
        "Code that raised, ran into its timeout, was interrupted or lost its kernel is a normal answer: status 200",
        "and a run whose `status` says so. What never became a run is an error, and every error of every route has",
        "this one shape:\n",
        "```json",
        '{"error": {"type": "invalid_request", "message": "…", "param": "code", "code": null},',
        ' "message": "…", "request_id": "…"}',
        "```\n",
        "`message` names what to change, `param` the field. `request_id` is also in the `X-Request-Id` header and",
        "in the service's log.\n",
        "| status | type | meaning |",
        "|---|---|---|",
    ]
    seen = set()
    for kind in _error_types(errors.InterpreterError):
        if (kind.status, kind.type) not in seen:
            seen.add((kind.status, kind.type))
            meaning = (kind.__doc__ or "").splitlines()[0]
            rows.append(f"| {kind.status} | `{kind.type}` | {meaning} |")
    rows.append("| 500 | `internal_error` | A bug of the service; the log has it under the request id. |")
    return NOTE + "\n".join(rows) + "\n"


def _error_types(root: type[errors.InterpreterError]) -> Iterator[type[errors.InterpreterError]]:
    for kind in sorted(root.__subclasses__(), key=lambda k: k.status):
        yield kind
        yield from _error_types(kind)


def http_api() -> str:
    """The list of operations, from the same table that guards the routes."""
    document = build_openapi(((path, handler.operations) for path, handler in ROUTES), Schemas(Settings()))
    rows = [
        "# HTTP API\n",
        "The service describes itself at `/openapi.json` (OpenAPI 3.1) and, for people, at `/docs`. Every route but",
        "`/healthz`, `/login` and static files wants `Authorization: Bearer <token>`.",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            rows.append(f"\n## {method.upper()} {path}\n")
            rows.append(f"{operation['summary'].rstrip('.')}. {operation['description']}")
            for status, answer in operation["responses"].items():
                if not status.startswith(("4", "5", "d")):
                    rows.append(f"- {status}: {answer.get('description', '')}")
    return NOTE + "\n".join(rows) + "\n"


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
