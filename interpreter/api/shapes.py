"""The forms that JSON schemas take here. Pure."""

from interpreter.models import JSON


def reference(name: str) -> JSON:
    """A schema of the table, by name."""
    return {"$ref": f"#/components/schemas/{name}"}


def response(properties: JSON, *, optional: tuple[str, ...] = ()) -> JSON:
    """A response: clients must accept more fields than these."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": properties}


def request(properties: JSON, *, required: tuple[str, ...] = ()) -> JSON:
    """A request: nothing but these fields."""
    return {
        "type": "object",
        "required": list(required),
        "additionalProperties": False,
        "properties": properties,
    }
