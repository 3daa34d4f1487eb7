"""Who asks: the bearer token of a request, or the cookie of a browser that logged in."""

import re

from tornado.web import RequestHandler

from ..errors import UnauthorizedError
from ..tokens import TokenInfo, TokenStore

COOKIE_DAYS = 30
_NO_TOKEN = "Send a token as `Authorization: Bearer <token>`."  # noqa: S105 - a sentence
_BAD_TOKEN = "The token is unknown, revoked or expired; send a valid one."  # noqa: S105 - a sentence


def cookie_name(host: str) -> str:
    """The cookie's name, with the port: browsers share cookies between the ports of a host."""
    return "interpreter-" + re.sub(r"[^A-Za-z0-9]+", "-", host.lower())


async def find_bearer(handler: RequestHandler, tokens: TokenStore) -> TokenInfo | None:
    """The token of the Authorization header, None without that header. UnauthorizedError if it is bad."""
    header = handler.request.headers.get("Authorization")
    if header is None:
        return None
    scheme, _, secret = header.strip().partition(" ")
    if scheme.lower() not in ("bearer", "token"):
        raise UnauthorizedError(_NO_TOKEN)
    info = await tokens.find(secret.strip())
    if info is None:
        raise bad_token()
    return info


async def find_cookie(handler: RequestHandler, tokens: TokenStore) -> TokenInfo | None:
    """The valid token that a browser logged in with; None without one."""
    name = cookie_name(handler.request.host)
    value = handler.get_signed_cookie(name, max_age_days=COOKIE_DAYS, min_version=2)
    token_id, _, fingerprint = (value or b"").decode().partition(":")
    if not token_id:
        return None
    info = await tokens.get(token_id)
    return info if info is not None and info.fingerprint == fingerprint else None


def set_cookie(handler: RequestHandler, info: TokenInfo) -> None:
    """Log the browser in. The cookie names the token; it does not hold the secret."""
    handler.set_signed_cookie(
        cookie_name(handler.request.host),
        f"{info.id}:{info.fingerprint}",
        expires_days=COOKIE_DAYS,
        version=2,
        httponly=True,
        samesite="Lax",
        secure=handler.request.protocol == "https",
    )


def clear_cookie(handler: RequestHandler) -> None:
    """Log the browser out."""
    handler.clear_cookie(cookie_name(handler.request.host))


def unauthorized() -> UnauthorizedError:
    """The error for a request without any token."""
    return UnauthorizedError(_NO_TOKEN)


def bad_token() -> UnauthorizedError:
    """The error for a token that is not valid."""
    return UnauthorizedError(_BAD_TOKEN, code="invalid_token")
