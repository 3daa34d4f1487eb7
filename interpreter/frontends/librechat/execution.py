"""``/exec``: runs the client's code."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from interpreter.api.operations import Access, Answer, Operation
from interpreter.api.runs import RunAnswers, check_code
from interpreter.errors import InvalidRequestError, TooLargeError
from interpreter.frontends.languages import (
    Language,
    available_codes,
    cell_of,
    find_language,
    parse_language,
)
from interpreter.frontends.librechat.answers import answer
from interpreter.frontends.librechat.base import JSON_TYPE, TAG, LibreChatHandler
from interpreter.frontends.librechat.conversations import Prepared
from interpreter.frontends.librechat.requests import ExecRequest, read_exec
from interpreter.frontends.saved_pictures import save_pictures
from interpreter.models import JSON, Run, RunRequest, new_id


class ExecHandler(LibreChatHandler, RunAnswers):
    """``/librechat/exec``"""

    operations: ClassVar = {
        "POST": Operation(
            "librechatExec",
            "Run code for LibreChat",
            TAG,
            {200: Answer("stdout, stderr and files; failed code too.", {JSON_TYPE: None})},
            Access.RUN,
        )
    }

    async def do_post(self) -> None:
        request = read_exec(self.parse_body())
        language = await self.find_language(request)
        if language is None:
            return
        prepared = await self.get_ready(request, language)
        cell = cell_of(language.code, request.code, request.args)
        asked = RunRequest(cell, timeout=self.timeout_of(request))
        active = await self.services.runs.submit(self.principal, prepared.session, asked)
        async with self.ending_forgotten(prepared.session.id):
            run = await self.wait_for(active)
        self.reply(await self.show(run, request, language, prepared))

    async def find_language(self, request: ExecRequest) -> Language | None:
        """What runs the code; None when that was answered: the code can't be run, or nothing here runs it."""
        try:
            check_code(request.code, self.settings_.max_code_bytes)
        except (InvalidRequestError, TooLargeError) as error:
            self.refuse(_refusal(error.message, "bad_code"))
            return None
        code = parse_language(request.lang)
        if code is None:
            raise InvalidRequestError(f"Unsupported language: {request.lang[:40]}", param="lang")
        specs = await self.services.sessions.kernelspecs()
        language = find_language(code, specs)
        if language is None:
            listed = ", ".join(available_codes(specs)) or "none"
            sentence = f"No kernel for {code} is installed here. Use one of: {listed}."
            self.refuse(_refusal(sentence, "unsupported_language"))
        return language

    def refuse(self, body: JSON) -> None:
        """Answer for code that was not run."""
        self.reply(body)

    async def get_ready(self, request: ExecRequest, language: Language) -> Prepared:
        """The session for the request's code, in which no program waits for a client that is gone."""
        prepared = await self.front.conversations.prepare(self.asker, request, language)
        await self._end_forgotten(prepared.session.id)
        return prepared

    @asynccontextmanager
    async def ending_forgotten(self, session_id: str) -> AsyncIterator[None]:
        """Meanwhile end the programs before it in its session whose client does not come back."""
        ending = asyncio.create_task(self._end_those_that_get_forgotten(session_id))
        try:
            yield
        finally:
            ending.cancel()
            await asyncio.wait({ending})

    async def _end_those_that_get_forgotten(self, session_id: str) -> None:
        while (seconds := self.front.programs.until_forgotten(session_id)) is not None:
            await asyncio.sleep(seconds)
            await self._end_forgotten(session_id)

    async def _end_forgotten(self, session_id: str) -> None:
        for program in self.front.programs.take_forgotten(session_id):
            reason = "Nobody answered its calls of tools."
            await self.services.runs.cancel(self.principal, program.active.run.id, reason=reason)

    def timeout_of(self, request: ExecRequest) -> float | None:
        """Seconds that the run may take; None for the service's default."""
        if request.timeout is None:
            return None
        return min(request.timeout, self.settings_.max_execute_timeout)

    async def show(self, run: Run, request: ExecRequest, language: Language, prepared: Prepared) -> JSON:
        """The body of the answer for a run."""
        figures = [file.path for file in await save_pictures(self.services, prepared.session, run)]
        body = answer(run, language.code, figures=figures, notes=prepared.notes, origins=prepared.origins)
        if request.hint is not None:
            body["runtime_session_id"] = prepared.session.id
            body["runtime_status"] = "new" if prepared.is_fresh else "reused"
        return body


def _refusal(sentence: str, reason: str) -> JSON:
    """An answer that the model reads; of an HTTP error its client would not show the sentence."""
    return {
        "session_id": new_id(),
        "stdout": "",
        "stderr": f"{sentence}\n",
        "files": [],
        "code": 1,
        "signal": None,
        "status": "RE",
        "message": reason,
        "wall_time": 0,
    }
