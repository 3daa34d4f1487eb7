"""The README's example does what the README says."""

import os
import re
import subprocess
from pathlib import Path

from service_process import ServiceProcess

README = Path(__file__).parents[2] / "README.md"


def test_the_first_run_of_the_readme_prints_its_result(service: ServiceProcess) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (example,) = [block for block in blocks if "curl" in block]
    assert example.count("http://127.0.0.1:8889") == 1
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", example.replace("http://127.0.0.1:8889", service.url)],
        env={"PATH": os.environ["PATH"], "TOKEN": service.token, "NO_PROXY": "*"},
        capture_output=True,
        check=False,
        text=True,
        timeout=90,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "2.0\n", "")
