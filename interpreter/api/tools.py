"""Tool calls: a model's calls in, messages for the model out."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from interpreter.api.base import BaseHandler
from interpreter.api.operations import Access, Operation, json_answer
from interpreter.api.runs import RunAnswers, check_code
from interpreter.errors import InterpreterError, InvalidRequestError
from interpreter.models import Run, RunRequest, RunStatus
from interpreter.toolcalls import (
    TOOL_NAME,
    Answer,
    BadCall,
    Dialect,
    Invocation,
    ToolCall,
    answer_bad_call,
    answer_run,
    is_tool_name,
    parse_tool_calls,
    read_call,
    tool_definitions,
    tool_messages,
)

if TYPE_CHECKING:
    from interpreter.sessions import Session

_TAG = "Tool calls"
_STOPPED = frozenset({RunStatus.CANCELLED, RunStatus.INTERRUPTED})
"""Statuses after which the calls behind are not run: someone asked for an end."""


class ToolsHandler(BaseHandler):
    """``/v1/tools``"""

    operations: ClassVar = {
        "GET": Operation(
            "listTools",
            "Get the tools for a model",
            _TAG,
            {200: json_answer("The value for `tools` in the dialect's API.", "ToolDefinitions")},
            query="ToolsQuery",
        )
    }

    async def do_get(self) -> None:
        dialect = Dialect(self.read_query().get("dialect", "openai-chat"))
        self.reply(tool_definitions(dialect))


@dataclass(slots=True)
class _Progress:
    """What has come of a list of calls so far."""

    answers: list[Answer] = field(default_factory=list)
    stop: str = ""

    @property
    def runs(self) -> list[Run]:
        return [answer.run for answer in self.answers if answer.run is not None]


class ToolCallsHandler(RunAnswers):
    """``/v1/tool_calls``"""

    operations: ClassVar = {
        "POST": Operation(
            "runToolCalls",
            "Run a model's tool calls",
            _TAG,
            {200: json_answer("Messages in the calls' dialect, ready to append.", "ToolCallsAnswer")},
            Access.RUN,
            "Takes calls of Chat Completions, Responses, Anthropic, Gemini and MCP, and runs them in order. "
            "Another tool's name is a 400, and nothing runs. Arguments that can't be understood give a message that tells the model how to call.",
            body="ToolCallsCreate",
            body_required=True,
        )
    }

    async def do_post(self) -> None:
        body = await self.read_json()
        stateless = body.get("stateless", False)
        asked_id = body.get("session_id")
        if stateless and asked_id is not None:
            raise InvalidRequestError(
                "`stateless` calls have no session; leave out one of the two.", param="stateless"
            )
        # As JSON text it can hold far more than a body may: others must not wait.
        dialect, calls = await asyncio.to_thread(parse_tool_calls, body["tool_calls"])
        _refuse_unknown_tools(calls)
        session = None
        if asked_id is not None:
            session = self._find_session(asked_id)
        elif not stateless:
            session = await self.services.sessions.create(self.principal)
        answers = await self._run_or_discard(calls, session, made_here=asked_id is None)
        self.reply(
            {
                "session_id": session.info.id if session else None,
                "messages": tool_messages(dialect, answers),
                "runs": [answer.run.as_json() for answer in answers if answer.run is not None],
            }
        )

    def _find_session(self, session_id: str) -> "Session":
        return self.services.sessions.get(self.principal, self.session_id_of(session_id))

    async def _run_or_discard(
        self, calls: Sequence[ToolCall], session: "Session | None", *, made_here: bool
    ) -> Sequence[Answer]:
        progress = _Progress()
        try:
            for call in calls:
                progress.answers.append(await self._answer_call(call, session, progress))
        except BaseException:  # also cancellation: the client never learns the id of this session
            if session is not None and made_here:
                await self.services.sessions.delete(self.principal, session.info.id)
            raise
        return progress.answers

    async def _answer_call(self, call: ToolCall, session: "Session | None", progress: _Progress) -> Answer:
        read = self._read(call)
        if isinstance(read, BadCall):
            return answer_bad_call(call, read)
        if progress.stop:
            return Answer(call, progress.stop, True, None)
        try:
            run = await self._run(call, read, session)
        except InterpreterError as error:
            if not progress.runs:
                raise
            # Earlier calls have run: their results must reach the model.
            progress.stop = f"Not run: {error.message}"
            return Answer(call, progress.stop, True, None)
        if run.status in _STOPPED:
            progress.stop = f"Not run: the call before it was {run.status.value}."
        return answer_run(call, run, self.settings_.max_model_text_bytes)

    def _read(self, call: ToolCall) -> Invocation | BadCall:
        read = read_call(call)
        if isinstance(read, Invocation):
            try:
                check_code(read.code, self.settings_.max_code_bytes)
            except InterpreterError as error:
                return BadCall(error.message)
        return read

    async def _run(self, call: ToolCall, invocation: Invocation, session: "Session | None") -> Run:
        timeout = invocation.timeout
        if timeout is not None:
            timeout = min(timeout, self.settings_.max_execute_timeout)
        request = RunRequest(invocation.code, timeout=timeout, tool_call_id=call.call_id or None)
        runs = self.services.runs
        if session is None:
            active = await runs.submit_one_off(self.principal, request)
        else:
            active = await runs.submit(self.principal, session, request)
        return await self.wait_for(active)


def _refuse_unknown_tools(calls: Sequence[ToolCall]) -> None:
    """InvalidRequestError when a call is for another tool: that is the application's to run."""
    for call in calls:
        if not is_tool_name(call.name):
            raise InvalidRequestError(
                f"Call {call.index} of `tool_calls` is for {call.name[:80]!a}, which is no tool of "
                f"this service; it has `{TOOL_NAME}`.",
                param="tool_calls",
            )
