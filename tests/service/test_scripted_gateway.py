"""The double itself: it must behave as named, or the tests that use it prove nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scripted_gateway import (
    CUT,
    HTTP_500,
    MAX_KERNELS,
    NOT_JUPYTER,
    TRACEBACK_MARK,
    Manner,
    ScriptedGateway,
)
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse
from tornado.websocket import WebSocketClientConnection, websocket_connect

from interpreter.messages import (
    V1_SUBPROTOCOL,
    BadMessageError,
    Message,
    decode,
    encode,
    execute_request,
    kernel_info_request,
)


async def call(
    gateway: ScriptedGateway, method: str, path: str, body: object = None, **headers: str
) -> HTTPResponse:
    """Any answer at all; OSError or HTTPClientError when the connection is refused or cut."""
    headers = {"Authorization": f"token {gateway.token}", **headers}
    data = None if method in {"GET", "DELETE"} else json.dumps(body or {})
    fetch = AsyncHTTPClient().fetch
    return await fetch(gateway.url + path, method=method, body=data, headers=headers, raise_error=False)


async def start(gateway: ScriptedGateway, name: str = "python3") -> str:
    response = await call(gateway, "POST", "/api/kernels", {"name": name})
    assert response.code == 201
    kernel_id: str = json.loads(response.body)["id"]
    return kernel_id


class Client:
    """A websocket client that keeps every message it read."""

    def __init__(self, connection: WebSocketClientConnection, *, v1: bool) -> None:
        self.connection, self.v1 = connection, v1
        self.bad_frames = 0

    async def ask(self, msg_id: str, code: str | None, **more: object) -> None:
        """Send an execute request, or kernel_info when there is no code."""
        kind, content = kernel_info_request() if code is None else execute_request(code)
        content |= more
        frame = encode("shell", kind, content, msg_id=msg_id, client_id="c", v1=self.v1)
        await self.connection.write_message(frame, binary=isinstance(frame, bytes))

    async def read(self) -> Message | None:
        """The next message; None when the socket is closed."""
        while (frame := await self.connection.read_message()) is not None:
            try:
                return decode(frame, v1=self.v1)
            except BadMessageError:
                self.bad_frames += 1
        return None

    async def until(self, *ends: str, count: int = 1) -> list[str]:
        """Short names of the messages up to ``count`` of the given ones."""
        names: list[str] = []
        while sum(name in ends for name in names) < count:
            message = await self.read()
            if message is None:
                return [*names, "closed"]
            names.append(short(message))
        return names

    async def run(self, msg_id: str, code: str) -> list[str]:
        """Ask, and read until reply and idle, in either order."""
        await self.ask(msg_id, code)
        ends = [f"{msg_id}:reply ok", f"{msg_id}:reply error", f"{msg_id}:reply aborted", f"{msg_id}:idle"]
        return await self.until(*ends, count=2)


def short(message: Message) -> str:
    content = message.content
    words = {
        "status": str(content.get("execution_state")),
        "stream": f"{content.get('name')} {str(content.get('text')).strip()}",
        "execute_reply": f"reply {content.get('status')}",
        "execute_input": "input",
        "error": f"error {content.get('ename')}",
    }
    return f"{message.parent_id}:{words.get(message.msg_type, message.msg_type)}"


@asynccontextmanager
async def client(gateway: ScriptedGateway, kernel_id: str, session_id: str = "s") -> AsyncIterator[Client]:
    request = HTTPRequest(
        f"{gateway.url.replace('http', 'ws', 1)}/api/kernels/{kernel_id}/channels?session_id={session_id}",
        headers={"Authorization": f"token {gateway.token}"},
    )
    connection = await websocket_connect(request, subprotocols=[V1_SUBPROTOCOL])
    try:
        yield Client(connection, v1=connection.selected_subprotocol == V1_SUBPROTOCOL)
    finally:
        connection.close()


@pytest.mark.parametrize("v1", [True, False])
async def test_a_good_kernel_speaks_both_subprotocols(v1: bool) -> None:
    async with ScriptedGateway(v1=v1) as gateway, client(gateway, await start(gateway)) as ws:
        assert ws.v1 is v1
        names = await ws.run("1", 'print hello\nstderr "oh\\u001b[0m"\nresult 2\ncomm c')
        assert names == [
            "1:busy",
            "1:input",
            "1:stdout hello",
            "1:stderr oh\x1b[0m",
            "1:execute_result",
            "1:comm_open",
            "1:reply ok",
            "1:idle",
        ]
        assert gateway.codes == ['print hello\nstderr "oh\\u001b[0m"\nresult 2\ncomm c']


@pytest.mark.parametrize(
    ("manner", "names"),
    [
        (Manner.IDLE_FIRST, ["busy", "input", "stdout a", "idle", "reply ok"]),
        (Manner.REPLY_FIRST, ["busy", "input", "reply ok", "stdout a", "idle"]),
        (Manner.FORKED_IDLE, ["busy", "input", "idle", "stdout a", "reply ok"]),
        (Manner.ABORTED, ["busy", "idle", "reply aborted"]),
    ],
)
async def test_a_manner_orders_the_messages(manner: Manner, names: list[str]) -> None:
    async with ScriptedGateway(manner=manner) as gateway, client(gateway, await start(gateway)) as ws:
        assert [name.removeprefix("1:") for name in await ws.run("1", "print a")] == names


@pytest.mark.parametrize(
    ("manner", "missing"), [(Manner.NEVER_IDLE, "1:idle"), (Manner.NEVER_REPLIES, "1:reply ok")]
)
async def test_what_never_comes_is_missing_and_kernel_info_is_still_answered(
    manner: Manner, missing: str
) -> None:
    async with ScriptedGateway() as gateway, client(gateway, await start(gateway, manner)) as ws:
        await ws.ask("1", "print a")
        await ws.ask("2", None)
        assert missing not in await ws.until("2:idle")


async def test_an_error_that_stops_aborts_what_is_queued_and_only_that() -> None:
    async with ScriptedGateway() as gateway, client(gateway, await start(gateway)) as ws:
        await ws.ask("1", "wait go\nraise ValueError no", stop_on_error=True)
        await ws.ask("2", "print never")
        await gateway.until(lambda: len(gateway.codes) == 2)
        gateway.release("go")
        assert "1:error ValueError" in await ws.until("1:idle")
        assert await ws.until("2:reply aborted") == ["2:busy", "2:idle", "2:reply aborted"]
        assert "3:stdout b" in await ws.run("3", "print b")


@pytest.mark.parametrize(
    ("manner", "nudge", "word"),
    [
        (Manner.GOOD, False, "1:error KeyboardInterrupt"),
        (Manner.SWALLOWS_INTERRUPT, False, "1:reply ok"),
        (Manner.NEEDS_NUDGE, True, "1:error CancelledError"),
        (Manner.FLOODS, False, "1:error KeyboardInterrupt"),
    ],
)
async def test_an_interrupt_ends_the_run_as_the_manner_says(manner: Manner, nudge: bool, word: str) -> None:
    async with (
        ScriptedGateway(manner=manner) as gateway,
        client(gateway, kernel_id := await start(gateway)) as ws,
    ):
        await ws.ask("1", "" if manner is Manner.FLOODS else "sleep 60")
        await ws.until("1:input")
        if manner is not Manner.FLOODS:
            await gateway.reached("sleep")
        assert (await call(gateway, "POST", f"/api/kernels/{kernel_id}/interrupt")).code == 204
        if nudge:
            await ws.ask("2", None)
        assert word in await ws.until("1:idle")


async def test_an_ignored_interrupt_leaves_the_run_until_its_gate_opens() -> None:
    async with (
        ScriptedGateway(manner=Manner.IGNORES_INTERRUPT) as gateway,
        client(gateway, kernel_id := await start(gateway)) as ws,
    ):
        await ws.ask("1", "wait kernel")
        await gateway.reached("kernel")
        assert (await call(gateway, "POST", f"/api/kernels/{kernel_id}/interrupt")).code == 204
        gateway.release("kernel")
        assert (await ws.until("1:idle"))[-2:] == ["1:reply ok", "1:idle"]


@pytest.mark.parametrize(
    ("manner", "last", "code"),
    [
        (Manner.DIES_MID_RUN, ":dead", 404),
        (Manner.DIES_AND_CLOSES, "closed", 404),
        (Manner.RESTARTS_MID_RUN, ":starting", 200),
    ],
)
async def test_a_death_is_told_without_a_parent(manner: Manner, last: str, code: int) -> None:
    async with (
        ScriptedGateway(manner=manner) as gateway,
        client(gateway, kernel_id := await start(gateway)) as ws,
    ):
        await ws.ask("1", "set a 1\ndie")
        assert (await ws.until(last))[-1] == last
        assert (await call(gateway, "GET", f"/api/kernels/{kernel_id}")).code == code


async def test_a_silent_death_is_seen_only_over_rest() -> None:
    async with ScriptedGateway() as gateway, client(gateway, kernel_id := await start(gateway)) as ws:
        await ws.run("1", "print a")
        seen = len(gateway.messages)
        await gateway.kernel.die(Manner.DIES_SILENTLY)
        await ws.ask("2", "print b")
        await gateway.until(lambda: len(gateway.messages) > seen)
        assert (await call(gateway, "GET", f"/api/kernels/{kernel_id}")).code == 404
        ws.connection.close()
        assert await ws.until("2:idle") == ["closed"]


async def test_exit_answers_ok_and_the_kernel_is_gone() -> None:
    async with ScriptedGateway() as gateway, client(gateway, await start(gateway)) as ws:
        assert (await ws.run("1", "exit"))[-2:] == ["1:reply ok", "1:idle"]
        assert await ws.until(":dead") == [":dead"]


async def test_a_restart_loses_state_and_a_deaf_kernel_loses_iopub_too() -> None:
    async with (
        ScriptedGateway(manner=Manner.DEAF_AFTER_RESTART) as gateway,
        client(gateway, kernel_id := await start(gateway)) as ws,
    ):
        await ws.run("1", "set a 1")
        assert (await call(gateway, "POST", f"/api/kernels/{kernel_id}/restart")).code == 200
        await ws.ask("2", None)
        await ws.ask("3", None)
        assert await ws.until(":kernel_info_reply", "2:kernel_info_reply") == [
            ":starting",
            "2:kernel_info_reply",
        ]
        assert await ws.until("3:kernel_info_reply") == ["3:kernel_info_reply"]
        assert "4:error NameError" in await ws.run("4", "get a")


async def test_late_output_keeps_its_parent() -> None:
    async with (
        ScriptedGateway(manner=Manner.LATE_OUTPUT) as gateway,
        client(gateway, await start(gateway)) as ws,
    ):
        await ws.run("1", "print a")
        names = await ws.run("2", "print b")
        assert names[0] == "1:stdout late"
        assert "1:stdout later" in names[names.index("2:busy") :]


@pytest.mark.parametrize(("manner", "rest"), [(Manner.DROPS_SOCKET, True), (Manner.DROPS_AND_FORGETS, False)])
async def test_a_dropped_socket_is_replayed_to_the_same_session_id(manner: Manner, rest: bool) -> None:
    async with ScriptedGateway(manner=manner) as gateway:
        async with client(gateway, kernel_id := await start(gateway)) as ws:
            await ws.ask("1", "print a")
            assert "closed" in await ws.until("1:idle")
        async with client(gateway, kernel_id) as ws:
            await ws.ask("2", None)
            assert ("1:reply ok" in await ws.until("2:idle")) is rest
            assert gateway.count("websocket") == 2


@pytest.mark.parametrize("v1", [True, False])
async def test_garbage_is_followed_by_a_good_run(v1: bool) -> None:
    async with (
        ScriptedGateway(v1=v1, manner=Manner.GARBAGE) as gateway,
        client(gateway, await start(gateway)) as ws,
    ):
        assert "1:stdout a" in await ws.run("1", "print a")
        assert ws.bad_frames > 10


async def test_a_foreign_run_is_mixed_in() -> None:
    async with ScriptedGateway() as gateway, client(gateway, await start(gateway, "foreign-parent")) as ws:
        names = await ws.run("1", "print a")
        assert {"foreign:idle", "foreign:reply error", ":idle"} <= set(names)


async def test_canned_answers_are_given_as_often_as_asked_and_do_nothing() -> None:
    async with ScriptedGateway(max_kernels=1) as gateway:
        kernel_id = await start(gateway)
        gateway.answer("delete", HTTP_500, times=1)
        refused = await call(gateway, "DELETE", f"/api/kernels/{kernel_id}")
        assert (refused.code, TRACEBACK_MARK.encode() in refused.body) == (500, True)
        assert (await call(gateway, "POST", "/api/kernels", {"name": "python3"})).code == MAX_KERNELS.status
        assert (await call(gateway, "DELETE", f"/api/kernels/{kernel_id}")).code == 204
        assert (await call(gateway, "POST", "/api/kernels", {"name": "nope"})).code == 500
        gateway.answer("*", NOT_JUPYTER)
        assert b"<html>" in (await call(gateway, "GET", "/api")).body
        gateway.answer("api", CUT)
        with pytest.raises(HTTPClientError):
            await call(gateway, "GET", "/api")
        gateway.heal("api")
        gateway.heal("*")
        assert json.loads((await call(gateway, "GET", "/api/kernelspecs")).body)["default"] == "python3"


async def test_a_held_operation_waits_for_its_release_and_a_stopped_gateway_waits_for_nothing() -> None:
    async with ScriptedGateway(manner=Manner.HANGS_ON_DELETE) as gateway:
        kernel_id = await start(gateway)
        deletion = asyncio.create_task(call(gateway, "DELETE", f"/api/kernels/{kernel_id}"))
        await gateway.reached("delete")
        assert kernel_id in gateway.kernels
        gateway.release("delete")
        assert (await deletion).code == 204
        gateway.hold("api")
        hanging = asyncio.create_task(call(gateway, "GET", "/api"))
        await gateway.reached("api")
        await gateway.stop()
        with pytest.raises(OSError, match="refused"):
            await call(gateway, "GET", "/api")
        with pytest.raises(HTTPClientError):
            await hanging
        await gateway.start()
        assert (await call(gateway, "GET", "/api")).code == 200


async def test_token_and_password_are_asked_for() -> None:
    async with ScriptedGateway() as gateway:
        assert (await call(gateway, "GET", "/api", Authorization=f"Bearer {gateway.token}")).code == 401
        assert (await call(gateway, "GET", "/login")).code == 404
        kernel_id = await start(gateway)
        url = gateway.url.replace("http", "ws", 1) + f"/api/kernels/{kernel_id}/channels"
        with pytest.raises(HTTPClientError, match="401"):
            await websocket_connect(url)
    async with ScriptedGateway(auth="password", base_url="/user/ada/") as gateway:
        assert (await call(gateway, "GET", "/api")).code == 403
        form = await call(gateway, "GET", "/login")
        xsrf = form.headers["Set-Cookie"].split(";")[0]
        fetch = AsyncHTTPClient().fetch
        login = await fetch(
            gateway.url + "/login",
            method="POST",
            body=f"{xsrf}&password={gateway.password}",
            headers={"Cookie": xsrf},
            raise_error=False,
            follow_redirects=False,
        )
        assert login.code == 302
        cookies = f"{xsrf}; {login.headers['Set-Cookie'].split(';')[0]}"
        assert (await call(gateway, "POST", "/api/kernels", Cookie=cookies)).code == 403
        token = xsrf.removeprefix("_xsrf=")
        headers = {"Cookie": cookies, "X-XSRFToken": token}
        assert (await call(gateway, "POST", "/api/kernels", **headers)).code == 201
