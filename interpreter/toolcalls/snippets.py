"""Recognise Python and fenced blocks in text that a model wrote."""

import ast
import re
import textwrap
import warnings
from typing import Any

_OPENING = re.compile(r"\s{0,3}(`{3,})[ \t]*\{?([\w+#.-]*)[^`]*")
_CLOSING = re.compile(r"\s{0,3}(`{3,})\s*")
_ONE_LINE = re.compile(r"(`{3,})(?:(?:python3?|py)\s+)?([^`\n]+)\1")
_PYTHON_FENCES = frozenset(
    {"", "python", "python3", "py", "py3", "ipython", "ipython3", "jupyter", "code", "tool_code"}
)
_JSON_FENCES = frozenset({"json", "json5", "jsonc", "tool_call", "tool_calls"})
_MAGIC = re.compile(r"^([ \t]*)(?:[%!].*|[\w.%]+\?{1,2}[ \t]*|(\w[\w, \t]*=[ \t]*)[%!].*)$", re.MULTILINE)
_PARSE_ERRORS = (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError)


def syntax_problem(text: str) -> str | None:
    """Why ``text`` is not Python (IPython's magics and ``!`` lines allowed), None when it is."""
    if text.startswith("%%"):
        return None
    problem = _problem(text)
    if problem is not None and _problem(_MAGIC.sub(r"\1pass", text)) is None:
        return None
    return problem


def _problem(text: str) -> str | None:
    try:
        _parse(text)
    except SyntaxError as error:
        return f"{error.msg}, line {error.lineno}" if error.lineno else str(error.msg)
    except _PARSE_ERRORS:
        return "it can't be parsed"
    return None


def is_dict_display(text: str) -> bool:
    """Whether ``text`` is nothing but a ``{key: value}`` expression."""
    try:
        body = _parse(text).body
    except _PARSE_ERRORS:
        return False
    return len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Dict)


def literal(text: str) -> Any:
    """The value of a Python literal, None when ``text`` is not one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (*_PARSE_ERRORS, TypeError):
        return None


def _parse(text: str) -> ast.Module:
    # Warnings about the model's code (say, an invalid escape) are for the kernel to give.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def dedented(text: str) -> str:
    """``text`` without the indentation that all its lines share and the blank lines around it."""
    return textwrap.dedent(text).strip()


def unfenced_code(text: str) -> str | None:
    """The code inside, when all of ``text`` is one fenced block of Python; else None.

    Text that starts with a fence is never valid Python, so no valid code is changed.
    """
    block = _whole_block(text)
    return block[1] if block is not None and block[0] in _PYTHON_FENCES else None


def fenced_json(text: str) -> str | None:
    """The text inside, when all of ``text`` is one fenced block that holds (or may hold) JSON."""
    block = _whole_block(text)
    if block is None:
        return None
    language, body = block
    is_json = language in _JSON_FENCES or (language in _PYTHON_FENCES and body.lstrip().startswith("{"))
    return body if is_json else None


def only_block(text: str) -> str | None:
    """The code of the one fenced Python block in a text that has other words around it; else None."""
    lines = text.split("\n")
    fences = [i for i, line in enumerate(lines) if _CLOSING.match(line)]
    if len(fences) != 2:
        return None
    start, end = fences
    opening = _OPENING.fullmatch(lines[start])
    if opening is None or opening[2].lower() not in _PYTHON_FENCES or not _CLOSING.fullmatch(lines[end]):
        return None
    return "\n".join(lines[start + 1 : end])


def _whole_block(text: str) -> tuple[str, str] | None:
    """Language (lower case) and body of the one fenced block that ``text`` is."""
    stripped = text.strip()
    if not stripped.startswith("```"):
        return None
    lines = stripped.split("\n")
    if len(lines) == 1:
        match = _ONE_LINE.fullmatch(stripped)
        return ("", match[2]) if match else None
    opening, closing = _OPENING.fullmatch(lines[0]), _CLOSING.fullmatch(lines[-1])
    if opening is None or closing is None or len(closing[1]) < len(opening[1]):
        return None
    body = "\n".join(lines[1:-1])
    if any(_CLOSING.match(line) for line in lines[1:-1]) and syntax_problem(body) is not None:
        return None  # two blocks with words between, not one that has a fence in a string
    return opening[2].lower(), body
