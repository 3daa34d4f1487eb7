"""Who may use the service: bearer tokens with a role, stored as hashes.

The secret of a token is shown once, when it is made. What an operator sets as `Settings.token` is
never stored: it is an admin token of this process. So is a random one, for the command line on the same
machine, which lives as long as the process.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from interpreter.errors import ConflictError, UnavailableError
from interpreter.models import JSON, Principal, Role, from_iso, new_id, to_iso
from interpreter.store import Store, tokens_table

CONFIGURED_ID = "tok_configured"
"""Id of the token that the settings hold; it is in no table and can't be revoked."""
LOCAL_ID = "tok_local"
"""Id of the token that the service makes for the command line at each start; in no table either."""

_ID_PREFIX = "tok_"
_CACHE_SECONDS = 2.0
"""How long a found token is trusted unasked: what another process revokes ends within this time."""
_LAST_USED_STEP = timedelta(minutes=1)
_MAX_SECRET = 1024
_IRREVOCABLE = {
    CONFIGURED_ID: "This token comes from the service's settings; change `token` there.",
    LOCAL_ID: "This token is the command line's; it ends with the service.",
}


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """How front ends that send nothing but a token treat its user."""

    keep_state: bool = False
    """One session for all: a client that makes a kernel per run goes on where its last run ended."""
    stderr_to_stdout: bool = False
    """What goes to stderr, tracebacks too, also goes to stdout: some models are shown only that."""

    def as_json(self) -> JSON:
        """For the REST contract and the store."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token without its secret. ``fingerprint`` changes with the secret; it is not shown."""

    id: str
    name: str
    role: Role
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    fingerprint: str = field(default="", repr=False)
    options: TokenOptions = TokenOptions()

    @property
    def principal(self) -> Principal:
        return Principal(self.id, self.name, self.role)

    def is_valid(self, now: datetime) -> bool:
        """Whether it has not expired."""
        return self.expires_at is None or now < self.expires_at

    def as_json(self) -> JSON:
        """The token of the REST contract, without the secret."""
        return {
            "id": self.id,
            "name": self.name,
            "role": self.role.value,
            "created_at": to_iso(self.created_at),
            "expires_at": to_iso(self.expires_at),
            "last_used_at": to_iso(self.last_used_at),
            "options": self.options.as_json(),
        }


@dataclass(frozen=True, slots=True)
class _Cached:
    info: TokenInfo
    until: float


class TokenStore:
    """Makes, checks and revokes tokens.

    A found token is kept in memory for two seconds, so that a request costs no query; a revocation
    by this process empties that memory and acts at once.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], datetime],
        configured_secret: str = "",
        local_secret: str = "",
    ) -> None:
        """The two secrets are admin tokens that live as long as this object; empty: none."""
        self._store = store
        self._clock = clock
        self._cache: dict[str, _Cached] = {}  # by hash, and by id
        self._generation = 0
        self._unstored: dict[str, TokenInfo] = {}  # by hash
        for token_id, name, secret in (
            (LOCAL_ID, "local command line", local_secret),
            (CONFIGURED_ID, "configured", configured_secret),
        ):
            if secret:
                digest = _hash(secret)
                self._unstored[digest] = TokenInfo(
                    token_id, name, Role.ADMIN, clock(), fingerprint=_fingerprint(digest)
                )

    async def create(
        self,
        name: str,
        role: Role,
        expires_at: datetime | None,
        options: TokenOptions = TokenOptions(),  # frozen
    ) -> tuple[TokenInfo, str]:
        """A new token and its secret, which is not kept. UnavailableError when the store is down."""
        secret = new_secret()
        digest = _hash(secret)
        now = self._clock()
        info = TokenInfo(
            f"{_ID_PREFIX}{new_id()}", name, role, now, expires_at, None, _fingerprint(digest), options
        )
        row = {**info.as_json(), "secret_hash": digest, "options": json.dumps(options.as_json())}
        await self._store.run(lambda connection: connection.execute(sa.insert(tokens_table), row))
        return info, secret

    async def authenticate(self, secret: str) -> Principal | None:
        """Whose secret this is; None when it is unknown, revoked or expired."""
        info = await self.find(secret)
        return info.principal if info else None

    async def find(self, secret: str) -> TokenInfo | None:
        """The valid token with this secret."""
        if not secret or len(secret) > _MAX_SECRET:
            return None
        digest = _hash(secret)
        for known, info in self._unstored.items():
            if hmac.compare_digest(digest, known):
                return info
        return await self._cached(digest, lambda c: _select(c, tokens_table.c.secret_hash == digest, digest))

    async def get(self, token_id: str) -> TokenInfo | None:
        """The valid token with this id."""
        if token_id in (CONFIGURED_ID, LOCAL_ID):
            return self._find_unstored(token_id)
        return await self._cached(token_id, lambda c: _select(c, tokens_table.c.id == token_id))

    async def has_ended(self, token_id: str) -> bool:
        """Whether a token was revoked or has expired; False for who came without one of this store.

        A store that can't be asked has ended nothing.
        """
        try:
            return token_id.startswith(_ID_PREFIX) and await self.get(token_id) is None
        except UnavailableError:
            return False

    async def list(self) -> list[TokenInfo]:
        """All tokens that were not revoked (expired ones too), newest first."""
        where = tokens_table.c.revoked_at.is_(None)
        query = sa.select(tokens_table).where(where).order_by(tokens_table.c.created_at.desc())
        rows = await self._store.run(lambda connection: connection.execute(query).mappings().all())
        return [*reversed(self._unstored.values()), *(_info(row) for row in rows)]

    async def revoke(self, token_id: str) -> bool:
        """End a token at once; False when there is none. ConflictError for the last admin token."""
        if unstored := self._find_unstored(token_id):
            raise ConflictError(_IRREVOCABLE[unstored.id])
        try:
            return await asyncio.shield(self._store.run(lambda c: self._revoke(c, token_id)))
        finally:
            # Also makes a look-up that is on its way right now look again.
            self._generation += 1
            self._cache.clear()

    def _find_unstored(self, token_id: str) -> TokenInfo | None:
        return next((info for info in self._unstored.values() if info.id == token_id), None)

    async def _cached(self, key: str, find: Callable[[sa.Connection], TokenInfo | None]) -> TokenInfo | None:
        loop = asyncio.get_running_loop()
        cached = self._cache.get(key)
        if cached is None or loop.time() >= cached.until:
            self._cache.pop(key, None)
            info = await self._look_up(find)
            if info is None:
                return None
            self._drop_old(loop.time())
            cached = self._cache[key] = _Cached(info, loop.time() + _CACHE_SECONDS)
        return cached.info if cached.info.is_valid(self._clock()) else None

    async def _look_up(self, find: Callable[[sa.Connection], TokenInfo | None]) -> TokenInfo | None:
        while True:
            generation = self._generation
            info = await self._store.run(lambda connection: self._use(connection, find(connection)))
            if generation == self._generation:
                return info

    def _drop_old(self, now: float) -> None:
        for key in [key for key, cached in self._cache.items() if now >= cached.until]:
            del self._cache[key]

    def _use(self, connection: sa.Connection, info: TokenInfo | None) -> TokenInfo | None:
        now = self._clock()
        if info is None or not info.is_valid(now):
            return None
        if info.last_used_at is None or now - info.last_used_at >= _LAST_USED_STEP:
            change = sa.update(tokens_table).where(tokens_table.c.id == info.id)
            connection.execute(change.values(last_used_at=to_iso(now)))
        return info

    def _revoke(self, connection: sa.Connection, token_id: str) -> bool:
        now = self._clock()
        where = tokens_table.c.revoked_at.is_(None)
        query = sa.select(tokens_table).where(where).with_for_update()
        infos = {row["id"]: _info(row) for row in connection.execute(query).mappings()}
        if token_id not in infos:
            return False
        admins = {i.id for i in infos.values() if i.role is Role.ADMIN and i.is_valid(now)}
        if admins == {token_id} and self._find_unstored(CONFIGURED_ID) is None:
            raise ConflictError("This is the last admin token; make another one before you revoke it.")
        change = sa.update(tokens_table).where(tokens_table.c.id == token_id)
        connection.execute(change.values(revoked_at=to_iso(now)))
        return True


def new_secret() -> str:
    """The secret of a new token: 256 random bits."""
    return f"jci_{secrets.token_urlsafe(32)}"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _fingerprint(digest: str) -> str:
    return hashlib.sha256(digest.encode()).hexdigest()[:32]


def _select(connection: sa.Connection, where: Any, digest: str | None = None) -> TokenInfo | None:
    query = sa.select(tokens_table).where(where, tokens_table.c.revoked_at.is_(None))
    row = connection.execute(query).mappings().one_or_none()
    if row is None or (digest is not None and not hmac.compare_digest(row["secret_hash"], digest)):
        return None
    return _info(row)


def _info(row: Any) -> TokenInfo:
    created_at = from_iso(row["created_at"])
    assert created_at is not None, "the column is not nullable"
    return TokenInfo(
        row["id"],
        row["name"],
        Role(row["role"]),
        created_at,
        from_iso(row["expires_at"]),
        from_iso(row["last_used_at"]),
        _fingerprint(row["secret_hash"]),
        _options(row["options"]),
    )


def _options(text: str | None) -> TokenOptions:
    """The options of a row; those of a token from before there were any are all off."""
    stored = json.loads(text) if text else {}
    return TokenOptions(**{name: bool(stored.get(name)) for name in TokenOptions().as_json()})
