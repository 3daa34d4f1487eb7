"""What a start refuses, and what it does not load."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_gateway import ScriptedGateway

from interpreter.errors import SettingsError
from interpreter.service import Service
from interpreter.settings import Settings


def settings_of(gateway: ScriptedGateway, folder: Path, record: str = "notebooks", **others: Any) -> Settings:
    return Settings(
        **{
            "port": 0,
            "token": "0123456789abcdef",
            "gateway_url": gateway.url,
            "gateway_token": gateway.token,
            "state_dir": str(folder / "state"),
            "record_dir": str(folder / record),
            **others,
        }
    )


async def test_a_second_service_on_the_same_state_is_refused(tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        first = Service(settings_of(gateway, tmp_path))
        await first.start()
        second = Service(settings_of(gateway, tmp_path, "others"))
        with pytest.raises(SettingsError, match=r"^Another service uses state_dir \(.*state\); "):
            await second.start()
        await first.aclose()
        await second.start()
        await second.aclose()


async def test_a_short_token_is_refused_where_other_machines_could_guess_it(tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        for token, ip in (("fifteen-letters", "0.0.0.0"), ("x", "::")):
            service = Service(settings_of(gateway, tmp_path, ip=ip, token=token))
            with pytest.raises(SettingsError, match=r"^token has less than 16 characters"):
                await service.start()
        service = Service(settings_of(gateway, tmp_path, token="x"))
        await service.start()
        await service.aclose()


def test_a_start_loads_nothing_slow_that_it_does_not_need() -> None:
    code = "import sys, interpreter.cli.serve; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    slow = {"nbconvert", "mistune", "bleach", "rfc3987_syntax.syntax_helpers", "openai", "pandas"}
    assert slow.isdisjoint(loaded.stdout.split())
