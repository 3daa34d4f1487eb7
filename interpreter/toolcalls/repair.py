"""The text that a model gave as arguments, made into an object or into code, where only one reading fits."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from interpreter.toolcalls import snippets

_MAX_REPAIR = 256 * 1024  # characters; the repairs parse the text several times over
_MAX_NESTING = 4  # of JSON text in JSON text

_STRING = r'"(?:[^"\\]|\\.?)*+"?'
_TRAILING_COMMA = re.compile(_STRING + r"|,(?=\s*+[}\]])", re.DOTALL)
_BACKSLASH = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_BARE_KEY = re.compile(r"\{\s*(\w+)\s*:")
# What may follow the object: spare braces, a model's end token, a remark on lines of its own.
_REST = re.compile(r"(?:[\s}\]);`]|<\|[^|>]*\|>)*+(?:(?<=\n)[^{}\"]*)?")
_LOOSE = re.compile(
    r"\{\s*[\"']?(?P<key>\w+)[\"']?\s*:\s*(?P<quote>\"\"\"|'''|\"|')(?P<body>.*)(?P=quote)"
    r"(?:\s*,\s*[\"']?timeout[\"']?\s*:\s*(?P<timeout>\d{1,9}(?:\.\d{1,9})?))?\s*,?\s*\}\s*",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class BareCode:
    """Code that stands where the arguments should be."""

    code: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What is wrong with the text, as the middle of a sentence."""

    problem: str


def decode_arguments(text: str, nesting: int = 0) -> dict[str, Any] | BareCode | Unreadable:
    """The object that ``text`` is or was meant to be, or the code that it is.

    Valid JSON is taken as it is. What else is read: a byte order mark, literal newlines and bad
    escapes in strings, unescaped quotes in the code, trailing commas, missing or spare closing
    braces, Python literals, keys without quotes, Markdown fences, JSON text in JSON text, bare code.
    """
    text = text.removeprefix("\ufeff")
    stripped = text.strip()
    if not stripped:
        return Unreadable("the arguments are empty")
    try:
        value = json.loads(stripped)
    except RecursionError:
        return Unreadable("the arguments are nested too deeply")
    except ValueError as error:
        return _repaired(text, stripped, str(error), nesting)
    return _from_value(value, nesting)


def _from_value(value: Any, nesting: int) -> dict[str, Any] | BareCode | Unreadable:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict):
        return value
    if isinstance(value, str) and nesting < _MAX_NESTING:
        return decode_arguments(value, nesting + 1)
    return Unreadable("the arguments are not a JSON object")


def _repaired(
    text: str, stripped: str, json_problem: str, nesting: int
) -> dict[str, Any] | BareCode | Unreadable:
    if len(stripped) > _MAX_REPAIR:
        return Unreadable(f"the arguments are not valid JSON ({json_problem})")
    if stripped.startswith("{"):
        value = _loose_json(stripped) or _python_dict(stripped) or _loose_shape(stripped)
        if value is not None:
            return value
    if stripped.startswith("`") and nesting < _MAX_NESTING:
        fenced = _fenced_object(stripped, nesting)
        if fenced is not None:
            return fenced
    if stripped[0] in "'\"":
        inner = snippets.literal(stripped)
        if isinstance(inner, str) and nesting < _MAX_NESTING:
            return decode_arguments(inner, nesting + 1)
    return _bare_code(text, stripped, json_problem)


def _fenced_object(stripped: str, nesting: int) -> dict[str, Any] | BareCode | Unreadable | None:
    """What a fenced block of JSON holds; None for a block of code, be that a dict display."""
    inside = snippets.fenced_json(stripped)
    if inside is None:
        return None
    value = decode_arguments(inside, nesting + 1)
    is_code = snippets.unfenced_code(stripped) is not None
    return None if is_code and not (isinstance(value, dict) and "code" in value) else value


def _bare_code(text: str, stripped: str, json_problem: str) -> BareCode | Unreadable:
    fenced = snippets.unfenced_code(stripped)
    if fenced is None:
        fenced = snippets.only_block(stripped)
    if fenced is not None:
        return BareCode(fenced) if fenced.strip() else Unreadable("the fenced block is empty")
    code = snippets.dedented(text)
    syntax_problem = snippets.syntax_problem(code)
    if syntax_problem is None and not snippets.is_dict_display(code):
        return BareCode(code)
    if stripped.startswith("{") or syntax_problem is None:
        return Unreadable(f"the arguments are not valid JSON ({json_problem})")
    return Unreadable(f"the arguments are neither JSON ({json_problem}) nor Python code ({syntax_problem})")


def _loose_json(text: str) -> dict[str, Any] | None:
    for candidate in _candidates(text):
        value = _first_object(candidate)
        if value is None:
            continue
        # \' is no JSON: the model meant a quote, or a backslash and a quote. Python tells which.
        if "\\'" in text and not _holds_python(value):
            plain = _first_object(candidate.replace("\\\\'", "'"))
            if plain is not None and _holds_python(plain):
                return plain
        return value
    return None


def _first_object(text: str) -> dict[str, Any] | None:
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _REST.fullmatch(text, end) else None


def _holds_python(value: dict[str, Any]) -> bool:
    return any(isinstance(text, str) and snippets.syntax_problem(text) is None for text in value.values())


def _candidates(text: str) -> Iterator[str]:
    """From the mildest change to the strongest."""
    yield text
    text = _BACKSLASH.sub(lambda m: m[0] if m[1] else r"\\", text)
    yield text
    text = _TRAILING_COMMA.sub(lambda m: "" if m[0] == "," else m[0], text)
    yield text
    text = _BARE_KEY.sub(r'{"\1":', text, count=1)
    yield text
    yield text + "}"


def _python_dict(text: str) -> dict[str, Any] | None:
    value = snippets.literal(text)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    return None


def _loose_shape(text: str) -> dict[str, Any] | None:
    """``{"code": "…"}`` whose code has unescaped quotes; taken only if what is inside is Python."""
    match = _LOOSE.fullmatch(text)
    if match is None:
        return None
    code = _unescaped(match["body"])
    if code is None or snippets.syntax_problem(code) is not None:
        return None
    value: dict[str, Any] = {match["key"]: code}
    if match["timeout"]:
        value["timeout"] = float(match["timeout"])
    return value


def _unescaped(body: str) -> str | None:
    """``body`` with its JSON escapes resolved and its bare quotes kept."""
    escaped = re.sub(r"\\(?:u[0-9a-fA-F]{4}|.)|\"", _escape_one, body, flags=re.DOTALL)
    try:
        value = json.loads(f'"{escaped}"', strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _escape_one(match: re.Match[str]) -> str:
    found = match[0]
    if found == '"':
        return r"\""
    if found == r"\'":
        return "'"
    return found if _BACKSLASH.fullmatch(found) else rf"\{found}"
