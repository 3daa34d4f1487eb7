"""Published clients that are too heavy to install whole, from the folder where `make test` puts them.

Of what they require only what is imported is there, so their packages are imported here, and nowhere else.
"""

import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from openwebui import CLIENTS
from service_process import ServiceProcess

FOLDER = CLIENTS / "agents"


def load(name: str, *bare: str) -> Any:
    """A module of theirs. Of the ``bare`` packages around it the ``__init__`` is not run: it imports the world."""
    if not FOLDER.is_dir():
        pytest.skip("The clients are not there; `make test` installs them")
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    for package in bare:
        if package not in sys.modules:
            module = ModuleType(package)
            module.__path__ = [str(FOLDER.joinpath(*package.split(".")))]
            sys.modules[package] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def autogen_executor(service: ServiceProcess, output_dir: Any, token: str | None = None) -> Any:
    """AutoGen's executor with a connection to the service in place of its Docker container."""
    module = load("autogen_ext.code_executors.docker_jupyter")
    connection = load("autogen_ext.code_executors.docker_jupyter._jupyter_server").JupyterConnectionInfo(
        host="127.0.0.1", use_https=False, port=_port(service), token=token or service.token
    )
    return module.DockerJupyterCodeExecutor(connection, timeout=30, output_dir=output_dir)


@contextmanager
def smolagents_executor(service: ServiceProcess) -> Iterator[Any]:
    """smolagents' executor, whole; only the Docker engine that it starts a Kernel Gateway in is stood in for.

    It makes up the gateway's token itself: that is the service's.
    """
    remote = load("smolagents.remote_executors")
    container = SimpleNamespace(
        status="running", short_id="stand-in", stop=lambda: None, remove=lambda: None, reload=lambda: None
    )
    engine = SimpleNamespace(
        images=SimpleNamespace(get=lambda name: None),
        containers=SimpleNamespace(run=lambda image, **options: container),
    )
    monitoring = load("smolagents.monitoring")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load("docker"), "from_env", lambda: engine)
        patch.setattr(remote.secrets, "token_urlsafe", lambda size: service.token)
        executor = remote.DockerExecutor(
            [],
            monitoring.AgentLogger(level=monitoring.LogLevel.OFF),
            port=_port(service),
            build_new_image=False,
        )
    yield executor
    executor.cleanup()


def _port(service: ServiceProcess) -> int:
    return int(service.url.rsplit(":", 1)[1])
