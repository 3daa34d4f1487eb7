"""Servers of others, each a process of its own at a port of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

START_TIMEOUT = 90.0


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free port of 127.0.0.1 for a server to be started; held meanwhile, so that no one else is given it.

    The server can bind it none the less: it sets SO_REUSEADDR too, and only one of both listens.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@contextmanager
def stock_server(folder: Path, module: str, *options: str, token: str) -> Iterator[str]:
    """The URL of ``python -m MODULE`` once it answers; ``{port}`` in an option stands for its port.

    What it keeps, it keeps in the folder.
    """
    folders = {f"JUPYTER_{name}_DIR": str(folder) for name in ("CONFIG", "DATA", "RUNTIME")}
    with reserved_port() as port, (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *(option.format(port=port) for option in options)],
            cwd=folder,
            env={**os.environ, **folders, "TMPDIR": str(folder)},
            stdout=log,
            stderr=log,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_for(f"{url}/api", token, process, folder / "server.log")
            yield url
        finally:
            process.terminate()
            process.wait()


def _wait_for(url: str, token: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    with httpx.Client(headers={"Authorization": f"token {token}"}, trust_env=False) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if client.get(url).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
    raise AssertionError(log.read_text())
