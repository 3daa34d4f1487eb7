"""Errors of the service in words that fit a front end: its clients can't call the API's own routes. Pure."""

import copy
import re

from interpreter.errors import InterpreterError

_OWN_FILES = re.compile(r"; list them with GET /v1/sessions/\{id\}/files\.$")
_OWN_ROUTE = re.compile(r"(?:;|, or)[^;,]*\b(?:GET /v1/\S+|PUT)\.$")


def reworded(error: InterpreterError, files_hint: str = "") -> InterpreterError:
    """The error without a route of the API in its message; ``files_hint`` says how to list files."""
    message = _OWN_FILES.sub(f"; {files_hint}." if files_hint else ".", error.message)
    message = _OWN_ROUTE.sub(".", message)
    if message == error.message:
        return error
    found = copy.copy(error)
    found.message = message
    return found
