"""One real service, with its embedded gateway and real kernels, for all tests that need no own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import httpx
import pytest
from service_process import ServiceProcess, running_service

Run = Callable[..., dict]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service shared by the whole test session. Its grace is one that a busy machine keeps, too."""
    folder = tmp_path_factory.mktemp("service")
    with running_service(folder, interrupt_grace="5", keepalive_interval="1") as running:
        yield running


@pytest.fixture
def api(service: ServiceProcess) -> Iterator[httpx.Client]:
    """A client with the admin token."""
    with service.client() as client:
        yield client


@contextmanager
def new_session(client: httpx.Client) -> Iterator[str]:
    made = client.post("/v1/sessions", json={})
    assert made.status_code == 201, made.text
    yield made.json()["id"]
    client.delete(f"/v1/sessions/{made.json()['id']}")


@pytest.fixture
def own_session_id(api: httpx.Client) -> Iterator[str]:
    """A session that is deleted afterwards."""
    with new_session(api) as session_id:
        yield session_id


@pytest.fixture(scope="module")
def shared_session_id(service: ServiceProcess) -> Iterator[str]:
    """One session for a whole file whose tests leave nothing behind that the next could notice."""
    with service.client() as client, new_session(client) as session_id:
        yield session_id


@pytest.fixture
def session_id(own_session_id: str) -> str:
    """The test's own session; a file that can do with one for all its tests says so."""
    return own_session_id


@pytest.fixture
def run(api: httpx.Client, session_id: str) -> Run:
    """Execute code in the test's session; the run when it has ended."""
    return partial(execute, api, session_id)


@pytest.fixture
def own_run(api: httpx.Client, own_session_id: str) -> Run:
    """The same in a session of the test's own, in a file whose tests share one."""
    return partial(execute, api, own_session_id)


def execute(api: httpx.Client, session_id: str, code: str, **fields: object) -> dict:
    answer = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code, **fields})
    assert answer.status_code == 200, answer.text
    ended: dict = answer.json()
    return ended
