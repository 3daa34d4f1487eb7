"""A gateway whose descriptors have passed 1023, which `select` can't take."""

from pathlib import Path

import psutil
from service_process import running_service

DESCRIPTORS = 1100


def test_kernels_start_when_the_gateway_holds_very_many_descriptors(tmp_path: Path) -> None:
    with running_service(tmp_path, max_sessions="200") as service, service.client() as client:
        gateway = max(psutil.Process(service.process.pid).children(recursive=True), key=lambda p: p.num_fds())
        sessions = 0
        while gateway.num_fds() < DESCRIPTORS:
            answer = client.post("/v1/sessions", json={})
            assert answer.status_code == 201, f"session {sessions}: {answer.text}"
            gateway = max(
                psutil.Process(service.process.pid).children(recursive=True), key=lambda p: p.num_fds()
            )
            sessions += 1
        run = client.post(f"/v1/sessions/{answer.json()['id']}/runs", json={"code": "1 + 1"}).json()
        assert run["result"] == "2"
        assert client.post("/v1/runs", json={"code": "2 + 2"}).json()["result"] == "4"
