"""Runs: submit, wait for, stream, look at, cancel."""

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from interpreter.api.base import BaseHandler
from interpreter.api.jsonbody import dump_json, has_surrogate
from interpreter.api.operations import Access, Answer, Operation, json_answer
from interpreter.api.paging import page_of
from interpreter.api.responses import dump_run
from interpreter.api.sse import EVENT_STREAM, send_events, wants_events
from interpreter.api.streaming import PIECE_BYTES, send_part, unbroken
from interpreter.api.validity import while_valid
from interpreter.errors import InvalidRequestError, TooLargeError
from interpreter.models import Run, RunRequest

if TYPE_CHECKING:
    from interpreter.runs import ActiveRun, RecordedRun

_TAG = "Runs"
_RUN = json_answer("The run.", "Run")
_GONE = "The client went away."
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_EVENTS = Answer("The run's events, the last of which is `run.completed`.", {EVENT_STREAM: "Event"})
_ANSWERS = {
    200: Answer(
        "The run, when it has ended; or its events.", {"application/json": "Run", EVENT_STREAM: "Event"}
    ),
    202: json_answer("The run, which goes on in the background.", "Run"),
}
_HOW = (
    "Code that raises, times out or is interrupted is a normal answer with that `status`. With `stream`, or "
    "`Accept: text/event-stream`, the answer is a stream of events. A client that goes away cancels its run "
    "unless `background` is set. An `Idempotency-Key` makes a repeated request give the same run."
)


def check_code(code: str, max_bytes: int) -> None:
    """TooLargeError or InvalidRequestError unless the code can be run."""
    if has_surrogate(code):
        raise InvalidRequestError("`code` has half of a surrogate pair; send valid Unicode.", param="code")
    if len(code.encode()) > max_bytes:
        raise TooLargeError(f"`code` is over the limit of {max_bytes} bytes; split it up.", param="code")


class RunAnswers(BaseHandler):
    """What handlers share that run code for a client that waits."""

    async def read_run(self) -> tuple[RunRequest, Mapping[str, Any]]:
        """The run that the body asks for, and the body."""
        body = await self.read_json()
        check_code(body["code"], self.settings_.max_code_bytes)
        background = body.get("background", False)
        request = RunRequest(
            code=body["code"],
            timeout=body.get("timeout"),
            tool_call_id=body.get("tool_call_id"),
            background=background,
            idempotency_key=self._idempotency_key(),
            told_at_end=not background and not self._streams(body),
        )
        return request, body

    async def wait_for(self, active: "ActiveRun | RecordedRun") -> Run:
        """The ended run; a client that goes away cancels it, unless another one waits for it, too."""
        active.clients += 1
        try:
            return await active.wait()
        except asyncio.CancelledError:
            await self._abandon(active)
            raise

    async def answer(
        self, active: "ActiveRun | RecordedRun", request: RunRequest, body: Mapping[str, Any]
    ) -> None:
        """Answer as the client asked: the ended run, its events, or the run as it stands."""
        if self._streams(body):
            await self._stream(active)
        elif request.background:
            self.set_header("Location", f"/v1/runs/{active.run.id}")
            self.reply(active.run.as_json(), 202)
        else:
            await self.reply_run(await self.wait_for(active))

    def _streams(self, body: Mapping[str, Any]) -> bool:
        return bool(body.get("stream", wants_events(self.request.headers.get("Accept", ""))))

    async def _stream(self, active: "ActiveRun | RecordedRun") -> None:
        ended, active.clients = False, active.clients + 1
        try:
            ended = await while_valid(
                send_events(self, active.events(), self.settings_.keepalive_interval),
                self.services.tokens,
                self.principal.token_id,
            )
        finally:
            if not ended:
                await self._abandon(active)

    async def _abandon(self, active: "ActiveRun | RecordedRun") -> None:
        active.clients -= 1
        if active.clients <= 0:
            await self.services.runs.cancel(self.principal, active.run.id, reason=_GONE)

    def _idempotency_key(self) -> str | None:
        key = self.request.headers.get("Idempotency-Key")
        if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
            raise InvalidRequestError(
                "The Idempotency-Key must be 1 to 255 visible ASCII characters.", param="Idempotency-Key"
            )
        return key


class SessionRunsHandler(RunAnswers):
    """``/v1/sessions/{session_id}/runs``"""

    operations: ClassVar = {
        "POST": Operation(
            "createRun",
            "Run code in a session",
            _TAG,
            _ANSWERS,
            Access.RUN,
            _HOW,
            body="RunCreate",
            body_required=True,
            headers=("Idempotency-Key",),
        ),
        "GET": Operation(
            "listRuns",
            "List a session's runs",
            _TAG,
            {200: json_answer("The runs.", "RunList")},
            query="ListQuery",
        ),
    }

    async def do_post(self, session_id: str) -> None:
        request, body = await self.read_run()
        session = self.services.sessions.get(self.principal, self.session_id_of(session_id))
        await self.answer(await self.services.runs.submit(self.principal, session, request), request, body)

    async def do_get(self, session_id: str) -> None:
        query, runs = self.read_query(), self.services.runs
        ids = await runs.list_ids(self.principal, self.session_id_of(session_id))
        page = page_of(ids[::-1], query, id_of=str, show=lambda run_id: {"id": run_id})
        await self._send_runs(page)

    async def _send_runs(self, page: Mapping[str, Any]) -> None:
        """Answer with the page's list. Its runs are read one after another, as the client takes them."""
        begin, _, end = dump_json({**page, "data": []}).partition(b"[]")
        self.set_header("Content-Type", "application/json")
        async with unbroken(self):
            self.write(begin + b"[")
            for position, item in enumerate(page["data"]):
                part = partial(self._part, item["id"], b"," if position else b"")
                await send_part(self, part, gather=PIECE_BYTES)
            self.finish(b"]" + end)

    async def _part(self, run_id: str, before: bytes) -> bytes:
        return before + await dump_run(await self.services.runs.get(self.principal, run_id))


class OneOffRunsHandler(RunAnswers):
    """``/v1/runs``"""

    operations: ClassVar = {
        "POST": Operation(
            "createOneOffRun",
            "Run code in a fresh kernel",
            _TAG,
            _ANSWERS,
            Access.RUN,
            f"The kernel is discarded after the run; nothing persists to the next. {_HOW}",
            body="OneOffRunCreate",
            body_required=True,
            headers=("Idempotency-Key",),
        )
    }

    async def do_post(self) -> None:
        request, body = await self.read_run()
        kernel_name = body.get("kernel_name")
        active = await self.services.runs.submit_one_off(self.principal, request, kernel_name=kernel_name)
        await self.answer(active, request, body)


class RunHandler(BaseHandler):
    """``/v1/runs/{run_id}``"""

    operations: ClassVar = {"GET": Operation("getRun", "Look at a run", _TAG, {200: _RUN})}

    async def do_get(self, run_id: str) -> None:
        await self.reply_run(await self.services.runs.get(self.principal, self.run_id_of(run_id)))


class CancelHandler(BaseHandler):
    """``/v1/runs/{run_id}/cancel``"""

    operations: ClassVar = {
        "POST": Operation(
            "cancelRun",
            "Cancel a run",
            _TAG,
            {200: _RUN},
            Access.RUN,
            "A run that has ended stays as it is.",
            body="Empty",
        )
    }

    async def do_post(self, run_id: str) -> None:
        await self.read_json()
        run = await self.services.runs.cancel(self.principal, self.run_id_of(run_id))
        await self.reply_run(run)


class RunEventsHandler(BaseHandler):
    """``/v1/runs/{run_id}/events``"""

    operations: ClassVar = {
        "GET": Operation(
            "streamRunEvents",
            "Stream a run's events",
            _TAG,
            {200: _EVENTS},
            description="From the event after `after` (or `Last-Event-ID`) on: how a client reconnects.",
            query="EventsQuery",
            headers=("Last-Event-ID",),
        )
    }

    async def do_get(self, run_id: str) -> None:
        after = self.read_query().get("after", self._last_event_id())
        events = await self.services.runs.events(self.principal, self.run_id_of(run_id), after)
        if self.request.method == "HEAD":
            self.set_header("Content-Type", EVENT_STREAM)
            return
        sending = send_events(self, events, self.settings_.keepalive_interval)
        await while_valid(sending, self.services.tokens, self.principal.token_id)

    def _last_event_id(self) -> int:
        text = self.request.headers.get("Last-Event-ID") or "0"
        if not (text.isascii() and text.isdecimal() and len(text) <= 15):
            raise InvalidRequestError("Last-Event-ID must be the id of an event.", param="Last-Event-ID")
        return int(text)
