"""A gateway whose descriptors have passed 1023, which `select` can't take."""

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from service_process import ServiceProcess, running_service

DESCRIPTORS = 1100


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service of its own: what its gateway holds would slow down the others' kernels."""
    with running_service(tmp_path) as running:
        yield running


@pytest.fixture
def room_for_descriptors() -> Iterator[None]:
    """The other ends of the gateway's connections are here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def held_connections(gateway: psutil.Process) -> Iterator[None]:
    """Connections to the gateway that say nothing, until it holds very many descriptors."""
    [port] = [word.partition("=")[2] for word in gateway.cmdline() if "KernelGatewayApp.port=" in word]
    with contextlib.ExitStack() as stack:
        while gateway.num_fds() < DESCRIPTORS:
            for _ in range(50):
                stack.enter_context(socket.create_connection(("127.0.0.1", int(port)), timeout=60))
        yield


@pytest.mark.usefixtures("room_for_descriptors")
def test_kernels_start_when_the_gateway_holds_very_many_descriptors(
    service: ServiceProcess, api: httpx.Client
) -> None:
    with held_connections(service.gateway):
        session_id = api.post("/v1/sessions", json={}).json()["id"]
        run = api.post(f"/v1/sessions/{session_id}/runs", json={"code": "1 + 1"}).json()
        assert run["result"] == "2"
        assert api.post("/v1/runs", json={"code": "2 + 2"}).json()["result"] == "4"
        assert service.gateway.num_fds() > DESCRIPTORS
