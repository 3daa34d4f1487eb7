"""Who asks, in the ways of clients that know more than Bearer: X-API-Key, Bearer, Basic, a signed token."""

import base64
import binascii
from dataclasses import dataclass
from typing import Protocol

from tornado.httputil import HTTPHeaders

from interpreter.api.auth import bad_token, unauthorized
from interpreter.models import Principal
from interpreter.tokens import TokenStore

API_KEY_HEADER = "X-API-Key"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks. ``tenant`` is who shares what belongs to no single user: skills and agents."""

    principal: Principal
    tenant: str


class Verifier(Protocol):
    """Checks tokens that somebody else signed."""

    def verify(self, token: str) -> Identity | None:
        """Whose token this is; None when it is not of that kind. UnauthorizedError when it is a bad one."""


class Identifier:
    """Finds out who asks."""

    def __init__(self, tokens: TokenStore, verifier: Verifier | None = None) -> None:
        self._tokens = tokens
        self._verifier = verifier

    async def find(self, headers: HTTPHeaders) -> Identity:
        """Raises UnauthorizedError."""
        secret = headers.get(API_KEY_HEADER, "").strip()
        if not secret:
            scheme, _, value = headers.get("Authorization", "").strip().partition(" ")
            secret = basic_secret(value) if scheme.lower() == "basic" else value.strip()
            if scheme.lower() == "bearer" and self._verifier is not None:
                identity = self._verifier.verify(secret)
                if identity is not None:
                    return identity
        if not secret:
            raise unauthorized()
        info = await self._tokens.find(secret)
        if info is None:
            raise bad_token()
        return Identity(info.principal, info.id)


def basic_secret(value: str) -> str:
    """The key of a URL like ``http://:key@host``: the password, else the name."""
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    name, _, password = text.partition(":")
    return password or name
