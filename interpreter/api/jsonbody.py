"""Strict JSON (RFC 8259): UTF-8, no duplicate names, only finite numbers. Pure."""

import json
import math
from typing import Any, NoReturn

from interpreter.errors import InvalidRequestError
from interpreter.jsontext import count_values, dump, dump_compact

MAX_VALUES = 100_000
MAX_DEPTH = 100
_MAX_DIGITS = 308  # of a whole number
_SURELY_TOO_MANY = 4 * MAX_VALUES  # by a count that is never too low; to parse so many takes seconds


def parse_json(body: bytes) -> Any:
    """The value of a body; InvalidRequestError says what is malformed."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError("The body is not UTF-8; encode the JSON as UTF-8.") from error
    if count_values(text) > _SURELY_TOO_MANY:
        raise _too_many_values()
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidRequestError(
            f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from error
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply.") from error
    _bound(value)
    return value


def dump_json(value: Any) -> bytes:
    """UTF-8 JSON on one line. Text with lone surrogates, which UTF-8 can't hold, is escaped."""
    try:
        return dump_compact(value)
    except UnicodeEncodeError:
        return dump(value, ensure_ascii=True, separators=(",", ":"))


def has_surrogate(text: str) -> bool:
    """Whether the text has a surrogate without its partner, so that no UTF-8 can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def find_surrogate(value: Any, path: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """Where the first text (or name) with a lone surrogate is; None when there is none."""
    if isinstance(value, str):
        return path if has_surrogate(value) else None
    if isinstance(value, dict):
        for name, item in value.items():
            if has_surrogate(name):
                return path
            if (found := find_surrogate(item, (*path, name))) is not None:
                return found
    if isinstance(value, list):
        for index, item in enumerate(value):
            if (found := find_surrogate(item, (*path, str(index)))) is not None:
                return found
    return None


def _bound(value: Any) -> None:
    """InvalidRequestError for more than MAX_VALUES values or MAX_DEPTH levels: checks cost time for each."""
    level, count = [value], 1
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict | list):
                count += len(item)
                if count > MAX_VALUES:
                    raise _too_many_values()
                inner += item.values() if isinstance(item, dict) else item
        if not inner:
            return
        level = inner
    raise InvalidRequestError("The body is nested too deeply.")


def _too_many_values() -> InvalidRequestError:
    return InvalidRequestError(f"The body holds more than {MAX_VALUES} values.")


def _no_constant(name: str) -> NoReturn:
    raise InvalidRequestError(f"The body is not valid JSON: {name} is not a JSON number.")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _out_of_range()
    return number


def _whole(text: str) -> int:
    """Not more than a float can be: whoever computes with it needs no care."""
    if len(text) > _MAX_DIGITS:
        raise _out_of_range()
    return int(text)


def _out_of_range() -> InvalidRequestError:
    return InvalidRequestError("The body holds a number that is out of range.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, item in pairs:
        if name in value:
            raise InvalidRequestError(
                f"The field {name[:100]!r} is given twice; give it once.", param=name[:100]
            )
        value[name] = item
    return value


_DECODER = json.JSONDecoder(
    parse_constant=_no_constant, parse_float=_finite, parse_int=_whole, object_pairs_hook=_unique
)
