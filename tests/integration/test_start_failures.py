"""A kernel that the gateway can't start: whoever asked is told why, and the log has the rest."""

import json
import sys
from pathlib import Path

from service_process import logged_since, running_service


def test_why_no_kernel_starts_is_told_and_logged(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    folder = environment / "share" / "jupyter" / "kernels" / "python3"
    folder.mkdir(parents=True)
    (folder / "interpreter_kernel.py").touch()
    spec = {
        "argv": ["/not/there"],
        "display_name": "Broken",
        "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": "local-provisioner"}},
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    (environment / "bin").mkdir()
    (environment / "bin" / "python").symlink_to(sys.executable)
    with running_service(tmp_path, kernel_env_dir=str(environment)) as service, service.client() as api:
        refused = api.post("/v1/sessions", json={})
    assert refused.status_code == 502
    told = refused.json()["error"]["message"]
    assert told == "The gateway could not start the kernel: FileNotFoundError: No such file or directory."
    [log] = [text for path, text in logged_since(0.0) if path == service.log_path]
    assert f"error={told}" in log
    assert "Traceback (most recent call last)" in log
    assert "/not/there" in log


def test_a_restart_that_failed_leaves_nothing_in_the_way_of_the_next_kernel(tmp_path: Path) -> None:
    with running_service(tmp_path) as service, service.client() as api:
        session_id = api.post("/v1/sessions", json={}).json()["id"]
        workspaces = service.state_dir / "workspaces"
        (workspaces / session_id).rename(workspaces / "away")
        assert api.post(f"/v1/sessions/{session_id}/restart").status_code == 502
        (workspaces / "away").rename(workspaces / session_id)
        answer = api.post(f"/v1/sessions/{session_id}/runs", json={"code": "6 * 7"}).json()
    assert answer["result"] == "42", answer
