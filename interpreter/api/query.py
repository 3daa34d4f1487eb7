"""The query of a URL under a schema. Pure."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from interpreter.api.jsonbody import has_surrogate
from interpreter.api.schemas import Schemas
from interpreter.api.validation import dotted
from interpreter.errors import InvalidRequestError


def read_query(query: str, schema: str, schemas: Schemas) -> dict[str, Any]:
    """The parameters that have a value, each of its type; InvalidRequestError names a wrong one."""
    values: dict[str, Any] = {}
    properties = schemas.properties(schema)
    for name, text in parse_qsl(query, keep_blank_values=True, errors="surrogateescape"):
        if has_surrogate(name) or has_surrogate(text):
            raise InvalidRequestError(
                "The query is not UTF-8; percent-encode it as UTF-8.", param=dotted([name])
            )
        if name in values:
            raise InvalidRequestError(
                f"`{dotted([name])}` is given twice; give it once.", param=dotted([name])
            )
        if text or name not in properties:
            values[name] = _typed(text, properties.get(name, {}), name)
    schemas.validate(schema, values)
    return values


def read_time(text: str, param: str) -> datetime:
    """The moment that ISO 8601 text names; without an offset it is UTC."""
    try:
        at = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
    except ValueError as error:
        raise InvalidRequestError(
            f"`{param}` must be a time in ISO 8601, like 2031-01-31T12:00:00Z.", param=param
        ) from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _typed(text: str, schema: dict[str, Any], name: str) -> Any:
    if schema.get("type") == "integer":
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 15):
            raise InvalidRequestError(f"`{name}` must be a whole number.", param=name)
        return int(text)
    return text
