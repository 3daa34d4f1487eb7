"""The sandbox does the same for a gateway that is an ordinary user: its tests run again as one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_kit import IS_ROOT, PROJECT, USER, as_ordinary_user

pytestmark = pytest.mark.exhaustive

HERE = Path(__file__).parent
LANES = (
    ("attacks", "network", "kernels"),
    ("life", "limits", "places"),
    ("forks", "zygote", "shared", "holdings", "hopping", "crowds"),
)  # side by side; within one, one after the other

if IS_ROOT:

    @pytest.fixture(scope="module")
    def lanes(
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Iterator[dict[tuple[str, ...], subprocess.Popen[str]]]:
        started = {}
        for names in LANES:
            home = tmp_path_factory.mktemp("home")
            os.chown(home, USER, USER)
            folders = {"places": PROJECT / "tests/unit"}
            tests = [str(folders.get(name, HERE) / f"test_sandbox_{name}.py") for name in names]
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
            environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
            started[names] = subprocess.Popen(
                as_ordinary_user(command),
                cwd=PROJECT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        yield started
        for process in started.values():
            if process.poll() is None:  # a test before failed
                process.kill()
                process.communicate()

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("names", LANES, ids="+".join)
    def test_as_an_ordinary_user(
        lanes: dict[tuple[str, ...], subprocess.Popen[str]], names: tuple[str, ...]
    ) -> None:
        output, _ = lanes[names].communicate()
        assert lanes[names].returncode == 0, output[-6000:]
        assert " passed" in output
