"""Who asks: the bearer token of a request, or the cookie of a browser that logged in."""

import re

from tornado.web import RequestHandler

from interpreter.api.logouts import Logouts
from interpreter.errors import UnauthorizedError
from interpreter.models import Principal, new_id
from interpreter.tokens import TokenInfo, TokenStore

COOKIE_DAYS = 7
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
    """The valid token that a browser logged in with; None without one, and after a logout."""
    token_id, fingerprint, login_id = _read_cookie(handler)
    if not login_id or login_id in _logouts(handler):
        return None
    info = await tokens.get(token_id)
    return info if info is not None and info.fingerprint == fingerprint else None


async def check_again(principal: Principal, tokens: TokenStore) -> None:
    """Raise UnauthorizedError if the token has ended since: a body may be long on its way."""
    if await tokens.has_ended(principal.token_id):
        raise bad_token()


def set_cookie(handler: RequestHandler, info: TokenInfo) -> None:
    """Log the browser in. The cookie names the token and this login; it does not hold the secret."""
    handler.set_signed_cookie(
        cookie_name(handler.request.host),
        f"{info.id}:{info.fingerprint}:{new_id()}",
        expires_days=COOKIE_DAYS,
        version=2,
        httponly=True,
        samesite="Lax",
        secure=handler.request.protocol == "https",
    )


def log_out(handler: RequestHandler) -> None:
    """Log the browser out; whoever has a copy of its cookie too."""
    if login_id := _read_cookie(handler)[2]:
        _logouts(handler).add(login_id)
    handler.clear_cookie(cookie_name(handler.request.host))


def _logouts(handler: RequestHandler) -> Logouts:
    logouts: Logouts = handler.application.settings["logouts"]
    return logouts


def _read_cookie(handler: RequestHandler) -> tuple[str, str, str]:
    """``(token id, fingerprint, login id)``; empty texts without a good cookie."""
    name = cookie_name(handler.request.host)
    value = handler.get_signed_cookie(name, max_age_days=COOKIE_DAYS, min_version=2)
    parts = (value or b"").decode().split(":")
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("", "", "")


def unauthorized() -> UnauthorizedError:
    """The error for a request without any token."""
    return UnauthorizedError(_NO_TOKEN)


def bad_token() -> UnauthorizedError:
    """The error for a token that is not valid."""
    return UnauthorizedError(_BAD_TOKEN, code="invalid_token")
