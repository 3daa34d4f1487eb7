"""LibreChat's published tools, run by Node against the service."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node_tools import NODE
from service_process import ServiceProcess

ROOT = Path(__file__).parents[2]
MODULES = ROOT / ".node-tools" / "librechat" / "node_modules"
DRIVER = ROOT / "tests" / "node" / "librechat" / "drive.cjs"


class LibreChat:
    """The tools of both generations. ``old`` asks with X-API-Key, ``new`` with headers of the test's choice."""

    def __init__(self, process: "subprocess.Popen[str]", service: ServiceProcess, url: str) -> None:
        self._process = process
        self._service = service
        self._url = url

    def _ask(self, **job: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the driver has ended"
        return json.loads(line)

    def old(self, code: str, lang: str = "py", *, key: str | None = None, **call: Any) -> dict[str, Any]:
        """``execute_code`` of the generation with API keys."""
        params = {
            "apiKey": key or self._service.token,
            "user_id": "u1",
            "LIBRECHAT_CODE_API_KEY": key or self._service.token,
        }
        return self._ask(
            generation="old", module="CodeExecutor", factory="createCodeExecutionTool",
            params=params, args={"lang": lang, "code": code}, toolCall=call,
        )  # fmt: skip

    def new(
        self, code: str, *, headers: Mapping[str, str] | None = None, hint: str = "", **call: Any
    ) -> dict[str, Any]:
        """``bash_tool`` of the generation without API keys."""
        return self._ask(
            generation="new", module="BashExecutor", factory="createBashExecutionTool",
            params=self._params(hint), headers=self._headers(headers), args={"command": code}, toolCall=call,
        )  # fmt: skip

    def new_code(
        self,
        code: str,
        lang: str = "py",
        *,
        headers: Mapping[str, str] | None = None,
        hint: str = "",
        **call: Any,
    ) -> dict[str, Any]:
        """``execute_code`` of the generation without API keys."""
        return self._ask(
            generation="new", module="CodeExecutor", factory="createCodeExecutionTool",
            params=self._params(hint), headers=self._headers(headers),
            args={"lang": lang, "code": code}, toolCall=call,
        )  # fmt: skip

    def programmatic(
        self, generation: str, code: str, tools: Mapping[str, Any], *, bash: bool = False, **args: Any
    ) -> dict[str, Any]:
        """Code that calls tools, whose results by first argument are given."""
        name = "BashProgrammaticToolCalling" if bash else "ProgrammaticToolCalling"
        params = {"baseUrl": self._url, "apiKey": self._service.token}
        return self._ask(
            generation=generation, module=name, factory=f"create{name}Tool", params=params,
            headers=self._headers(None) if generation == "new" else None,
            args={"code": code, **args}, tools=tools,
        )  # fmt: skip

    def _params(self, hint: str) -> dict[str, Any]:
        stateful = {"statefulSessions": True, "runtimeSessionHint": hint, "executionProfile": "stateful"}
        return {"baseUrl": self._url, **(stateful if hint else {})}

    def _headers(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._service.token}"} if headers is None else dict(headers)


@contextmanager
def librechat(service: ServiceProcess, url: str = "") -> Iterator[LibreChat]:
    """The tools, set up as LibreChat sets them up; ``url`` is its LIBRECHAT_CODE_BASEURL."""
    assert MODULES.is_dir(), "Run `make node-tools` first."
    url = url or f"{service.url}/librechat"
    process = subprocess.Popen(
        [NODE, DRIVER, MODULES],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
        env={"LIBRECHAT_CODE_BASEURL": url, "PATH": str(NODE.parent)},
    )  # fmt: skip
    try:
        yield LibreChat(process, service, url)
    finally:
        process.communicate(timeout=20)
