"""The sandbox does the same for a gateway that is an ordinary user: its tests run again as one."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_kit import IS_ROOT, PROJECT

USER = 65534  # nobody
HERE = Path(__file__).parent


def as_ordinary_user(argv: list[str]) -> list[str]:
    """A command that runs ``argv`` as a plain user, who can enter the folder of this Python too."""
    base = sys.base_prefix
    closed = next((str(p) for p in reversed(Path(base).parents) if p.stat().st_mode & 0o005 != 0o005), None)
    steps = ["set -e"]
    if closed is not None:  # say /root: replaced, in a mount namespace of its own, by a folder with that only
        steps += [
            f"mount --bind {shlex.quote(base)} /mnt",
            f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(closed)}",
            f"mkdir -p {shlex.quote(base)}",
            f"mount --move /mnt {shlex.quote(base)}",
        ]
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
    steps.append(f"exec {shlex.join([*user, *argv])}")
    return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", "\n".join(steps)]


if IS_ROOT:

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("name", ["attacks", "life", "limits", "network"])
    def test_as_an_ordinary_user(name: str, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        for folder in ("home", "tmp"):
            (tmp_path / folder).mkdir()
            os.chown(tmp_path / folder, USER, USER)
        tests = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-x",
            str(HERE / f"test_sandbox_{name}.py"),
        ]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "TMPDIR": "/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        result = subprocess.run(
            as_ordinary_user(tests), cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
