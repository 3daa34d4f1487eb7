"""`kill -9` of the service at random moments: no acknowledged run is lost, and the record stays sound."""

import random
import signal
import threading
from pathlib import Path

import httpx
import nbformat
import pytest
from service_process import ServiceProcess, running_service

ROUNDS = 8
CLIENTS = 3
ENDED = {"ok", "error", "timeout", "interrupted", "aborted", "kernel_died", "cancelled"}


class Worker(threading.Thread):
    """Executes one run after another in a session of its own and remembers what it was told."""

    def __init__(self, service: ServiceProcess, number: int) -> None:
        super().__init__()
        self.acknowledged: list[dict] = []
        self.begun: list[dict] = []
        self.session_id = ""
        self._service = service
        self._number = number
        self._first = threading.Event()

    def run(self) -> None:
        try:
            with self._service.client() as client:
                self._work(client)
        except httpx.TransportError:
            self._first.set()  # killed: what was told before is what counts

    def _work(self, client: httpx.Client) -> None:
        self.session_id = client.post("/v1/sessions", json={}).json()["id"]
        path = f"/v1/sessions/{self.session_id}/runs"
        for number in range(10_000):
            code = f"print('{self._number}', {number})\n{number} * 2"
            if number % 5 == 4:
                background = client.post(
                    path,
                    json={"code": "import time; print('b', flush=True); time.sleep(0.2)", "background": True},
                )
                self.begun.append(background.json())
            answer = client.post(path, json={"code": code})
            if answer.status_code == 200:
                self.acknowledged.append(answer.json())
                self._first.set()

    def wait_for_first(self) -> None:
        assert self._first.wait(60)


@pytest.mark.timeout(300)
def test_no_acknowledged_run_is_lost(tmp_path: Path) -> None:
    chance = random.Random(7)
    workers: list[Worker] = []
    with running_service(tmp_path, interrupt_grace="1") as service:
        for _ in range(ROUNDS):
            crew = [Worker(service, number) for number in range(CLIENTS)]
            for worker in crew:
                worker.start()
            crew[0].wait_for_first()
            threading.Event().wait(chance.uniform(0, 0.8))
            service.stop(signal.SIGKILL)
            for worker in crew:
                worker.join(60)
                assert not worker.is_alive()
            workers += crew
            service.start()
            with service.client() as client:
                for worker in crew:
                    check(client, worker)
        with service.client() as client:  # and none of it fell victim to a later kill
            for worker in workers:
                check(client, worker)
    assert sum(len(worker.acknowledged) for worker in workers) > ROUNDS


def check(client: httpx.Client, worker: Worker) -> None:
    """The record holds what the worker was told, marks what was cut off, and verifies."""
    if not worker.session_id:
        return
    for told in worker.acknowledged:
        kept = client.get(f"/v1/runs/{told['id']}").json()
        for field in ("status", "code", "outputs", "stdout", "result", "error", "ended_at"):
            assert kept[field] == told[field], field
    for told in worker.begun:
        kept = client.get(f"/v1/runs/{told['id']}").json()
        assert kept["status"] in ENDED, kept["status"]
        if kept["status"] == "aborted":
            assert kept["notices"], "an interrupted run says why"
    verified = client.get(f"/v1/notebooks/{worker.session_id}/verify").json()
    assert verified["valid"] is True, verified
    assert verified["runs"] >= len(worker.acknowledged) + len(worker.begun)
    notebook = nbformat.reads(client.get(f"/v1/notebooks/{worker.session_id}").text, as_version=4)
    nbformat.validate(notebook)
    cells = {cell.metadata["interpreter"]["run_id"]: cell for cell in notebook.cells}
    assert all(cells[told["id"]].source == told["code"] for told in worker.acknowledged)
    assert all(cell.metadata["interpreter"]["status"] in ENDED for cell in notebook.cells)
