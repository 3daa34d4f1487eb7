"""Who asks, when LibreChat says it with a JWT that it signed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from interpreter.api.auth import bad_token
from interpreter.errors import SettingsError
from interpreter.frontends.identity import Identity
from interpreter.models import Principal, Role
from interpreter.settings import Settings

MAX_LIFETIME = 300  # seconds; what LibreChat signs lives no longer
_LEEWAY = 30  # seconds that two clocks may differ
_NO_TENANT = "legacy"  # the tenant of an installation that has only one
_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class _Key:
    id: str | None
    algorithm: str
    key: Any


class JwtVerifier:
    """Checks what LibreChat signs (``packages/api/src/auth/codeapi.ts``): EdDSA, RS256, or HS256."""

    def __init__(self, keys: tuple[_Key, ...], issuer: str, audience: str) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience

    @classmethod
    def from_settings(cls, settings: Settings) -> "JwtVerifier | None":
        """None when no key is set. Raises SettingsError."""
        keys = _public_keys(settings.librechat_jwt_key) if settings.librechat_jwt_key else ()
        if secret := settings.librechat_jwt_secret:
            if len(secret.encode()) < 32:
                raise SettingsError("librechat_jwt_secret must have at least 32 bytes.")
            keys = (*keys, _Key(None, "HS256", secret))
        return cls(keys, settings.librechat_jwt_issuer, settings.librechat_jwt_audience) if keys else None

    def verify(self, token: str) -> Identity | None:
        """Whose JWT this is; None when it is no JWT. UnauthorizedError when it is a bad one."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError:
            return None
        for key in self._keys:
            if key.algorithm == header.get("alg") and key.id in (None, header.get("kid")):
                claims = self._claims(token, key)
                if claims is not None:
                    return _identity(claims)
        raise bad_token()

    def _claims(self, token: str, key: _Key) -> Mapping[str, Any] | None:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=_LEEWAY,
                options={"require": ["exp", "iat", "sub"]},
            )
        except jwt.InvalidTokenError:
            return None
        short = 0 < claims["exp"] - claims["iat"] <= MAX_LIFETIME
        return claims if short and claims["sub"].strip() else None


def _identity(claims: Mapping[str, Any]) -> Identity:
    tenant = claims.get("tenant_id")
    tenant = tenant if isinstance(tenant, str) and tenant.strip() else _NO_TENANT
    user: str = claims["sub"]
    digest = hashlib.sha256(json.dumps([tenant, user]).encode()).hexdigest()
    principal = Principal(f"lcu_{digest[:32]}", f"librechat:{user}"[:_MAX_NAME], Role.RUN)
    return Identity(principal, f"librechat:{tenant}")


def _public_keys(value: str) -> tuple[_Key, ...]:
    """The keys of a PEM text, a JWK, a JWKS, or of the file with one of these."""
    text = value.strip().replace("\\n", "\n")
    if not text.startswith(("{", "-----BEGIN")):
        try:
            text = Path(text).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise SettingsError("librechat_jwt_key names a file that can't be read.") from error
    try:
        if text.startswith("{"):
            parsed = json.loads(text)
            rows = parsed.get("keys", [parsed])
            keys = tuple(_key(jwt.PyJWK(row, _algorithm_of(row)).key, row.get("kid")) for row in rows)
        else:
            keys = (_key(load_pem_public_key(text.encode()), None),)
    except (
        jwt.PyJWTError,
        UnsupportedAlgorithm,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        raise _bad_key() from error
    if not keys:
        raise _bad_key()
    return keys


def _algorithm_of(row: Mapping[str, Any]) -> str:
    return "EdDSA" if row["kty"] == "OKP" else "RS256"


def _key(key: Any, key_id: str | None) -> _Key:
    if isinstance(key, Ed25519PublicKey):
        return _Key(key_id, "EdDSA", key)
    if isinstance(key, RSAPublicKey):
        return _Key(key_id, "RS256", key)
    raise _bad_key()


def _bad_key() -> SettingsError:
    return SettingsError(
        "librechat_jwt_key must be a public Ed25519 or RSA key: PEM, a JWK, a JWKS, or the path of such a file."
    )
