"""``/openapi.json`` (OpenAPI 3.1): the operations and schemas that guard the routes, as a document."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from interpreter import __version__
from interpreter.api.operations import Access, Answer, Operation
from interpreter.api.schemas import Schemas
from interpreter.models import JSON

_PATH_PART = re.compile(r"{(\w+)}")
_ERRORS = {
    400: "The request is wrong; `param` names the field to change.",
    401: "No token, or one that is unknown, revoked or expired.",
    403: "The token's role does not allow this.",
    404: "Unknown, or it belongs to another token.",
    405: "The route does not have this method.",
    409: "It contradicts the present state.",
    413: "The body or the code is over its limit.",
    415: "The body is not JSON.",
    429: "Too many requests, queued runs or sessions; `Retry-After` says when.",
    502: "The kernel gateway failed.",
    503: "Starting, shutting down, or a part is down.",
    504: "The kernel did not start in time.",
}
_RAW = "application/octet-stream"
_HEADERS: Mapping[str, JSON] = {
    "Range": {
        "description": "One range of bytes, like `bytes=0-1023`.",
        "schema": {"type": "string"},
    },
    "Idempotency-Key": {
        "description": "Makes a repeated request give the same run.",
        "schema": {"type": "string", "pattern": "^[\\x21-\\x7e]{1,255}$"},
    },
    "Last-Event-ID": {
        "description": "The id of the last event that was seen.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,15}$"},
    },
}

Routes = Iterable[tuple[str, Mapping[str, Operation]]]
"""Path templates with their operations by method."""


def build_openapi(routes: Routes, schemas: Schemas) -> JSON:
    """The document. Its schemas are the objects that validate requests."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Code interpreter",
            "version": __version__,
            "description": "Runs code on Jupyter kernels, one per session, and records each run in a notebook.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": {
            template: {
                method.lower(): _operation(template, operation, schemas)
                for method, operation in operations.items()
            }
            for template, operations in routes
        },
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(template: str, operation: Operation, schemas: Schemas) -> JSON:
    document: JSON = {
        "operationId": operation.id,
        "summary": operation.summary,
        "description": " ".join(filter(None, (operation.description, f"For {operation.access.value}."))),
        "tags": [operation.tag],
        "parameters": _parameters(template, operation, schemas),
        "responses": _responses(template, operation),
    }
    if operation.access is Access.PUBLIC:
        document["security"] = []
    if operation.body is not None:
        kind = "application/x-www-form-urlencoded" if operation.form else "application/json"
        document["requestBody"] = {
            "required": operation.body_required,
            "content": {kind: _schema_of(operation.body)},
        }
    if operation.upload is not None:
        schema: JSON = {} if operation.upload == _RAW else _schema_of("UploadForm")
        document["requestBody"] = {"required": True, "content": {operation.upload: schema}}
    return document


def _parameters(template: str, operation: Operation, schemas: Schemas) -> list[JSON]:
    path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PART.findall(template)
    ]
    fields = schemas.properties(operation.query) if operation.query else {}
    query = [{"name": name, "in": "query", "schema": schema} for name, schema in fields.items()]
    headers = [{"name": name, "in": "header", **_HEADERS[name]} for name in operation.headers]
    return [*path, *query, *headers]


def _responses(template: str, operation: Operation) -> JSON:
    responses = {str(status): _answer(answer) for status, answer in operation.answers.items()}
    for status in _error_statuses(template, operation):
        responses.setdefault(str(status), _answer(Answer(_ERRORS[status], {"application/json": "Error"})))
    responses["default"] = _answer(Answer("Any other failure.", {"application/json": "Error"}))
    return responses


def _error_statuses(template: str, operation: Operation) -> list[int]:
    statuses = [400, 405, 413] + ([409, 415] if operation.upload else [])
    if operation.access is not Access.PUBLIC:
        statuses += [401, 403, 429, 503]
    if _PATH_PART.search(template):
        statuses.append(404)
    if operation.body is not None:
        statuses += [409, 415]
    if operation.access is Access.RUN:
        statuses += [502, 504]
    return sorted(statuses)


def _answer(answer: Answer) -> JSON:
    document: JSON = {"description": answer.description}
    if answer.content:
        document["content"] = {
            kind: _schema_of(name) if name else {"schema": {"type": "string"}}
            for kind, name in answer.content.items()
        }
    return document


def _schema_of(name: str) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}
