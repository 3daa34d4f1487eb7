"""What a start refuses, and what it does not load."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_gateway import ScriptedGateway

from interpreter.errors import SettingsError
from interpreter.runtime_file import find_running, remove_runtime_file, write_runtime_file
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


@pytest.mark.parametrize("ip", ["no-such-host.invalid", "203.0.113.7", "a..b", "127.0.0.1.5"])
async def test_an_ip_of_nowhere_is_named(ip: str, tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        with pytest.raises(SettingsError, match=r"^ip is not an address of this machine: "):
            await Service(settings_of(gateway, tmp_path, ip=ip)).start()


async def test_a_start_without_a_usable_gateway_says_that_no_code_can_be_executed(tmp_path: Path) -> None:
    variables = {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "INTERPRETER_STATE_DIR")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(
            "-m",
            "interpreter",
            "serve",
            "--port=0",
            "--gateway-auth=none",
            "--gateway-url=http://127.0.0.1:1",
        ),
        env={**os.environ, **variables},
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    said = await process.stdout.readuntil(b"a new start.\n")
    process.terminate()
    await process.communicate()
    assert process.returncode == 0
    assert b"NO CODE CAN BE EXECUTED" in said
    assert b"/?token=" in said
    assert b"connection refused; start the gateway or change gateway_url." in said


async def test_an_external_gateway_without_the_kernelspec_is_no_reason_not_to_start(tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        service = Service(settings_of(gateway, tmp_path, kernel_name="nosuch"))
        await service.start()
        await service.aclose()


async def test_a_configured_token_is_written_nowhere(tmp_path: Path) -> None:
    async with ScriptedGateway() as gateway:
        secret = "a-configured-token"
        service = Service(settings_of(gateway, tmp_path, token=secret))
        await service.start()
        path = write_runtime_file(tmp_path / "state", service.url, service.local_token)
        running = find_running(tmp_path / "state")
        assert running is not None
        assert running.token == service.local_token != service.token == secret
        async with httpx.AsyncClient(base_url=service.url, trust_env=False) as client:
            for token, status in ((secret, 200), (running.token, 200), ("other", 401)):
                headers = {"Authorization": f"Bearer {token}"}
                assert (await client.get("/v1/tokens", headers=headers)).status_code == status
        await service.aclose()
        remove_runtime_file(path)
    written = [
        file for file in tmp_path.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()
    ]
    assert not written


async def test_each_start_has_a_token_of_the_same_form(tmp_path: Path) -> None:
    seen = []
    async with ScriptedGateway() as gateway:
        for _ in range(2):
            service = Service(settings_of(gateway, tmp_path, token=""))
            await service.start()
            seen += [service.token, service.local_token]
            await service.aclose()
    assert all(re.fullmatch(r"jci_[\w-]{43}", token) for token in seen)
    assert len(set(seen)) == 3, "a later start prints the one that ends with it"


@pytest.mark.parametrize("sent", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"])
async def test_a_client_that_does_not_finish_its_request_is_sent_away(
    tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interpreter.service.IDLE_TIMEOUT", 0.05)
    async with ScriptedGateway() as gateway:
        service = Service(settings_of(gateway, tmp_path))
        await service.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(service.url.rpartition(":")[2]))
        writer.write(sent)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
        await service.aclose()
