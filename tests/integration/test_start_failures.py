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
