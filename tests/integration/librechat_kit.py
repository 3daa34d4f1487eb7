"""LibreChat's published tools, run by Node against the service.

``LIBRECHAT_OLD`` and ``LIBRECHAT_NEW`` name other versions of ``@librechat/agents`` to test with: one whose
clients have an API key (up to 3.1.63), and one whose clients have none (3.1.77 and later). They are fetched once.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from node_tools import NODE
from service_process import ServiceProcess

ROOT = Path(__file__).parents[2]
MODULES = ROOT / ".node-tools" / "librechat" / "node_modules"
DRIVER = ROOT / "tests" / "node" / "librechat" / "drive.cjs"
NPM = ROOT / "tests" / "node" / "npm.py"


@cache
def package(generation: str) -> Path:
    """The folder of the package that is tested as the ``old`` or the ``new`` generation."""
    assert MODULES.is_dir(), "Run `make node-tools` first."
    version = os.environ.get(f"LIBRECHAT_{generation.upper()}")
    folder = MODULES / f"agents-{version or generation}"
    if not folder.is_dir():
        _fetch(f"@librechat/agents@{version}", folder)
    return folder


def _fetch(name: str, folder: Path) -> None:
    """A package of npm without those that it depends on: it shares those of the tested versions."""
    with tempfile.TemporaryDirectory(dir=MODULES.parent) as place:
        command = [sys.executable, str(NPM), "pack", "--silent", "--pack-destination", place, name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
        (archive,) = Path(place).glob("*.tgz")
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
        (Path(place) / "package").rename(folder)


def knows(generation: str, word: str, module: str = "CodeExecutor") -> bool:
    """Whether the tested version has a word in one of its tools; also False when it has no such tool."""
    path = package(generation) / "dist" / "cjs" / "tools" / f"{module}.cjs"
    return path.is_file() and word in path.read_text("utf-8")


def needs(generation: str, word: str, module: str = "CodeExecutor") -> None:
    """Skip the test when the tested version does not know the word."""
    if not knows(generation, word, module):
        pytest.skip(f"{package(generation).name} does not know {word} in its {module}")


def shown(answer: Mapping[str, Any]) -> str:
    """What the model is shown of a call that failed: an error, or text in the oldest versions."""
    return str(answer.get("error") or answer["content"])


class LibreChat:
    """The tools of both generations. ``old`` asks with X-API-Key, ``new`` with headers of the test's choice."""

    def __init__(self, process: "subprocess.Popen[str]", service: ServiceProcess, url: str) -> None:
        self._process = process
        self._service = service
        self._url = url

    def _ask(self, generation: str, **job: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job |= {"package": package(generation).name, "baseUrl": self._url_of(generation)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the driver has ended"
        return json.loads(line)

    def old(
        self,
        code: str,
        lang: str = "py",
        *,
        key: str | None = None,
        files: Sequence[Mapping[str, Any]] = (),
        session_id: str = "",
    ) -> dict[str, Any]:
        """``execute_code`` of the generation with API keys; files and session as the version is told of them."""
        token = key or self._service.token
        params: dict[str, Any] = {"apiKey": token, "user_id": "u1", "LIBRECHAT_CODE_API_KEY": token}
        args, call = {"lang": lang, "code": code}, {}
        if knows("old", "_injected_files"):
            call = {"session_id": session_id, "_injected_files": files}
        else:
            params["files"] = files
            if session_id:
                args["session_id"] = session_id
        return self._ask(
            "old", module="CodeExecutor", factory="createCodeExecutionTool",
            params=params, args=args, toolCall=call,
        )  # fmt: skip

    def new(
        self, code: str, *, headers: Mapping[str, str] | None = None, hint: str = "", **call: Any
    ) -> dict[str, Any]:
        """``bash_tool`` of the generation without API keys."""
        return self._ask(
            "new", module="BashExecutor", factory="createBashExecutionTool",
            params=self._params(hint), headers=self._headers(headers), args={"command": code},
            toolCall={"_runtime_session_hint": hint, **call},
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
            "new", module="CodeExecutor", factory="createCodeExecutionTool",
            params=self._params(hint), headers=self._headers(headers),
            args={"lang": lang, "code": code}, toolCall={"_runtime_session_hint": hint, **call},
        )  # fmt: skip

    def programmatic(
        self, generation: str, code: str, tools: Mapping[str, Any], *, bash: bool = False, **args: Any
    ) -> dict[str, Any]:
        """Code that calls tools, whose results by first argument are given."""
        name = "BashProgrammaticToolCalling" if bash else "ProgrammaticToolCalling"
        needs(generation, f"create{name}Tool", name)
        params = {"baseUrl": self._url_of(generation), "apiKey": self._service.token}
        return self._ask(
            generation, module=name, factory=f"create{name}Tool", params=params,
            headers=self._headers(None) if generation == "new" else None,
            args={"code": code, **args}, tools=tools,
        )  # fmt: skip

    def _url_of(self, generation: str) -> str:
        """The first of the new clients has no other place for the token."""
        if generation == "old" or knows("new", "authHeaders"):
            return self._url
        return self._url.replace("://", f"://key:{self._service.token}@")

    def _params(self, hint: str) -> dict[str, Any]:
        if hint:
            needs("new", "runtime_session_hint")
        stateful = {"statefulSessions": True, "runtimeSessionHint": hint, "executionProfile": "stateful"}
        return {"baseUrl": self._url_of("new"), **(stateful if hint else {})}

    def _headers(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        if headers is not None:
            needs("new", "authHeaders")
            return dict(headers)
        return {"Authorization": f"Bearer {self._service.token}"}


@contextmanager
def librechat(service: ServiceProcess, url: str = "") -> Iterator[LibreChat]:
    """The tools, set up as LibreChat sets them up; ``url`` is its LIBRECHAT_CODE_BASEURL."""
    process = subprocess.Popen(
        [NODE, DRIVER, MODULES],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
        env={"PATH": str(NODE.parent)},
    )  # fmt: skip
    try:
        yield LibreChat(process, service, url or f"{service.url}/librechat")
    finally:
        process.communicate(timeout=20)
