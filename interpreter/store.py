"""The store: small tables in SQLite (default) or PostgreSQL, always used from one thread of its own.

SQLAlchemy's blocking engine runs in a single worker thread: the tables are small, the event loop
never waits for a disk, and two changes of this process never interleave.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from interpreter.errors import SettingsError, UnavailableError

T = TypeVar("T")

metadata = sa.MetaData()

tokens_table = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("role", sa.String(20), nullable=False),
    # SHA-256 of the secret, hex. The secrets are 256 random bits, so a slow hash would add nothing.
    sa.Column("secret_hash", sa.String(64), nullable=False, unique=True),
    # Times are ISO 8601 UTC text of one fixed length: they sort, and every database agrees on them.
    sa.Column("created_at", sa.String(32), nullable=False),
    sa.Column("expires_at", sa.String(32)),
    sa.Column("last_used_at", sa.String(32)),
    sa.Column("revoked_at", sa.String(32)),
    sa.Column("options", sa.Text),  # JSON; NULL in a row from before there were any
)


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return sa.URL.create("sqlite", database=str(path)).render_as_string()


class Store:
    """Runs short transactions. `start` first, `aclose` last."""

    def __init__(self, url: str) -> None:
        """``url`` is an SQLAlchemy URL; SettingsError when it can't be used at all."""
        self._url = _parse(url)
        self._engine = _engine(self._url)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")

    async def start(self) -> None:
        """Make the tables that are missing. UnavailableError when the database can't be reached."""
        await self._in_thread(self._create)

    async def run(self, work: Callable[[sa.Connection], T]) -> T:
        """The result of ``work`` in one transaction; UnavailableError when the database fails."""
        return await self._in_thread(lambda: self._transaction(work))

    async def find_problem(self) -> str | None:
        """Why the store can't be used now, in one sentence; None when it can."""
        try:
            await self.run(lambda connection: connection.execute(sa.select(tokens_table.c.id).limit(1)).all())
        except UnavailableError as error:
            return error.message
        return None

    async def aclose(self) -> None:
        """Close the connections and end the thread."""
        await self._in_thread(self._engine.dispose)
        self._executor.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _create(self) -> None:
        database = self._url.database
        if self._url.get_backend_name() == "sqlite" and database not in (None, "", ":memory:"):
            _make_private_file(Path(str(database)))
        try:
            metadata.create_all(self._engine)
            _add_options(self._engine)
        except sa.exc.SQLAlchemyError as error:
            raise _unavailable() from error

    def _transaction(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            with self._engine.begin() as connection:
                return work(connection)
        except sa.exc.SQLAlchemyError as error:
            raise _unavailable() from error


def _unavailable() -> UnavailableError:
    return UnavailableError(
        "The store can't be used; check the database that `store_url` names.",
        code="store_unavailable",
        retry_after=5,
    )


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise SettingsError("store_url is not an SQLAlchemy URL.") from error
    if parsed.drivername in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _engine(url: sa.URL) -> sa.Engine:
    try:
        if url.get_backend_name() != "sqlite":
            return sa.create_engine(url, pool_pre_ping=True)
        if url.database in (None, "", ":memory:"):
            return sa.create_engine(
                url, poolclass=StaticPool, connect_args={"check_same_thread": False}
            )  # one connection is the whole database
        engine = sa.create_engine(url, connect_args={"timeout": 5.0})
    except (sa.exc.ArgumentError, ImportError) as error:
        raise SettingsError(
            "store_url names a database whose driver is not installed; for PostgreSQL install the "
            "`postgresql` extra."
        ) from error
    sa.event.listen(engine, "connect", _configure_sqlite)
    return engine


def _configure_sqlite(connection: sa.engine.interfaces.DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")  # the command line may read while the service writes
    cursor.execute("PRAGMA synchronous=FULL")  # a revocation must survive a power cut
    cursor.close()


def _add_options(engine: sa.Engine) -> None:
    """Give the table of an earlier version the column that came later."""
    names = {column["name"] for column in sa.inspect(engine).get_columns(tokens_table.name)}
    if "options" not in names:
        with engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE tokens ADD COLUMN options TEXT"))


def _make_private_file(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise SettingsError(
            "The store's file can't be written; check `state_dir` and `store_url`."
        ) from error
