"""How the command line finds a running service: a private file that it writes at its start.

``state_dir/runtime/service-<pid>.json`` holds ``{"url", "token", "pid"}``. The token is an admin token
that ends with the service, never one that was configured; still the file is readable by the service's
user only, and a file that others could write is not believed.
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from interpreter.errors import SettingsError

_PATTERN = "service-*.json"


@dataclass(frozen=True, slots=True)
class RunningService:
    """Where a service listens, and a token that it accepts."""

    url: str
    token: str = field(repr=False)
    pid: int


def write_runtime_file(state_dir: Path, url: str, token: str) -> Path:
    """Announce this process as a service at ``url``; those of dead processes are removed.

    Raises SettingsError when the file can't be written.
    """
    folder, pid = state_dir / "runtime", os.getpid()
    path = folder / f"service-{pid}.json"
    content = json.dumps({"url": url, "token": token, "pid": pid}).encode()
    temporary = folder / f".service-{pid}.tmp"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_dead(folder)
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError as error:
        raise SettingsError(f"The runtime file can't be written in state_dir: {error.strerror}.") from error
    return path


def remove_runtime_file(path: Path) -> None:
    """The service has ended."""
    with contextlib.suppress(OSError):
        path.unlink()


def find_running(state_dir: Path) -> RunningService | None:
    """The service that was started last among those that live, None when there is none."""
    found = sorted(_running(state_dir / "runtime"), key=lambda item: item[0])
    return found[-1][1] if found else None


def _running(folder: Path) -> Iterator[tuple[int, RunningService]]:
    for path in folder.glob(_PATTERN):
        try:
            with path.open(encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                data = json.load(file)
            service = RunningService(str(data["url"]), str(data["token"]), int(data["pid"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # being removed, or not written by a service
        if _is_private(status) and _lives(service.pid):
            yield status.st_mtime_ns, service


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0) and not stat.S_IMODE(status.st_mode) & 0o077


def _lives(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it lives, and belongs to another user
    return True


def _remove_dead(folder: Path) -> None:
    for path in folder.glob(_PATTERN):
        number = path.stem.removeprefix("service-")
        if number.isdecimal() and not _lives(int(number)):
            path.unlink(missing_ok=True)
