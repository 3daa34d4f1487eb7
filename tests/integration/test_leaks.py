"""Sessions that end leave nothing behind in the service or its gateway."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from service_process import ServiceProcess, running_service
from watching import eventually

POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""What asyncio's pool may have; it makes them as they are needed."""
SESSIONS = max(24, 2 * POOL_THREADS)
CODES = (
    "print('x')\n1 + 1",
    "1 / 0",
    "import subprocess; subprocess.run(['echo', 'x'])",
    "import asyncio; task = asyncio.ensure_future(asyncio.sleep(600))",
    "import os; os._exit(1)",
    "display(1); from IPython.display import clear_output; clear_output()",
)

Held = dict[str, int]


def held(service: ServiceProcess, client: httpx.Client) -> Held:
    """Descriptors, threads, child processes and tasks of the service, and those of its gateway."""
    process = psutil.Process(service.process.pid)
    gateway = [child for child in process.children() if "gateway_extension" in " ".join(child.cmdline())]
    metrics = client.get("/metrics").text
    tasks = re.search(r"^interpreter_tasks (\S+)$", metrics, re.MULTILINE)
    sessions = re.search(r"^interpreter_sessions (\S+)$", metrics, re.MULTILINE)
    assert tasks is not None
    assert sessions is not None
    return {
        "tasks": int(float(tasks[1])),
        "sessions": int(float(sessions[1])),
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "processes": len(process.children(recursive=True)),
        "gateway's descriptors": sum(child.num_fds() for parent in gateway for child in _family(parent)),
        "gateway's threads": sum(child.num_threads() for parent in gateway for child in _family(parent)),
    }


def _family(parent: psutil.Process) -> list[psutil.Process]:
    return [parent, *(p for p in parent.children(recursive=True) if "ipykernel" not in " ".join(p.cmdline()))]


def use_one(service: ServiceProcess, number: int) -> None:
    """A client of its own: create, run, follow, cancel, delete."""
    with service.client() as client:
        made = client.post("/v1/sessions", json={})
        assert made.status_code == 201, made.text
        path = f"/v1/sessions/{made.json()['id']}"
        ended = client.post(f"{path}/runs", json={"code": CODES[number % len(CODES)]}).json()
        with client.stream("GET", f"/v1/runs/{ended['id']}/events") as events:
            assert any(line == "event: run.completed" for line in events.iter_lines())
        if number % 5 == 0:
            running = client.post(
                f"{path}/runs", json={"code": "import time; time.sleep(60)", "background": True}
            ).json()
            assert client.post(f"/v1/runs/{running['id']}/cancel").json()["status"] == "cancelled"
        if number % 7 == 0:
            client.post(f"{path}/runs", json={"code": "import time; time.sleep(60)", "background": True})
        client.put(f"{path}/files/a.txt", content=b"abc")
        assert client.delete(path).status_code == 204


def folders(service: ServiceProcess) -> set[str]:
    """The workspaces that are there."""
    return {path.name for path in (service.state_dir / "workspaces").iterdir()}


def test_a_session_that_ends_while_its_next_kernel_starts_leaves_no_folder(
    service: ServiceProcess, api: httpx.Client
) -> None:
    for _ in range(5):
        session_id = api.post("/v1/sessions", json={}).json()["id"]
        path = f"/v1/sessions/{session_id}"
        died = api.post(f"{path}/runs", json={"code": "import os; os._exit(1)"}).json()
        assert died["status"] == "kernel_died"
        assert session_id in folders(service)
        assert api.delete(path).status_code == 204
        assert session_id not in folders(service)


def test_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    with running_service(tmp_path, interrupt_grace="2", keepalive_interval="1") as service:
        for number in range(4):  # what is made once: pools of threads, database connections
            use_one(service, number)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: use_one(service, number), range(4)))
        with service.client() as client:
            eventually(lambda: held(service, client)["sessions"] == 0)
            before = held(service, client)
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda number: use_one(service, number), range(SESSIONS)))
            # Threads of pools that are made as they are needed are no leak: up to the pool's size.
            room = {"threads": POOL_THREADS, "gateway's threads": 4}

            def is_back() -> bool:
                now = held(service, client)
                return all(now[name] <= count + room.get(name, 0) for name, count in before.items())

            if not eventually(is_back):
                now = held(service, client)
                pytest.fail(
                    f"left behind: { {name: (was, now[name]) for name, was in before.items() if was != now[name]} }"
                )

            def leftovers() -> list[str]:
                return [name for name in folders(service) if not name.startswith(".")]

            assert eventually(lambda: not leftovers()), leftovers()
