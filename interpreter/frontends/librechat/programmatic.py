"""``/exec/programmatic``: runs code that calls the client's tools."""

import asyncio
import json
from collections.abc import Mapping
from typing import ClassVar

from interpreter.api.operations import Access, Answer, Operation
from interpreter.errors import InterpreterError, InvalidRequestError
from interpreter.frontends.asking import ask
from interpreter.frontends.librechat import programs
from interpreter.frontends.librechat.base import JSON_TYPE, TAG
from interpreter.frontends.librechat.execution import ExecHandler
from interpreter.frontends.librechat.requests import as_object, read_exec
from interpreter.frontends.librechat.waiting import Program
from interpreter.kernel_files import KernelWorkspaces
from interpreter.models import JSON, RunRequest, in_seconds, new_id

_FOLDER = ".librechat"


class ProgrammaticHandler(ExecHandler):
    """``/librechat/exec/programmatic``"""

    operations: ClassVar = {
        "POST": Operation(
            "librechatProgrammatic",
            "Run code that calls LibreChat's tools",
            TAG,
            {200: Answer("Calls to make, or the result.", {JSON_TYPE: None})},
            Access.RUN,
        )
    }

    async def do_post(self) -> None:
        body = as_object(self.parse_body())
        continuation = programs.read_continuation(body)
        if continuation is None:
            program = await self._start(body)
        else:
            program = self.front.programs.take(self.principal.token_id, continuation.token)
            await self._give(program, continuation.results)
        if program is not None:
            await self._advance(program)

    async def _start(self, body: Mapping[str, object]) -> Program | None:
        request = read_exec(body, lang="py")
        tools = programs.read_tools(body)
        language = await self.find_language(request)
        if language is None:
            return None
        if language.code not in ("py", "bash"):
            raise InvalidRequestError("Tools can be called by py and bash only.", param="lang")
        if tools and isinstance(self.services.workspaces, KernelWorkspaces):
            raise InvalidRequestError(
                "Results can't reach code that runs on a gateway whose disk is not shared.",
                code="stateful_workspace_unsupported",
            )
        folder = f"{_FOLDER}/{new_id()}"
        preparation = programs.preparation_of(language.code, tools, folder, request.code)
        cell = programs.cell_of_program(language.code, request.code)
        prepared = await self.get_ready(request, language)
        if not await ask(prepared.session, "True", first=preparation):
            cell = f"{preparation}{cell}"  # the kernel is at work, or not there yet
        longest = self.settings_.max_execute_timeout
        active = await self.services.runs.submit(
            self.principal, prepared.session, RunRequest(cell, timeout=longest)
        )
        limit = self.timeout_of(request) or self.settings_.execute_timeout
        return Program(active, request, language, prepared, folder, limit)

    def refuse(self, body: JSON) -> None:
        super().refuse({**body, "status": "error", "error": "The code was not run"})

    async def _give(self, program: Program, results: Mapping[str, JSON]) -> None:
        """Let the code have the results that it waits for."""
        program.batches += 1
        path = f"{program.folder}/{program.batches}.json"
        try:
            upload = await self.services.workspaces.begin_upload(program.prepared.session)
            try:
                await upload.write(json.dumps(dict(results)).encode())
                await upload.commit(path)
            finally:
                upload.discard()
        except InterpreterError:
            await self.services.runs.cancel(self.principal, program.active.run.id)
            raise

    async def _advance(self, program: Program) -> None:
        """Answer with the next calls, or with how the code ended."""
        try:
            async with self.ending_forgotten(program.prepared.session.id):
                await self._started(program)
            async with asyncio.timeout(program.limit):
                calls = await self._next_calls(program)
        except TimeoutError:
            reason = f"The code took longer than its timeout of {in_seconds(program.limit)}."
            await self.services.runs.cancel(self.principal, program.active.run.id, reason=reason)
            await self._finish(program, error="Time limit exceeded")
            return
        except asyncio.CancelledError:
            await self._abandon(program.active)
            raise
        if calls:
            token = self.front.programs.put(self.principal.token_id, program)
            self.reply(
                {
                    "status": "tool_call_required",
                    "continuation_token": token,
                    "session_id": program.prepared.session.id,
                    "tool_calls": calls,
                }
            )
        else:
            await self._finish(program)

    async def _started(self, program: Program) -> None:
        """Wait for the runs before it in its session, which does not count."""
        if not program.seen:
            async for event in program.active.events():
                program.seen = event.id
                return

    async def _next_calls(self, program: Program) -> list[JSON]:
        """The calls of tools that come next; none when the code has ended."""
        async for event in program.active.events(program.seen):
            program.seen = event.id
            if calls := programs.calls_of(event):
                return calls
        return []

    async def _finish(self, program: Program, error: str | None = None) -> None:
        run = await self.wait_for(program.active)
        await self._clear(program)
        body = await self.show(run, program.request, program.language, program.prepared)
        body = programs.final_answer(run, body)
        self.reply({**body, "error": error, "status": "error"} if error else body)

    async def _clear(self, program: Program) -> None:
        """Delete the results that the code has read."""
        files = self.services.workspaces.files(program.prepared.session)
        paths = [f"{program.folder}/{number}.json" for number in range(1, program.batches + 1)]
        for path in (*paths, program.folder) if paths else ():
            try:
                await files.delete(path)
            except InterpreterError:
                return  # the code changed its folder; what is left goes with the session
