"""Runs that several clients wait for, kernels that earlier code broke, and what is on disk with an answer."""

import http.client
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from service_process import ServiceProcess, running_service

Run = Callable[..., dict]


def journal_of(service: ServiceProcess, session_id: str) -> list[dict]:
    [path] = service.record_dir.rglob(f"{session_id}.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("streams", [False, True], ids=["answer", "events"])
def test_a_run_goes_on_while_one_of_its_clients_stays(
    service: ServiceProcess, api: httpx.Client, session_id: str, streams: bool
) -> None:
    """Both sent the same Idempotency-Key, as a client does that gave up on its first connection."""
    code = (
        "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.02)"
    )
    place, body = f"/v1/sessions/{session_id}/runs", {"code": code, "timeout": 60}
    headers = {"Idempotency-Key": f"retry-{streams}", "Authorization": f"Bearer {service.token}"}
    first = http.client.HTTPConnection(service.url.removeprefix("http://"))
    first.request(
        "POST",
        place,
        json.dumps({**body, "stream": streams}),
        {**headers, "Content-Type": "application/json"},
    )
    while not api.get(place).json()["data"]:
        pass
    with api.stream("POST", place, json={**body, "stream": True}, headers=headers) as events:
        lines = events.iter_lines()
        next(line for line in lines if "begun" in line)
        closed = f"route={place.replace(session_id, '{session_id}')} status=499"
        first.close()
        while closed not in service.log_path.read_text("utf-8"):
            pass
        api.put(f"/v1/sessions/{session_id}/files/go", content=b"").raise_for_status()
        ended = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")][-1]
    assert (ended["status"], ended["stdout"]) == ("ok", "begun\n"), ended


@pytest.mark.parametrize(
    "code",
    [
        "get_ipython().kernel.do_execute = None",
        "get_ipython().run_cell_async = get_ipython().run_cell = None",
    ],
    ids=["kernel", "shell"],
)
def test_a_kernel_that_takes_no_code_any_more_is_replaced(run: Run, code: str) -> None:
    run(code)
    ended = run("print('not reached')")
    assert (ended["status"], ended["stdout"], ended["kernel_restarted"]) == ("aborted", "", True), ended
    assert "broke" in " ".join(ended["notices"])
    assert run("print('good')")["stdout"] == "good\n"


def test_an_updated_display_is_on_disk_with_the_run_that_updated_it(
    service: ServiceProcess, run: Run, session_id: str
) -> None:
    run("from IPython.display import display\nh = display('old', display_id='q')")
    for number in range(3):
        run(f"h.update('new {number}')")
        entries = [
            entry["data"] for entry in journal_of(service, session_id) if entry["kind"] == "run_amended"
        ]
        assert f"new {number}" in json.dumps(entries[-1])


def test_reviewers_are_told_of_a_record_that_is_gone(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        with service.client() as api:
            session_id = api.post("/v1/sessions", json={}).json()["id"]
            api.post(f"/v1/sessions/{session_id}/runs", json={"code": "1"})
            other = api.post("/v1/tokens", json={"name": "other", "role": "run"}).json()["token"]
        service.stop()
        [path] = service.record_dir.rglob(f"{session_id}.jsonl")
        path.unlink()
        service.start()
        with service.client() as api:
            found = api.get(f"/v1/notebooks/{session_id}/verify").json()
            assert found["valid"] is False
            assert "missing" in found["problems"][0]
        with service.client(other) as stranger:
            assert stranger.get(f"/v1/notebooks/{session_id}/verify").status_code == 404
