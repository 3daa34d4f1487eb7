"""The requests of Dify's code executor against the real service, with code as Dify wraps it."""

import base64
import json
from typing import Any

import httpx
from service_process import ServiceProcess


def node(code: str, **inputs: Any) -> str:
    """A node's code as Dify wraps it: inputs as base64, the result between two marks."""
    encoded = base64.b64encode(json.dumps(inputs).encode()).decode()
    return (
        f"{code}\n"
        "import json\nfrom base64 import b64decode\n"
        f"inputs_obj = json.loads(b64decode('{encoded}').decode('utf-8'))\n"
        "output_obj = main(**inputs_obj)\n"
        "output_json = json.dumps(output_obj, indent=4)\n"
        "result = f'''<<RESULT>>{output_json}<<RESULT>>'''\n"
        "print(result)\n"
    )


def execute(service: ServiceProcess, code: str) -> Any:
    answer = httpx.post(
        f"{service.url}/dify/v1/sandbox/run",
        json={"language": "python3", "code": code, "preload": "", "enable_network": True},
        headers={"X-Api-Key": service.token},
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == 200
    return answer.json()


def test_result_comes_whole(service: ServiceProcess) -> None:
    code = "import warnings\ndef main(n):\n    warnings.warn('careful')\n    return {'text': 'ä' * n}"
    found = execute(service, node(code, n=100_000))
    assert (found["code"], found["data"]["error"]) == (0, "")
    assert "careful" in found["data"]["stderr"]
    result = found["data"]["stdout"].split("<<RESULT>>")[1]
    assert json.loads(result) == {"text": "ä" * 100_000}


def test_failure_is_a_traceback(service: ServiceProcess) -> None:
    found = execute(service, node("def main():\n    return 1 / 0"))
    assert "ZeroDivisionError: division by zero" in found["data"]["error"]
    assert found["data"]["exit_code"] == 1


def test_result_that_does_not_fit_is_said(service: ServiceProcess) -> None:
    found = execute(service, node("def main():\n    return {'a': 'x' * 3_000_000}"))
    assert found["code"] == -400
    assert "max_output_bytes" in found["message"]


def test_runs_share_nothing(service: ServiceProcess) -> None:
    execute(service, "x = 1")
    assert "NameError" in execute(service, "x")["data"]["error"]
