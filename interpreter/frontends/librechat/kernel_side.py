import asyncio
import codecs
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import publish_display_data


class _ToolCalls:
    """Hands the code's calls of tools to the client and waits for what they give."""

    def __init__(self, folder: str, patience: float) -> None:
        shell: Any = get_ipython()
        self._folder = os.path.join(shell.user_ns["_dh"][0], folder)
        self._patience = patience
        self.head = ""
        self._asked: list[dict[str, Any]] = []
        self._count = self._batches = 0
        self._batch: asyncio.Task[dict[str, Any]] | None = None

    def function(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            if len(arguments) == 1 and isinstance(arguments[0], dict):
                named = {**arguments[0], **named}
            elif arguments:
                raise TypeError(f"{name}() takes keyword arguments only")
            answer = await self._call(name, named)
            if answer.get("is_error"):
                raise RuntimeError(f"{name}: {answer.get('error_message') or 'the tool failed'}")
            return answer.get("result")

        return call

    async def _call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        number = self._count = self._count + 1
        call = {"id": f"call_{number:03d}", "name": name, "input": arguments}
        json.dumps(arguments)  # a TypeError shows in the code that called
        if not self._asked or self._batch is None:
            self._batch = asyncio.ensure_future(self._ask())
            self._batch.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._asked.append(call)
        answers = await asyncio.shield(self._batch)
        answer: dict[str, Any] | None = answers.get(f"call_{number:03d}")
        return answer or {"is_error": True, "error_message": "no result came"}

    async def _ask(self) -> dict[str, Any]:
        await asyncio.sleep(0.03)  # calls that come together are asked together
        calls, self._asked = self._asked, []
        self._batches += 1
        path = os.path.join(self._folder, f"{self._batches}.json")
        shown = {"application/vnd.interpreter.tool-calls+json": {"calls": calls}}
        publish_display_data(shown)  # type: ignore[no-untyped-call]
        end = time.monotonic() + self._patience
        while (text := _read(path)) is None:
            if time.monotonic() > end:
                raise TimeoutError("nobody answered the calls of tools")
            await asyncio.sleep(0.02)
        answers: dict[str, Any] = json.loads(text)
        return answers

    async def bash(self, script: str) -> None:
        folder = tempfile.mkdtemp()
        path = _write(folder, "script", script)
        process = await asyncio.create_subprocess_exec(
            "bash",
            path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TOOL_CALLS": folder, "BASH_ENV": _write(folder, "head", self.head)},
            start_new_session=True,
        )
        readers = [
            asyncio.ensure_future(self._copy(process.stdout, sys.stdout)),
            asyncio.ensure_future(self._copy(process.stderr, sys.stderr)),
        ]
        watcher = asyncio.ensure_future(self._watch(folder))
        try:
            status = await process.wait()
        finally:
            watcher.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.gather(*readers)
            shutil.rmtree(folder, ignore_errors=True)
        if status:
            raise subprocess.CalledProcessError(status, "bash")

    async def _copy(self, source: Any, target: Any) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := await source.read(65536):
            target.write(decoder.decode(data))
            target.flush()

    async def _watch(self, folder: str) -> None:
        calls: dict[str, Any] = {}
        while True:
            for name in os.listdir(folder):
                if name.endswith(".call") and name not in calls:
                    calls[name] = asyncio.ensure_future(self._answer(os.path.join(folder, name)))
            await asyncio.sleep(0.02)

    async def _answer(self, box: str) -> None:
        try:
            arguments = json.loads(_read(os.path.join(box, "input")) or "")
            if not isinstance(arguments, dict):
                raise ValueError("the input is no JSON object")
            answer = await self._call(_read(os.path.join(box, "name")) or "", arguments)
        except (ValueError, TimeoutError) as error:
            answer = {"is_error": True, "error_message": str(error)}
        failed = bool(answer.get("is_error"))
        if failed:
            result = str(answer.get("error_message") or "the tool failed")
        else:
            result = json.dumps(answer.get("result"), ensure_ascii=False, separators=(",", ":"))
        _write(box, "result", result)
        os.rename(_write(box, "status.part", str(int(failed))), os.path.join(box, "status"))


def _read(path: str) -> "str | None":
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    return path
