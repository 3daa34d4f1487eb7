"""A schema's complaint in one sentence that names the field. Never repeats the value. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from interpreter.errors import InvalidRequestError

_MAX_NAME = 100
_TYPES = {
    "object": "an object",
    "array": "a list",
    "string": "a string",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "null": "null",
}


def check(validator: Draft202012Validator, value: Any) -> None:
    """InvalidRequestError about the first thing that is wrong with the value."""
    error = next(validator.iter_errors(value), None)
    if error is not None:
        raise explain(error)


def dotted(path: Iterable[object]) -> str | None:
    """``a.b.0`` for the path of a field, None for the value itself."""
    text = ".".join(str(part) for part in path)
    return text.encode("utf-8", "replace").decode()[:_MAX_NAME] or None


def explain(error: ValidationError) -> InvalidRequestError:
    """The error that a client gets for a schema's complaint."""
    path = [*error.absolute_path]
    bound: Any = error.validator_value
    value: Any = error.instance
    if error.validator == "required":
        name = next(name for name in bound if name not in value)
        param = dotted([*path, name])
        return InvalidRequestError(f"`{param}` is missing; the request needs it.", param=param)
    if error.validator == "additionalProperties":
        return _unknown_field(error, path)
    param = dotted(path)
    subject = f"`{param}`" if param else "The body"
    if "propertyNames" in error.absolute_schema_path:
        subject = f"Each key of {subject}"
    return InvalidRequestError(f"{subject} {_requirement(error)}.", param=param)


def _unknown_field(error: ValidationError, path: list[str | int]) -> InvalidRequestError:
    schema: Any = error.schema
    value: Any = error.instance
    known: Mapping[str, Any] = schema["properties"]
    unknown = next(name for name in value if name not in known)
    param = dotted([*path, unknown])
    fields = ", ".join(f"`{name}`" for name in known) or "none"
    return InvalidRequestError(f"`{param}` is not a field of this request; it has {fields}.", param=param)


def _requirement(error: ValidationError) -> str:
    bound: Any = error.validator_value
    match error.validator:
        case "type":
            names = [bound] if isinstance(bound, str) else bound
            return "must be " + " or ".join(_TYPES[name] for name in names)
        case "enum":
            return "must be one of " + ", ".join(str(value) for value in bound if value is not None)
        case "exclusiveMinimum":
            return f"must be greater than {bound:g}"
        case "minimum":
            return f"must be at least {bound:g}"
        case "maximum":
            return f"must be at most {bound:g}"
        case "minLength":
            return f"must have at least {bound} character{'' if bound == 1 else 's'}"
        case "maxLength":
            return f"must have at most {bound} characters"
        case "maxProperties":
            return f"must have at most {bound} entries"
        case _:
            return "does not fit; /openapi.json has its schema"
