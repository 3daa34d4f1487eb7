"""The requests of Onyx's client against the real service: keys in the URL, files both ways, live output."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from service_process import ServiceProcess

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"


class Onyx:
    """What ``CodeInterpreterClient`` of Onyx sends, and what it takes from the answers."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.session = requests.Session()

    def execute(self, code: str, timeout_ms: int = 30000, files: Any = None) -> Any:
        payload: Any = {"code": code, "timeout_ms": timeout_ms, **({"files": files} if files else {})}
        answer = self.session.post(f"{self.base_url}/v1/execute", json=payload, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def stream(self, code: str) -> Iterator[tuple[str, Any]]:
        payload: Any = {"code": code, "timeout_ms": 30000}
        answer = self.session.post(
            f"{self.base_url}/v1/execute/stream", json=payload, stream=True, timeout=60
        )
        answer.raise_for_status()
        kind = ""
        for line in map(str, answer.iter_lines(decode_unicode=True)):
            if line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:"):
                yield kind, json.loads(line[5:])

    def upload(self, content: bytes, name: str) -> str:
        answer = self.session.post(f"{self.base_url}/v1/files", files={"file": (name, content)}, timeout=30)
        answer.raise_for_status()
        return str(answer.json()["file_id"])

    def download(self, file_id: str) -> bytes:
        answer = self.session.get(f"{self.base_url}/v1/files/{file_id}", timeout=30)
        answer.raise_for_status()
        return answer.content


@pytest.fixture
def onyx(service: ServiceProcess) -> Onyx:
    host = service.url.removeprefix("http://")
    return Onyx(f"http://:{service.token}@{host}/onyx")


def test_files_go_in_and_out(onyx: Onyx) -> None:
    file_id = onyx.upload(b"a,b\n1,2\n", "data.csv")
    code = "text = open('data.csv').read()\nopen('out.txt', 'w').write(text.upper())\nprint('ok')\n6 * 7"
    found = onyx.execute(code, files=[{"path": "data.csv", "file_id": file_id}])
    assert (found["stdout"], found["stderr"], found["exit_code"]) == ("ok\n42\n", "", 0)
    assert [file["path"] for file in found["files"]] == ["out.txt"]
    assert onyx.download(found["files"][0]["file_id"]) == b"A,B\n1,2\n"


def test_shown_plot_is_a_file(onyx: Onyx) -> None:
    found = onyx.execute(PLOT)
    (file,) = found["files"]
    assert file["path"].endswith(".png")
    assert onyx.download(file["file_id"]).startswith(b"\x89PNG")


def test_failure_and_timeout(onyx: Onyx) -> None:
    failed = onyx.execute("1 / 0")
    assert failed["exit_code"] == 1
    assert "ZeroDivisionError" in failed["stderr"]
    slow = onyx.execute("print('begun')\nimport time\ntime.sleep(60)", timeout_ms=1500)
    assert (slow["timed_out"], slow["exit_code"], slow["stdout"]) == (True, None, "begun\n")


def test_scripts_end_themselves_and_read_no_arguments_of_the_kernel(onyx: Onyx) -> None:
    code = "import argparse, sys\nprint(argparse.ArgumentParser().parse_args())\nsys.exit(0)"
    found = onyx.execute(code)
    assert (found["stdout"], found["stderr"], found["exit_code"]) == ("Namespace()\n", "", 0)
    found = onyx.execute("print('x')\nexit(4)")
    assert (found["stdout"], found["stderr"], found["exit_code"]) == ("x\n", "SystemExit: 4\n", 4)


def test_nothing_is_kept_between_executions(onyx: Onyx) -> None:
    onyx.execute("x = 1")
    assert "NameError" in onyx.execute("x")["stderr"]


def test_stream_is_live_and_whole(onyx: Onyx) -> None:
    found = list(
        onyx.stream("import sys\nprint('out')\nprint('err', file=sys.stderr)\nopen('f', 'w').close()\n1 / 0")
    )
    texts = {
        name: "".join(data["data"] for kind, data in found if kind == "output" and data["stream"] == name)
        for name in ("stdout", "stderr")
    }
    assert texts["stdout"] == "out\n"
    assert texts["stderr"].startswith("err\n")
    assert "ZeroDivisionError" in texts["stderr"]
    kind, result = found[-1]
    assert (kind, result["exit_code"], [file["path"] for file in result["files"]]) == ("result", 1, ["f"])


def test_refusal_shows_no_key(onyx: Onyx, service: ServiceProcess) -> None:
    found = onyx.execute("1", files=[{"path": "x", "file_id": "gone"}])
    assert "no such" in found["stderr"].lower()
    assert service.token not in json.dumps(found)


def test_session_keeps_files_between_commands(onyx: Onyx) -> None:
    made = onyx.session.post(f"{onyx.base_url}/v1/sessions", json={"ttl_seconds": 60}, timeout=60).json()
    base = f"{onyx.base_url}/v1/sessions/{made['session_id']}"
    onyx.session.post(f"{base}/bash", json={"cmd": "echo hi > a.txt"}, timeout=60)
    found = onyx.session.post(f"{base}/bash", json={"cmd": "cat a.txt; exit 3"}, timeout=60).json()
    assert (found["stdout"], found["exit_code"], found["timed_out"]) == ("hi\n", 3, False)
    assert onyx.session.delete(base, timeout=60).status_code == 204
