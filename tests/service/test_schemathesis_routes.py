"""Generated requests for every route, by two roles."""

from pathlib import Path

import httpx
import pytest
from schemathesis_kit import check_answers
from scripted_gateway import ScriptedGateway

from interpreter.service import Service
from interpreter.settings import Settings

TOKEN = "token-of-an-admin"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", ["admin", "run"])
async def test_every_route_answers_as_documented(tmp_path: Path, role: str) -> None:
    folders = {"state_dir": str(tmp_path / "state"), "record_dir": str(tmp_path / "notebooks")}
    async with ScriptedGateway() as gateway:
        settings = Settings(
            port=0, token=TOKEN, gateway_url=gateway.url, gateway_token=gateway.token, **folders
        )
        service = Service(settings)
        await service.start()
        try:
            url = service.url
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60) as api:
                made = (await api.post("/v1/tokens", json={"name": "schemathesis", "role": role})).json()
                await check_answers(tmp_path, url, made["token"], "--exclude-path-regex=^/v1/tokens/\\{")
                assert (await api.get("/readyz")).json()["status"] == "ok"
        finally:
            await service.aclose()
