"""Kernel ids as Jupyter's clients want them: the session's id, written as a UUID. Pure.

Jupyter Server routes kernels by ``\\w+-\\w+-\\w+-\\w+-\\w+`` (``services/kernels/handlers.py``), also
those that a gateway named, so an id without dashes would be unknown to it.
"""

import re
import string
import uuid

from interpreter.errors import NotFoundError
from interpreter.models import is_id, new_id

_ALPHABET = string.ascii_letters + string.digits
_LENGTH = len(new_id())
_LIMIT = len(_ALPHABET) ** _LENGTH  # below 2**128
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def kernel_id_of(session_id: str) -> str:
    """The UUID that stands for the session, the same at any time."""
    number = 0
    for character in session_id:
        number = number * len(_ALPHABET) + _ALPHABET.index(character)
    return str(uuid.UUID(int=number))


def session_id_of(kernel_id: str) -> str:
    """The session that a kernel id of a path stands for. NotFoundError for what can't be one."""
    if is_id(kernel_id):
        return kernel_id
    number = uuid.UUID(kernel_id).int if _UUID.fullmatch(kernel_id) else _LIMIT
    if number >= _LIMIT:
        raise unknown_kernel()
    characters: list[str] = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[digit])
    return "".join(reversed(characters))


def unknown_kernel() -> NotFoundError:
    """The error for an id that no kernel has."""
    return NotFoundError("There is no kernel with this id; start one with POST /api/kernels.")
