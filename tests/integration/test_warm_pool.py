"""Sessions from the warm pool of a real service."""

from pathlib import Path

from service_process import running_service


def test_a_session_from_the_pool_is_fresh_and_never_used_twice(tmp_path: Path) -> None:
    with running_service(tmp_path, pool_size="2", pool_min="2") as service, service.client() as client:
        seen = []
        for _ in range(3):
            session_id = client.post("/v1/sessions", json={}).json()["id"]
            code = "import os\ntry: x\nexcept NameError: x = 1; print('fresh', os.listdir())\nopen('mark', 'w').close()"
            run = client.post(f"/v1/sessions/{session_id}/runs", json={"code": code}).json()
            assert run["stdout"] == "fresh []\n"
            assert [f["path"] for f in run["files"]] == ["mark"]
            assert run["kernel_restarted"] is False
            seen.append(session_id)
        assert len(set(seen)) == 3
        for session_id in seen:
            assert client.delete(f"/v1/sessions/{session_id}").status_code == 204
            assert client.get(f"/v1/notebooks/{session_id}/verify").json()["valid"] is True
