"""Generated requests for the files and runs of a session that is there, with its real kernel."""

from pathlib import Path

import httpx
import pytest
from schemathesis_kit import check_answers
from service_process import ServiceProcess


@pytest.mark.timeout(300)
async def test_files_and_runs_answer_as_documented(
    service: ServiceProcess, api: httpx.Client, tmp_path: Path
) -> None:
    token = api.post("/v1/tokens", json={"name": "schemathesis", "role": "run"}).json()["token"]
    with service.client(token) as client:
        session_id = client.post("/v1/sessions", json={}).json()["id"]
        client.put(f"/v1/sessions/{session_id}/files/a.txt", content=b"abc")
        (tmp_path / "schemathesis.toml").write_text(f'[parameters]\n"path.session_id" = "{session_id}"\n')
        await check_answers(tmp_path, service.url, token, "--include-path-regex=/(files|runs)")
        run = client.post(f"/v1/sessions/{session_id}/runs", json={"code": "1 + 1"}).json()
        assert (run["status"], run["result"]) == ("ok", "2")
        assert client.delete(f"/v1/sessions/{session_id}").status_code == 204
    assert api.get("/readyz").json()["status"] == "ok"
