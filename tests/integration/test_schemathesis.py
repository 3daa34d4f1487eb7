"""Generated requests for every route: no 500, and nothing that /openapi.json does not say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from service_process import ServiceProcess

# A 500 is documented nowhere, so `status_code_conformance` finds it; the documented 502 to 504 are
# right answers where a generated request is late (`not_a_server_error` would refuse them too).
CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("role", ["admin", "run"])
def test_every_route_answers_as_documented(
    service: ServiceProcess, api: httpx.Client, tmp_path: Path, role: str
) -> None:
    made = api.post("/v1/tokens", json={"name": f"schemathesis {role}", "role": role}).json()
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"{service.url}/openapi.json",
        f"--header=Authorization: Bearer {made['token']}",
        f"--checks={CHECKS}",
        "--phases=examples,coverage,fuzzing",
        "--max-examples=4",
        "--mode=all",
        "--seed=1",
        "--workers=1",
        "--request-timeout=30",
        "--exclude-path-regex=^/v1/tokens/\\{",
        "--max-time=25",
        "--no-color",
        f"--report-ndjson-path={tmp_path / 'report.ndjson'}",
    ]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stdout[-12000:] + done.stderr[-2000:]
    assert '"status_code":500' not in (tmp_path / "report.ndjson").read_text().replace(" ", "")
    for session in api.get("/v1/sessions", params={"limit": 100}).json()["data"]:
        api.delete(f"/v1/sessions/{session['id']}")
    assert json.loads(api.get("/readyz").text)["status"] == "ok"
