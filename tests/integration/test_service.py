"""The service from the outside: start, tool calls, tokens, restart, stop."""

import json
import re
import signal
from pathlib import Path

import httpx
import nbformat
import psutil
from service_process import ServiceProcess, running_service


def test_notebook_of_a_session_is_valid_and_verifies(api: httpx.Client, session_id: str) -> None:
    for code in ("x = 1", "x + 1", "1/0"):
        api.post(f"/v1/sessions/{session_id}/runs", json={"code": code})
    answer = api.get(f"/v1/notebooks/{session_id}")
    assert answer.headers["content-type"].startswith("application/x-ipynb+json")
    notebook = nbformat.reads(answer.text, as_version=4)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells] == ["x = 1", "x + 1", "1/0"]
    assert api.get(f"/v1/notebooks/{session_id}/verify").json() == {"valid": True, "runs": 3, "problems": []}


def test_background_run_is_followed_and_cancelled(api: httpx.Client, session_id: str) -> None:
    code = "import time\nfor i in range(600):\n    print(i, flush=True)\n    time.sleep(0.1)"
    made = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code, "background": True})
    assert made.status_code == 202
    run_id = made.json()["id"]
    seen = []
    with api.stream("GET", f"/v1/runs/{run_id}/events") as events:
        for line in events.iter_lines():
            seen.append(line)
            if '"text"' in line:
                break
    assert any(line == "event: run.started" for line in seen)
    ended = api.post(f"/v1/runs/{run_id}/cancel").json()
    assert ended["status"] == "cancelled"
    assert ended["stdout"].startswith("0\n")


def test_tokens_see_only_what_is_theirs(service: ServiceProcess, api: httpx.Client, session_id: str) -> None:
    made = api.post("/v1/tokens", json={"name": "other", "role": "run"}).json()
    with service.client(made["token"]) as other:
        assert other.get(f"/v1/sessions/{session_id}").status_code == 404
        assert other.get(f"/v1/notebooks/{session_id}").status_code == 404
        assert other.get("/v1/sessions").json()["data"] == []
        mine = other.post("/v1/sessions", json={}).json()["id"]
        assert api.get(f"/v1/sessions/{mine}").status_code == 200
        assert api.delete(f"/v1/tokens/{made['id']}").status_code == 204
        assert other.get(f"/v1/sessions/{mine}").status_code == 401
    assert api.delete(f"/v1/sessions/{mine}").status_code == 204


def test_a_background_run_ends_with_its_token(service: ServiceProcess, api: httpx.Client) -> None:
    made = api.post("/v1/tokens", json={"name": "short", "role": "run"}).json()
    with service.client(made["token"]) as short:
        run = short.post("/v1/runs", json={"code": "import time\ntime.sleep(100)", "background": True}).json()
    with api.stream("GET", f"/v1/runs/{run['id']}/events") as events:
        lines = events.iter_lines()
        assert any(line == "event: run.started" for line in lines)
        assert api.delete(f"/v1/tokens/{made['id']}").status_code == 204
        assert any(line == "event: run.completed" for line in lines)
    assert api.get(f"/v1/runs/{run['id']}").json()["status"] == "cancelled"


def test_openai_objects_round_trip(api: httpx.Client) -> None:
    from openai.types.chat import ChatCompletion

    completion = ChatCompletion.model_validate(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "tool_calls",
                    "message": {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {
                                "id": "call_1",
                                "type": "function",
                                "function": {"name": "execute_python", "arguments": '{"code": "6 * 7"}'},
                            }
                        ],
                    },
                }
            ],
        }
    )
    calls = completion.choices[0].message.model_dump()["tool_calls"]
    answer = api.post("/v1/tool_calls", json={"tool_calls": calls}).json()
    assert answer["messages"][0]["tool_call_id"] == "call_1"
    assert "42" in answer["messages"][0]["content"]
    again = api.post("/v1/tool_calls", json={"tool_calls": calls, "session_id": answer["session_id"]})
    assert again.json()["session_id"] == answer["session_id"]
    api.delete(f"/v1/sessions/{answer['session_id']}")


def test_sigterm_ends_the_run_keeps_the_record_and_leaves_no_process(tmp_path: Path) -> None:
    with running_service(tmp_path) as service, service.client() as client:
        session_id = client.post("/v1/sessions", json={}).json()["id"]
        made = client.post(
            f"/v1/sessions/{session_id}/runs",
            json={"code": "print('begun', flush=True)\nimport time\ntime.sleep(60)", "background": True},
        ).json()
        assert "Kernel gateway 3." in client.get("/readyz").text
        with client.stream("GET", f"/v1/runs/{made['id']}/events") as events:
            assert any("begun" in line for line in events.iter_lines())
        children = psutil.Process(service.process.pid).children(recursive=True)
        assert children
        assert service.stop(signal.SIGTERM) == 0
        assert not [child for child in children if child.is_running() and child.status() != "zombie"]
        journals = list(service.record_dir.rglob(f"{session_id}.ipynb"))
        cell = json.loads(journals[0].read_text())["cells"][0]
        assert cell["metadata"]["interpreter"]["status"] == "aborted"
        assert "begun" in json.dumps(cell["outputs"])
        assert not re.search(r"^\[[WE] ", service.log_path.read_text(), re.MULTILINE), "a stop is no trouble"


def test_kill_minus_nine_loses_no_acknowledged_run(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        with service.client() as client:
            session_id = client.post("/v1/sessions", json={}).json()["id"]
            ended = client.post(f"/v1/sessions/{session_id}/runs", json={"code": "x = 1\nx"}).json()
            running = client.post(
                f"/v1/sessions/{session_id}/runs",
                json={"code": "import time\ntime.sleep(60)", "background": True},
            ).json()
        service.stop(signal.SIGKILL)
        service.start()
        with service.client() as client:
            assert client.get(f"/v1/runs/{ended['id']}").json()["result"] == "1"
            assert client.get(f"/v1/runs/{running['id']}").json()["status"] == "aborted"
            assert client.get(f"/v1/notebooks/{session_id}/verify").json()["valid"] is True
            after = client.post(f"/v1/sessions/{session_id}/runs", json={"code": "x"}).json()
            assert (after["error"]["ename"], after["kernel_restarted"]) == ("NameError", True)
            assert any("restarted" in notice for notice in after["notices"])
