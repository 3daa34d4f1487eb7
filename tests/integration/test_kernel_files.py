"""Files on a gateway that does not share its disk: a plain Kernel Gateway that knows nothing of us."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_process import ServiceProcess, running_service
from stock_servers import stock_server

TOKEN = "gateway-token"


@pytest.fixture(scope="module")
def gateway_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    options = (
        *("--KernelGatewayApp.port={port}", "--KernelGatewayApp.port_retries=0"),
        *("--JupyterWebsocketPersonality.list_kernels=True", f"--KernelGatewayApp.auth_token={TOKEN}"),
    )
    with stock_server(folder, "kernel_gateway", *options, token=TOKEN) as url:
        yield url


@pytest.fixture(scope="module")
def remote(gateway_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service(
        tmp_path_factory.mktemp("remote"), gateway_url=gateway_url, gateway_token=TOKEN
    ) as running:
        yield running


def test_files_work_without_a_shared_disk(remote: ServiceProcess) -> None:
    with remote.client() as api:
        session_id = api.post("/v1/sessions", json={}).json()["id"]
        base = f"/v1/sessions/{session_id}/files"
        content = os.urandom(3 * 1024**2 + 17)
        assert api.put(f"{base}/d/in.bin", content=content).status_code == 201
        code = (
            "import hashlib\ndata = open('d/in.bin', 'rb').read()\nopen('out.txt', 'w').write(str(len(data)))"
        )
        run = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code}).json()
        assert run["status"] == "ok", run["error"]
        assert [(f["path"], f["change"]) for f in run["files"]] == [("out.txt", "created")]
        assert api.get(run["files"][0]["url"]).text == str(len(content))
        assert api.get(f"{base}/d/in.bin").content == content
        assert api.get(f"{base}/d/in.bin", headers={"Range": "bytes=-17"}).content == content[-17:]
        assert [f["path"] for f in api.get(base).json()["data"]] == ["d/in.bin", "out.txt"]
        again = api.post(f"/v1/sessions/{session_id}/runs", json={"code": "dir()"}).json()
        assert again["execution_count"] == 2, "looking after files leaves no trace"
        assert "_interpreter" not in again["result"]
        assert api.post(f"/v1/sessions/{session_id}/restart").status_code == 200
        assert api.get(f"{base}/out.txt").status_code == 200
        assert api.delete(f"{base}/out.txt").status_code == 204
        run = api.post(
            f"/v1/sessions/{session_id}/runs", json={"code": "import os; print(os.listdir(), os.getcwd())"}
        ).json()
        assert run["stdout"].startswith("['d'] ")
        folder = Path(run["stdout"].split()[-1])
        assert folder.is_dir()
        assert api.delete(f"/v1/sessions/{session_id}").status_code == 204
        assert not folder.exists()


def test_a_busy_kernel_has_its_files_later(remote: ServiceProcess) -> None:
    with remote.client() as api:
        session_id = api.post("/v1/sessions", json={}).json()["id"]
        base = f"/v1/sessions/{session_id}/files"
        code = "import time\nprint('begun', flush=True)\ntime.sleep(1)\nopen('a', 'w').write('x')"
        run = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code, "background": True}).json()
        with api.stream("GET", f"/v1/runs/{run['id']}/events") as events:
            assert any('"begun' in line for line in events.iter_lines())
        assert api.get(f"{base}/a").text == "x", "it waits for the run"
        api.delete(f"/v1/sessions/{session_id}")
