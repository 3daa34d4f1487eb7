"""Sessions: make, list, look at, interrupt, restart, end."""

from typing import ClassVar

from interpreter.api.base import BaseHandler
from interpreter.api.operations import Access, Answer, Operation, json_answer
from interpreter.api.paging import page_of

_TAG = "Sessions"
_SESSION = json_answer("The session.", "Session")
_DONE = Answer("Done.")


class SessionsHandler(BaseHandler):
    """``/v1/sessions``"""

    operations: ClassVar = {
        "POST": Operation(
            "createSession",
            "Start a session",
            _TAG,
            {201: _SESSION},
            Access.RUN,
            "One kernel, whose state lasts from run to run, and one notebook that records it.",
            body="SessionCreate",
        ),
        "GET": Operation(
            "listSessions",
            "List live sessions",
            _TAG,
            {200: json_answer("The sessions that the token may use.", "SessionList")},
            description="An admin token sees all sessions, every other one its own.",
            query="ListQuery",
        ),
    }

    async def do_post(self) -> None:
        body = await self.read_json()
        session = await self.services.sessions.create(
            self.principal,
            kernel_name=body.get("kernel_name"),
            timeout=body.get("timeout"),
            idle_timeout=body.get("idle_timeout"),
            metadata=body.get("metadata", {}),
            network=body.get("network"),
        )
        self.set_header("Location", f"/v1/sessions/{session.info.id}")
        self.reply(session.view().as_json(), 201)

    async def do_get(self) -> None:
        query = self.read_query()
        sessions = self.services.sessions.list(self.principal)
        self.reply(page_of(sessions, query, id_of=lambda s: s.info.id, show=lambda s: s.view().as_json()))


class SessionHandler(BaseHandler):
    """``/v1/sessions/{session_id}``"""

    operations: ClassVar = {
        "GET": Operation("getSession", "Look at a session", _TAG, {200: _SESSION}),
        "DELETE": Operation(
            "deleteSession",
            "End a session",
            _TAG,
            {204: Answer("The kernel is gone; the record stays.")},
            Access.RUN,
        ),
    }

    async def do_get(self, session_id: str) -> None:
        session = self.services.sessions.get(self.principal, self.session_id_of(session_id))
        self.reply(session.view().as_json())

    async def do_delete(self, session_id: str) -> None:
        await self.services.sessions.delete(self.principal, self.session_id_of(session_id))
        self.set_status(204)


class InterruptHandler(BaseHandler):
    """``/v1/sessions/{session_id}/interrupt``"""

    operations: ClassVar = {
        "POST": Operation(
            "interruptSession",
            "Interrupt what a session runs",
            _TAG,
            {204: _DONE},
            Access.RUN,
            "As KeyboardInterrupt in the code; the state stays.",
            body="Empty",
        )
    }

    async def do_post(self, session_id: str) -> None:
        await self.read_json()
        self.services.runs.interrupt(self.principal, self.session_id_of(session_id))
        self.set_status(204)


class RestartHandler(BaseHandler):
    """``/v1/sessions/{session_id}/restart``"""

    operations: ClassVar = {
        "POST": Operation(
            "restartSession",
            "Restart a session's kernel",
            _TAG,
            {200: _SESSION},
            Access.RUN,
            "The state is gone; files and record stay. With `replay` the code of the session's successful runs "
            "is then executed again, without new runs in the record, up to the first that does not succeed "
            "this time; `notice` says what came of it.",
            body="SessionRestart",
        )
    }

    async def do_post(self, session_id: str) -> None:
        body, session_id = await self.read_json(), self.session_id_of(session_id)
        if not body.get("replay", False):
            session = await self.services.runs.restart(self.principal, session_id)
            self.reply(session.view().as_json())
            return
        replayed = await self.services.runs.replay(self.principal, session_id)
        session = self.services.sessions.get(self.principal, session_id)
        self.reply({**session.view().as_json(), "notice": replayed.sentence})


class KernelspecsHandler(BaseHandler):
    """``/v1/kernelspecs``"""

    operations: ClassVar = {
        "GET": Operation(
            "listKernelspecs",
            "List the kernelspecs",
            _TAG,
            {200: json_answer("The default and all names for `kernel_name`.", "Kernelspecs")},
        )
    }

    async def do_get(self) -> None:
        self.reply(await self.services.sessions.kernelspecs())
