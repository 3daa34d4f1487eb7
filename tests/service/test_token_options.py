"""Options of tokens: kept, checked, off for tokens from before there were any."""

import json
import sqlite3
from pathlib import Path

import pytest
from fakes import NOW, Api, error_of

from interpreter.models import Role
from interpreter.store import Store
from interpreter.tokens import TokenOptions, TokenStore

ALL_ON = {"keep_state": True, "stderr_to_stdout": True}


async def test_options_are_told_and_kept(api: Api) -> None:
    made = json.loads(
        (await api.ask("POST", "/v1/tokens", {"name": "a", "role": "run", "options": ALL_ON})).body
    )
    assert made["options"] == ALL_ON
    found = await api.tokens.find(made["token"])
    assert found is not None
    assert found.options == TokenOptions(keep_state=True, stderr_to_stdout=True)
    listed = json.loads((await api.ask("GET", "/v1/tokens")).body)["data"]
    assert next(token for token in listed if token["id"] == made["id"])["options"] == ALL_ON


async def test_options_are_off_unless_they_are_asked_for(api: Api) -> None:
    for options in ({}, {"options": None}, {"options": {}}, {"options": {"keep_state": False}}):
        made = await api.ask("POST", "/v1/tokens", {"name": "a", "role": "run", **options})
        assert json.loads(made.body)["options"] == {"keep_state": False, "stderr_to_stdout": False}


@pytest.mark.parametrize("options", [{"keep_state": 1}, {"keepstate": True}, [], "keep_state"])
async def test_unknown_or_wrong_options_are_refused(api: Api, options: object) -> None:
    refused = await api.ask("POST", "/v1/tokens", {"name": "a", "role": "run", "options": options})
    assert refused.code == 400
    assert str(error_of(refused)["param"]).startswith("options")


async def test_a_store_of_an_earlier_version_gets_the_column(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = Store(f"sqlite:///{path}")
    await store.start()
    _, secret = await TokenStore(store, clock=lambda: NOW).create("old", Role.RUN, None)
    await store.aclose()
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE tokens DROP COLUMN options")
    database.close()
    for _ in range(2):
        store = Store(f"sqlite:///{path}")
        await store.start()
        found = await TokenStore(store, clock=lambda: NOW).find(secret)
        await store.aclose()
        assert found is not None
        assert found.options == TokenOptions()
