"""The tokens in SQLite and in a real PostgreSQL."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from interpreter.errors import ConflictError, SettingsError, UnavailableError
from interpreter.models import Role
from interpreter.store import Store, sqlite_url
from interpreter.tokens import CONFIGURED_ID, LOCAL_ID, TokenStore

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL that listens on a Unix socket only. It refuses to run as root."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    user: dict[str, object] = {}
    if os.getuid() == 0:
        account = pwd.getpwnam("postgres")
        os.chown(folder, account.pw_uid, account.pw_gid)
        user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    data, log = folder / "data", folder / "log"

    def call(program: str, *arguments: str) -> None:
        command = [str(PROGRAMS[-1] / program), *arguments]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=60, **user)

    call("initdb", "-D", str(data), "-U", "tester", "--auth=trust", "--no-sync")
    options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
    call("pg_ctl", "-D", str(data), "-l", str(log), "-w", "-o", options, "start")
    yield f"postgresql://tester@/postgres?host={folder}"
    call("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
    shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "store.sqlite")
    return str(request.getfixturevalue("postgresql"))


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = Store(url)
    await store.start()
    yield store
    await store.aclose()


async def test_a_token_has_ended_when_it_is_revoked_and_who_has_none_never(store: Store) -> None:
    tokens = TokenStore(store, clock=now, configured_secret="c" * 32)
    info, _ = await tokens.create("a", Role.RUN, None)
    assert [await tokens.has_ended(known) for known in (info.id, CONFIGURED_ID, "lcu_1")] == [False] * 3
    await tokens.revoke(info.id)
    assert await tokens.has_ended(info.id)


async def test_a_token_is_known_until_it_is_revoked(store: Store) -> None:
    tokens = TokenStore(store, clock=now)
    info, secret = await tokens.create("front end", Role.RUN, None)
    found = await tokens.authenticate(secret)
    assert found is not None
    assert (found.token_id, found.name, found.role) == (info.id, "front end", Role.RUN)
    assert await tokens.revoke(info.id) is True
    assert await tokens.authenticate(secret) is None
    assert await tokens.revoke(info.id) is False


async def test_tokens_outlive_the_service_and_their_secrets_are_not_stored(url: str) -> None:
    first = Store(url)
    await first.start()
    info, secret = await TokenStore(first, clock=now).create("kept", Role.REVIEW, None)
    await first.aclose()
    second = Store(url)
    await second.start()
    tokens = TokenStore(second, clock=now)
    assert (await tokens.authenticate(secret)) is not None
    assert secret not in repr(await tokens.list())
    await tokens.revoke(info.id)
    await second.aclose()


async def test_an_expired_token_is_unknown(store: Store) -> None:
    later = [now()]
    tokens = TokenStore(store, clock=lambda: later[0])
    _, secret = await tokens.create("short", Role.RUN, later[0] + timedelta(seconds=10))
    assert await tokens.authenticate(secret) is not None
    later[0] += timedelta(seconds=11)
    assert await tokens.authenticate(secret) is None


async def test_the_last_admin_token_stays(store: Store) -> None:
    tokens = TokenStore(store, clock=now)
    info, _ = await tokens.create("admin", Role.ADMIN, None)
    with pytest.raises(ConflictError):
        await tokens.revoke(info.id)


async def test_a_database_that_is_not_there_is_a_sentence() -> None:
    store = Store("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(UnavailableError) as caught:
        await store.start()
    assert "store_url" in caught.value.message
    await store.aclose()


def test_a_wrong_url_names_the_setting() -> None:
    with pytest.raises(SettingsError, match="store_url"):
        Store("nonsense")


@pytest.fixture
async def private(tmp_path: Path) -> AsyncIterator[Store]:
    """A store without tokens of other tests."""
    made = Store(sqlite_url(tmp_path / "private.sqlite"))
    await made.start()
    yield made
    await made.aclose()


async def test_the_tokens_of_the_settings_and_of_the_process_are_admins_that_nobody_revokes(
    private: Store,
) -> None:
    tokens = TokenStore(private, clock=now, configured_secret="configured!", local_secret="local!")
    for secret, token_id in (("configured!", CONFIGURED_ID), ("local!", LOCAL_ID)):
        found = await tokens.find(secret)
        assert found is not None
        assert (found.id, found.role) == (token_id, Role.ADMIN)
        assert await tokens.get(token_id) == found
        with pytest.raises(ConflictError):
            await tokens.revoke(token_id)
    assert [info.id for info in await tokens.list()] == [CONFIGURED_ID, LOCAL_ID]
    assert await TokenStore(private, clock=now).list() == []


async def test_the_last_stored_admin_token_stays_although_the_process_has_one(private: Store) -> None:
    tokens = TokenStore(private, clock=now, local_secret="local!")
    info, _ = await tokens.create("only", Role.ADMIN, None)
    with pytest.raises(ConflictError):
        await tokens.revoke(info.id)
