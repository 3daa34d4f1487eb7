"""In-memory doubles of the managers below the API, on a real server and real sockets."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import nbformat
from prometheus_client import CollectorRegistry
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders
from tornado.testing import bind_unused_port

from interpreter import frontends
from interpreter.api.routes import make_application, make_toolbox
from interpreter.api.services import Services
from interpreter.errors import InvalidRequestError, NotFoundError, SessionGoneError
from interpreter.events import RunEvent
from interpreter.models import (
    Folded,
    Principal,
    Role,
    Run,
    RunRequest,
    RunStatus,
    SessionInfo,
    SessionStatus,
    SessionView,
    new_id,
    parse_run_id,
    run_id_of,
    to_iso,
)
from interpreter.runs.replay import Replayed
from interpreter.settings import Settings
from interpreter.store import Store
from interpreter.tokens import TokenStore
from interpreter.web import STATIC_PATH, TEMPLATE_PATH
from interpreter.workspace import Workspaces

NOW = datetime(2031, 5, 1, 12, tzinfo=UTC)
ADMIN_SECRET = "the-configured-admin-token"


@dataclass(eq=False)
class FakeSession:
    info: SessionInfo
    run_count: int = 0

    @property
    def id(self) -> str:
        return self.info.id

    def view(self) -> SessionView:
        end = NOW + timedelta(seconds=self.info.idle_timeout)
        return SessionView(self.info, SessionStatus.IDLE, self.info.created_at, end, self.run_count)


class FakeSessions:
    def __init__(self, workspaces: Workspaces) -> None:
        self.workspaces = workspaces
        self.live: dict[str, FakeSession] = {}
        self.gone: set[str] = set()
        self.touched: list[str] = []
        self.error: Exception | None = None

    async def create(self, principal: Principal, **options: Any) -> FakeSession:
        if self.error:
            raise self.error
        if options.get("kernel_name") not in (None, "python3"):
            raise InvalidRequestError("There is no such kernelspec.", param="kernel_name")
        info = SessionInfo(
            new_id(),
            principal.token_id,
            principal.name,
            options.get("kernel_name") or "python3",
            "python",
            NOW + timedelta(seconds=len(self.live)),
            options.get("timeout") or 120.0,
            options.get("idle_timeout") or 3600.0,
            options.get("network"),
            options.get("one_off", False),
            options.get("metadata") or {},
        )
        self.workspaces.create(info.id)
        self.live[info.id] = FakeSession(info)
        return self.live[info.id]

    def get(self, principal: Principal, session_id: str) -> FakeSession:
        if session_id in self.gone:
            raise SessionGoneError("It has ended.", code="session_expired")
        session = self.live.get(session_id)
        if session is None or not principal.owns(session.info.owner_id):
            raise NotFoundError("There is no session with this id.")
        return session

    def read(self, principal: Principal, session_id: str) -> FakeSession:
        session = self.live.get(session_id)
        return session if session and principal.may_review else self.get(principal, session_id)

    def touch(self, session: FakeSession) -> None:
        self.touched.append(session.id)

    def list(self, principal: Principal) -> list[FakeSession]:
        return [s for s in reversed(self.live.values()) if principal.owns(s.info.owner_id)]

    async def delete(self, principal: Principal, session_id: str) -> None:
        del self.live[self.get(principal, session_id).info.id]
        self.gone.add(session_id)

    async def kernelspecs(self) -> Any:
        return {"default": "python3", "kernelspecs": {"python3": {"display_name": "P", "language": "python"}}}


class FakeActive:
    """A run that ends when `finish` is called; at once unless its code is ``wait``."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.clients = 0
        self.done = asyncio.Event()
        self.log: list[RunEvent] = []
        self.news = asyncio.Event()
        self.say("run.started", run.as_json())
        if run.code != "wait":
            self.finish(RunStatus.ERROR if run.code == "raise" else RunStatus.OK)

    def say(self, kind: str, data: Any) -> None:
        self.log.append(RunEvent(len(self.log) + 1, kind, data))
        self.news.set()

    def finish(self, status: RunStatus) -> None:
        folded = Folded(stdout=self.run.code, result="42")
        self.run = replace(self.run, status=status, ended_at=NOW, duration_ms=1, folded=folded)
        self.say(
            "output", {"index": 0, "output": {"output_type": "stream", "name": "stdout", "text": "\u2028é"}}
        )
        self.say("run.completed", self.run.as_json())
        self.done.set()

    async def wait(self) -> Run:
        await self.done.wait()
        return self.run

    async def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        position = after
        while True:
            while position < len(self.log):
                position += 1
                yield self.log[position - 1]
            if self.done.is_set():
                return
            self.news.clear()
            await self.news.wait()


class FakeRuns:
    def __init__(self, sessions: FakeSessions) -> None:
        self.sessions = sessions
        self.active: dict[str, FakeActive] = {}
        self.requests: list[RunRequest] = []
        self.cancelled: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.submitted = asyncio.Event()
        self.errors: dict[str, Exception] = {}

    async def submit(self, principal: Principal, session: FakeSession, request: RunRequest) -> FakeActive:
        if request.code in self.errors:
            raise self.errors[request.code]
        session.run_count += 1
        self.requests.append(request)
        run = Run(
            run_id_of(session.info.id, session.run_count),
            session.info.id,
            session.info.owner_id,
            RunStatus.RUNNING,
            request.code,
            NOW,
            request.timeout or 120.0,
            request.tool_call_id,
        )
        self.active[run.id] = active = FakeActive(run)
        active.clients = int(request.background)
        self.submitted.set()
        return active

    async def submit_one_off(
        self, principal: Principal, request: RunRequest, *, kernel_name: str | None = None
    ) -> FakeActive:
        session = await self.sessions.create(principal, kernel_name=kernel_name, one_off=True)
        del self.sessions.live[session.info.id]
        return await self.submit(principal, session, request)

    def _find(self, principal: Principal, run_id: str) -> FakeActive:
        active = self.active.get(run_id)
        if active is None or not principal.reads(active.run.owner_id):
            raise NotFoundError("There is no run with this id.")
        return active

    async def get(self, principal: Principal, run_id: str) -> Run:
        return self._find(principal, run_id).run

    async def list_ids(self, principal: Principal, session_id: str) -> list[str]:
        self.sessions.read(principal, session_id)
        return [a.run.id for a in self.active.values() if a.run.session_id == session_id]

    async def events(self, principal: Principal, run_id: str, after: int = 0) -> AsyncIterator[RunEvent]:
        return self._find(principal, run_id).events(after)

    async def cancel(self, principal: Principal, run_id: str, *, reason: str = "cancelled") -> Run:
        active = self._find(principal, run_id)
        if not active.done.is_set():
            active.finish(RunStatus.CANCELLED)
        self.cancelled.put_nowait((run_id, reason))
        return active.run

    def interrupt(self, principal: Principal, session_id: str) -> None:
        self.sessions.get(principal, session_id)

    async def restart(self, principal: Principal, session_id: str) -> FakeSession:
        return self.sessions.get(principal, session_id)

    async def replay(self, principal: Principal, session_id: str) -> Replayed:
        session = self.sessions.get(principal, session_id)
        return Replayed((), None, f"It was fresh, {session.run_count} earlier runs were executed again.")


@dataclass
class FakeRecord:
    info: SessionInfo
    run_count: int
    statuses: Mapping[str, int]
    last_activity_at: datetime
    ended_reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        info = self.info
        return {
            "session_id": info.id,
            "owner": {"id": info.owner_id, "name": info.owner_name},
            "kernel_name": info.kernel_name,
            "created_at": to_iso(info.created_at),
            "last_activity_at": to_iso(self.last_activity_at),
            "ended_at": None,
            "ended_reason": self.ended_reason,
            "run_count": self.run_count,
            "statuses": dict(self.statuses),
            "one_off": info.one_off,
            "metadata": dict(info.metadata),
            "notebook_url": f"/v1/notebooks/{info.id}",
        }


class FakeRecorder:
    def __init__(self, sessions: FakeSessions, runs: FakeRuns) -> None:
        self.sessions, self.runs = sessions, runs

    async def list_sessions(self) -> list[FakeRecord]:
        return [self._record(s) for s in reversed(self.sessions.live.values())]

    async def find_session(self, session_id: str) -> FakeRecord | None:
        session = self.sessions.live.get(session_id)
        return self._record(session) if session else None

    async def search(self, q: str) -> list[str]:
        return [a.run.session_id for a in self.runs.active.values() if q.lower() in a.run.code.lower()]

    async def open_notebook(self, session_id: str) -> BinaryIO | None:
        script = nbformat.v4.new_output("display_data", {"text/html": "<script>alert(1)</script>"})
        cell = nbformat.v4.new_code_cell("print('<b>')", outputs=[script])
        return io.BytesIO(
            b'{"cells": [\n%s\n],\n"metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
            % json.dumps(cell).encode()
        )

    async def verify(self, session_id: str) -> Any:
        if await self.find_session(session_id) is None:
            return None
        return SimpleNamespace(valid=True, runs=1, problems=())

    def _record(self, session: FakeSession) -> FakeRecord:
        runs = [a.run for a in self.runs.active.values() if a.run.session_id == session.info.id]
        statuses = {run.status.value: 1 for run in runs}
        return FakeRecord(session.info, len(runs), statuses, session.info.created_at)


@dataclass
class Api:
    """A running service of doubles, and a client for it."""

    url: str
    sessions: FakeSessions
    runs: FakeRuns
    tokens: TokenStore
    server: HTTPServer
    store: Store
    settings: Settings
    readiness: dict[str, Any]
    secrets: dict[str, str] = field(default_factory=dict)

    @classmethod
    async def start(cls, tmp_path: Path, *, recorder: Any = None, **settings: Any) -> "Api":
        store = Store(f"sqlite:///{tmp_path / 'store.sqlite'}")
        await store.start()
        tokens = TokenStore(store, clock=lambda: NOW, configured_secret=ADMIN_SECRET)
        known, readiness = Settings(**settings), {}
        workspaces = Workspaces(
            tmp_path / "workspaces",
            max_file_bytes=known.max_file_bytes,
            max_workspace_bytes=known.max_workspace_bytes,
        )
        workspaces.prepare()
        sessions = FakeSessions(workspaces)
        runs = FakeRuns(sessions)
        services: Any = Services(
            known, tokens, sessions, runs, recorder or FakeRecorder(sessions, runs),  # type: ignore[arg-type]
            workspaces, readiness, CollectorRegistry(), lambda: NOW,
        )  # fmt: skip
        toolbox = make_toolbox(services)
        application = make_application(
            services,
            template_path=TEMPLATE_PATH,
            static_path=STATIC_PATH,
            toolbox=toolbox,
            extra_routes=frontends.make_routes(toolbox),
        )
        listener, port = bind_unused_port()
        server = HTTPServer(application)
        server.add_socket(listener)
        api = cls(
            f"http://127.0.0.1:{port}", sessions, runs, tokens, server, store, known, readiness
        )  # fmt: skip
        for role in Role:
            _, api.secrets[role.value] = await tokens.create(f"a {role.value} token", role, None)
        return api

    async def aclose(self) -> None:
        self.server.stop()
        await self.server.close_all_connections()
        await self.store.aclose()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = "admin",
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> HTTPResponse:
        """One request; ``token`` is a role of `secrets`, ``raw`` a body that is sent as it is."""
        sent = HTTPHeaders()
        if body is not None:
            raw = json.dumps(body).encode()
        if raw is not None:
            sent["Content-Type"] = "application/json"
        if token is not None:
            sent["Authorization"] = f"Bearer {self.secrets[token]}"
        for name, value in (headers or {}).items():
            sent[name] = value
        request = HTTPRequest(
            self.url + path,
            method=method,
            headers=sent,
            body=raw,
            allow_nonstandard_methods=True,
            follow_redirects=False,
        )
        return await AsyncHTTPClient().fetch(request, raise_error=False)

    async def revoke(self, role: str) -> None:
        """End the token of a role."""
        (info,) = [info for info in await self.tokens.list() if info.name == f"a {role} token"]
        assert await self.tokens.revoke(info.id)

    async def make_session(self, token: str = "admin") -> str:
        session_id: str = json.loads((await self.ask("POST", "/v1/sessions", {}, token=token)).body)["id"]
        return session_id


def error_of(response: HTTPResponse) -> dict[str, Any]:
    """The error of a response, after a check of the one shape."""
    body = json.loads(response.body)
    assert {"error", "message", "request_id"} <= set(body)
    error: dict[str, Any] = body["error"]
    assert set(error) == {"type", "message", "param", "code"}
    assert body["message"] == error["message"]
    assert error["message"].endswith(".")
    assert body["request_id"] == response.headers["X-Request-Id"]
    assert response.headers["Content-Type"] == "application/json"
    assert "Traceback" not in error["message"]
    return error


def is_known_run(text: str) -> bool:
    return parse_run_id(text) is not None
