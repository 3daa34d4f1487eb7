"""Jupyter's REST API and kernel websocket over our sessions and runs."""

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
from jupyter_kit import UPGRADE, Front, Socket, contents, front, kinds, text
from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1, serialize_msg_to_ws_v1
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from interpreter.api import validity
from interpreter.errors import InvalidRequestError
from interpreter.frontends.jupyter.channels import MAX_ODD_FRAMES, NO_JUPYTER
from interpreter.frontends.jupyter.contents import content_of
from interpreter.frontends.jupyter.ids import kernel_id_of, session_id_of
from interpreter.models import new_id

LIMIT = 1024**2  # bytes of a message that the `websockets` package takes


@pytest.fixture
async def jupyter(tmp_path: Path) -> AsyncIterator[Front]:
    async with front(tmp_path) as running:
        yield running


def read(response: Any) -> Any:
    return json.loads(response.body)


# Kernels over REST


def test_a_kernel_id_is_the_session_id_as_a_uuid() -> None:
    for session_id in (new_id(), "a" * 21, "9" * 21):
        kernel_id = kernel_id_of(session_id)
        assert str(UUID(kernel_id)) == kernel_id
        assert session_id_of(kernel_id) == session_id_of(session_id) == session_id


async def test_a_kernel_is_a_session_from_start_to_end(jupyter: Front) -> None:
    made = await jupyter.ask("POST", "/api/kernels")  # with an empty body
    assert made.code == 201
    assert made.headers["Content-Type"] == "application/json"
    model = read(made)
    assert made.headers["Location"] == f"/api/kernels/{model['id']}"
    assert set(model) == {"id", "name", "last_activity", "execution_state", "connections"}
    session_id = session_id_of(model["id"])
    assert [s["id"] for s in read(await jupyter.ask("GET", "/v1/sessions"))["data"]] == [session_id]
    assert [k["id"] for k in read(await jupyter.ask("GET", "/api/kernels"))] == [model["id"]]
    assert read(await jupyter.ask("GET", f"/api/kernels/{session_id}"))["id"] == model["id"]
    assert (await jupyter.ask("POST", f"/api/kernels/{model['id']}/interrupt")).code == 204
    assert read(await jupyter.ask("POST", f"/api/kernels/{model['id']}/restart"))["id"] == model["id"]
    assert read(await jupyter.ask("GET", "/api/status"))["kernels"] == 1
    assert (await jupyter.ask("DELETE", f"/api/kernels/{model['id']}")).code == 204
    assert (await jupyter.ask("GET", f"/api/kernels/{model['id']}")).code == 404
    assert jupyter.stack.gateway.kernels == {}


async def test_a_kernel_belongs_to_its_token(jupyter: Front) -> None:
    kernel_id = await jupyter.start_kernel()
    assert read(await jupyter.ask("GET", "/api/kernels", token="other")) == []
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/interrupt"), ("POST", "/restart")):
        assert (await jupyter.ask(method, f"/api/kernels/{kernel_id}{path}", token="other")).code == 404
    with pytest.raises(HTTPClientError, match="404"):
        await jupyter.connect(kernel_id, "other")


@pytest.mark.parametrize("kernel_id", ["x", "00000000-0000-0000-0000-000000000000", "f" * 32])
async def test_an_unknown_kernel_is_404(jupyter: Front, kernel_id: str) -> None:
    assert (await jupyter.ask("GET", f"/api/kernels/{kernel_id}")).code == 404


async def test_kernelspecs_have_what_clients_read(jupyter: Front) -> None:
    found = read(await jupyter.ask("GET", "/api/kernelspecs"))
    spec = found["kernelspecs"][found["default"]]
    assert spec["name"] == found["default"] == "python3"
    assert {"argv", "display_name", "language", "metadata"} <= set(spec["spec"])
    assert read(await jupyter.ask("GET", "/api/kernelspecs/python3")) == spec
    assert (await jupyter.ask("GET", "/api/kernelspecs/nothing")).code == 404
    assert "version" in read(await jupyter.ask("GET", "/api"))
    assert read(await jupyter.ask("GET", "/api/me"))["identity"]["name"] == "run"


async def test_an_unknown_kernelspec_is_an_error_to_who_sends_a_header(jupyter: Front) -> None:
    refused = await jupyter.ask("POST", "/api/kernels", {"name": "cobol", "env": {"KERNEL_X": "1"}})
    assert refused.code == 400
    assert "cobol" in refused.reason  # which is all that some clients show
    assert (await jupyter.ask("POST", "/api/kernels", ["no object"])).code == 400


# Tokens


async def test_the_token_comes_by_header_or_query(jupyter: Front) -> None:
    secret = jupyter.secrets["run"]
    for headers in ({"Authorization": f"token {secret}"}, {"Authorization": f"Bearer {secret}"}):
        assert (await jupyter.ask("GET", "/api/kernels", token="", **headers)).code == 200
    assert (await jupyter.ask("GET", f"/api/kernels?token={secret}", token="")).code == 200
    for path in ("/api", "/api/kernels", "/api/kernels?token=wrong", "/api/contents", "/api/sessions"):
        refused = await jupyter.ask("GET", path, token="")
        assert refused.code == 401
        assert secret not in refused.body.decode()
    assert (await jupyter.ask("POST", "/api/kernels?token=wrong", token="")).code == 401


async def test_the_token_comes_in_the_url_from_who_is_no_page(jupyter: Front) -> None:
    def basic(secret: str) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(f":{secret}".encode()).decode()}

    good = basic(jupyter.secrets["run"])
    made = await jupyter.ask("POST", "/api/kernels", token="", **good)
    assert made.code == 201
    socket = await jupyter.connect(read(made)["id"], headers={**UPGRADE, **good}, token="")
    assert text(await socket.run("print hi")) == "hi\n"
    socket.connection.close()
    for headers in (basic("wrong"), {"Authorization": "Basic ?"}, {**good, "Origin": "http://elsewhere"}):
        assert (await jupyter.ask("POST", "/api/kernels", token="", **headers)).code == 401
    review = await jupyter.ask("POST", "/api/kernels", token="", **basic(jupyter.secrets["review"]))
    assert review.code == 201  # the refusal comes over the websocket


async def _log_in(jupyter: Front, password: str) -> tuple[int, dict[str, str]]:
    """The login form as Open WebUI fills it in; the headers that it sends from then on."""
    page = await jupyter.ask("GET", "/login", token="")
    jar = dict(re.findall(r"^([^=]+)=([^;]*)", line)[0] for line in page.headers.get_list("Set-Cookie"))
    headers = {
        "Cookie": "; ".join(f"{name}={value}" for name, value in jar.items()),
        "Content-Type": "application/x-www-form-urlencoded",
        "X-XSRFToken": jar["_xsrf"],
    }
    form = urlencode({"_xsrf": jar["_xsrf"], "password": password})
    answer = await AsyncHTTPClient().fetch(
        jupyter.url + "/login", method="POST", body=form, headers=headers,
        follow_redirects=False, raise_error=False,
    )  # fmt: skip
    jar |= dict(re.findall(r"^([^=]+)=([^;]*)", line)[0] for line in answer.headers.get_list("Set-Cookie"))
    cookie = "; ".join(f"{name}={value}" for name, value in jar.items())
    return answer.code, {"Cookie": cookie, "X-XSRFToken": jar["_xsrf"]}


async def test_a_cookie_of_the_login_form_is_good_together_with_its_xsrf(jupyter: Front) -> None:
    code, headers = await _log_in(jupyter, jupyter.secrets["run"])
    assert code == 302
    assert (await jupyter.ask("POST", "/api/kernels", token="", Cookie=headers["Cookie"])).code == 403
    made = await jupyter.ask("POST", "/api/kernels", token="", **headers)
    assert made.code == 201
    path = f"/api/kernels/{read(made)['id']}"
    assert (await jupyter.ask("GET", path, token="", Cookie=headers["Cookie"])).code == 200
    assert (await jupyter.ask("DELETE", path, token="", Cookie=headers["Cookie"])).code == 403
    assert (await jupyter.ask("DELETE", path, token="", **headers)).code == 204


async def test_a_wrong_password_is_401(jupyter: Front) -> None:
    code, headers = await _log_in(jupyter, "wrong")
    assert code == 401
    assert (await jupyter.ask("POST", "/api/kernels", token="", **headers)).code == 401


async def test_a_page_of_another_site_cannot_use_a_browsers_cookie(jupyter: Front) -> None:
    _, headers = await _log_in(jupyter, jupyter.secrets["run"])
    kernel_id = await jupyter.start_kernel()
    url = f"{jupyter.url.replace('http', 'ws')}/api/kernels/{kernel_id}/channels"
    with pytest.raises(HTTPClientError, match="403"):
        await websocket_connect(HTTPRequest(url, headers={**headers, "Origin": "https://evil.example"}))
    (await websocket_connect(HTTPRequest(url, headers=headers))).close()


# Refusals


@pytest.mark.parametrize(
    ("token", "settings", "expected"),
    [
        ("review", {}, "ForbiddenError: The token's role"),
        ("run", {"max_sessions": 1}, "TooManySessionsError: All session slots"),
        ("run", {"rate_limit": 1}, "RateLimitedError: The token has used up"),
    ],
)
async def test_a_refusal_comes_over_the_websocket_when_the_url_holds_the_token(
    tmp_path: Path, token: str, settings: dict[str, Any], expected: str
) -> None:
    async with front(tmp_path, **settings) as jupyter:
        if settings:
            await jupyter.start_kernel()
        made = await jupyter.ask("POST", f"/api/kernels?token={jupyter.secrets[token]}", token="")
        assert made.code == 201
        kernel_id = read(made)["id"]
        socket = await jupyter.connect(kernel_id, token)
        messages = await socket.run("1")
        assert kinds(messages) == ["busy", "error", "execute_reply", "idle"]
        assert messages[1]["content"]["traceback"][0].startswith(expected)
        assert kinds(await socket.answers(socket.send("kernel_info_request", {})))[1] == "kernel_info_reply"
        socket.connection.close()
        path = f"/api/kernels/{kernel_id}?token={jupyter.secrets[token]}"
        assert (await jupyter.ask("DELETE", path, token="")).code == 204
        assert jupyter.stack.gateway.count("start") == len(settings)


async def test_who_sends_a_header_gets_the_status(tmp_path: Path) -> None:
    async with front(tmp_path, max_sessions=1) as jupyter:
        await jupyter.start_kernel()
        assert (await jupyter.ask("POST", "/api/kernels", {})).code == 429
        assert (await jupyter.ask("POST", "/api/kernels", {}, token="review")).code == 403


async def test_a_websocket_ends_with_its_token(jupyter: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validity, "_INTERVAL", 0.02)
    async with jupyter.kernel() as socket, jupyter.kernel("other") as untouched:
        (info,) = [info for info in await jupyter.tokens.list() if info.name == "run"]
        await jupyter.tokens.revoke(info.id)
        while await socket.read() is not None:
            pass
        assert socket.connection.close_code == 1008
        assert text(await untouched.run("print yes")) == "yes\n"


async def test_a_revoked_token_runs_nothing_over_an_open_websocket(
    jupyter: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "_INTERVAL", 3600.0)  # it is closed soon
    async with jupyter.kernel() as socket:
        (info,) = [info for info in await jupyter.tokens.list() if info.name == "run"]
        await jupyter.tokens.revoke(info.id)
        messages = await socket.run("print no")
        assert contents(messages, "error")[0]["ename"] == "UnauthorizedError"
        assert jupyter.stack.gateway.codes == []


async def test_code_that_cannot_run_is_refused_in_an_error(tmp_path: Path) -> None:
    async with front(tmp_path, max_code_bytes=10) as jupyter, jupyter.kernel() as socket:
        for code in ("x" * 11, None, 3, "\ud800"):
            messages = await socket.answers(socket.send("execute_request", {"code": code}))
            assert kinds(messages) == ["busy", "error", "execute_reply", "idle"]
        assert text(await socket.run("print ok")) == "ok\n"


# Runs


async def test_a_run_is_told_as_a_kernel_tells_it_and_is_on_record(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        messages = await socket.run("print hello\nmime image/png iVBOR\nresult 2")
        assert kinds(messages) == [
            *("busy", "execute_input", "stream", "display_data", "execute_result", "execute_reply", "idle")
        ]
        assert [m["channel"] for m in messages] == [*["iopub"] * 5, "shell", "iopub"]
        assert contents(messages, "execute_input")[0]["execution_count"] == 1
        assert contents(messages, "execute_result")[0]["data"] == {"text/plain": "2"}
        reply = contents(messages, "execute_reply")[0]
        assert (reply["status"], reply["execution_count"]) == ("ok", 1)
        (model,) = read(await jupyter.ask("GET", "/api/kernels"))
        runs = await jupyter.stack.recorder.list_runs(session_id_of(model["id"]))
        assert [run.code for run in runs] == ["print hello\nmime image/png iVBOR\nresult 2"]


async def test_the_request_header_comes_back_as_it_was(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        msg_id = socket.send("execute_request", {"code": "print x"}, username="ü", extra=[1])
        for message in await socket.answers(msg_id):
            header = message["parent_header"]
            assert (header["username"], header["extra"], header["date"]) == ("ü", [1], "")


async def test_an_error_always_has_a_plain_traceback(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        for code in ('raise ValueError "\\u001b[31mred\\u001b[0m"', "fail ExceptionGroup many"):
            messages = await socket.run(code)
            assert kinds(messages)[-3:] == ["error", "execute_reply", "idle"]
            for kind in ("error", "execute_reply"):
                traceback = contents(messages, kind)[0]["traceback"]
                assert traceback
                assert "\x1b" not in "".join(traceback)
            assert contents(messages, "execute_reply")[0]["status"] == "error"


async def test_displays_are_updated_and_cleared(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        messages = await socket.run("display d1 one\nupdate d1 two\nclear\nprint end")
        assert kinds(messages)[2:6] == ["display_data", "update_display_data", "clear_output", "stream"]
        first, update = messages[2]["content"], messages[3]["content"]
        assert first["transient"]["display_id"] == update["transient"]["display_id"]
        assert update["data"]["text/plain"] == "two"


async def test_a_silent_request_shows_neither_input_nor_result(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        assert kinds(await socket.run("print x\nresult 2", silent=True)) == [
            *("busy", "stream", "execute_reply", "idle")
        ]


async def test_what_waits_behind_an_error_is_aborted(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        ids = [socket.execute(code) for code in ("wait go\nraise E x", "print no", "print no")]
        jupyter.stack.gateway.release("go")
        assert contents(await socket.answers(ids[0]), "execute_reply")[0]["status"] == "error"
        for msg_id in ids[1:]:
            messages = await socket.answers(msg_id)
            assert contents(messages, "execute_reply") == [{"status": "aborted"}]
        assert text(await socket.run("print yes")) == "yes\n"
        first, second = socket.execute("raise E x", stop_on_error=False), socket.execute("print on")
        await socket.answers(first)
        assert text(await socket.answers(second)) == "on\n"


async def test_what_comes_after_an_error_was_told_is_run(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        socket.execute("raise E x")
        while (message := await socket.read()) is not None and message["msg_type"] != "error":
            pass
        assert text(await socket.run("print at once")) == "at once\n"


async def test_what_comes_after_an_interrupt_is_run(jupyter: Front) -> None:
    kernel_id = await jupyter.start_kernel()
    socket = await jupyter.connect(kernel_id)
    with contextlib.closing(socket.connection):
        for by_message in (True, False):
            runs = [socket.execute("print begun\nwait never"), socket.execute("print behind it")]
            while (message := await socket.read()) is not None and message["msg_type"] != "stream":
                pass
            if by_message:
                socket.send("interrupt_request", {})
            else:
                assert (await jupyter.ask("POST", f"/api/kernels/{kernel_id}/interrupt")).code == 204
            after = socket.execute("print after it")
            assert contents(await socket.answers(runs[1]), "execute_reply") == [{"status": "aborted"}]
            assert text(await socket.answers(after)) == "after it\n"


async def test_too_many_requests_at_once_are_refused_or_wait(tmp_path: Path) -> None:
    async with front(tmp_path, max_queued_runs=2) as jupyter, jupyter.kernel() as socket:
        runs = [socket.execute("print begun\nwait go")]
        while (message := await socket.read()) is not None and message["msg_type"] != "stream":
            pass
        runs += [socket.execute("print x") for _ in range(8)]
        waiting = {*runs, *(socket.send("kernel_info_request", {}) for _ in range(200))}
        refused = 0
        while waiting:
            message = await socket.read()
            assert message is not None
            refused += message["msg_type"] == "error"
            if message["content"].get("execution_state") == "idle":
                waiting.discard(message["parent_header"]["msg_id"])
            if waiting == set(runs[:4]):
                jupyter.stack.gateway.release("go")
        assert refused == 5


async def test_our_time_limit_ends_a_run_while_its_client_is_fed(tmp_path: Path) -> None:
    async with front(tmp_path, execute_timeout=2.5) as jupyter, jupyter.kernel() as socket:
        messages = await socket.run("print begun\nsleep 60")
        assert kinds(messages).count("busy") >= 3  # a frame at least every half second
        errors = contents(messages, "error")
        assert errors[-1]["ename"] == "TimeoutError"
        assert "2.5 seconds" in "".join(errors[-1]["traceback"])
        assert text(messages) == "begun\n"
        assert kinds(messages)[-2:] == ["execute_reply", "idle"]


@pytest.mark.parametrize("manner", ["dies-mid-run", "dies-silently", "restarts-mid-run"])
async def test_a_dead_kernel_ends_in_an_error_and_idle(jupyter: Front, manner: str) -> None:
    async with jupyter.kernel(name=manner) as socket:
        messages = await socket.run("print before\ndie")
        assert kinds(messages)[-3:] == ["error", "execute_reply", "idle"]
        assert contents(messages, "error")[0]["ename"] == "KernelDied"
        assert text(messages) == "before\n"


async def test_an_interrupt_ends_the_run(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        msg_id = socket.execute("print begun\nsleep 60")
        while (message := await socket.read()) is not None and message["msg_type"] != "stream":
            pass
        interrupt = socket.send("interrupt_request", {})
        messages = await socket.answers(msg_id)
        assert contents(messages, "error")[0]["ename"] == "KeyboardInterrupt"
        assert interrupt


async def test_stderr_and_tracebacks_are_on_stdout_too_for_a_token_that_says_so(jupyter: Front) -> None:
    async with jupyter.kernel("loud") as socket:
        messages = await socket.run("print out\nstderr warn\nraise ValueError bad")
        assert text(messages, "stderr") == "warn\n"
        assert text(messages).startswith("out\nwarn\n")
        assert "ValueError" in text(messages)


# Who comes and goes


async def test_a_client_that_cannot_come_back_takes_its_run_with_it(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        socket.execute("print begun\nsleep 60")
        while (message := await socket.read()) is not None and message["msg_type"] != "stream":
            pass
    (run,) = await _ended_runs(jupyter)
    assert (run.status.value, run.folded.stdout) == ("cancelled", "begun\n")
    assert "The client went away." in run.notices


async def _ended_runs(jupyter: Front, count: int = 1) -> list[Any]:
    (model,) = read(await jupyter.ask("GET", "/api/kernels"))
    session_id = session_id_of(model["id"])
    principal = (await jupyter.tokens.authenticate(jupyter.secrets["run"])) or pytest.fail("no token")
    runs: list[Any] = []
    while len(runs) < count:
        await asyncio.sleep(0)
        runs = await jupyter.stack.runs_of(principal, session_id)
    for run in runs:
        async for _ in await jupyter.stack.runs.events(principal, run.id):
            pass
    return await jupyter.stack.runs_of(principal, session_id)


async def _leave_while_it_runs(jupyter: Front, kernel_id: str, socket: Socket) -> None:
    """Go once the first code has printed something, and let it go on when nobody is connected."""
    while (message := await socket.read()) is not None and message["msg_type"] != "stream":
        pass
    socket.connection.close()
    while read(await jupyter.ask("GET", f"/api/kernels/{kernel_id}"))["connections"]:
        pass
    jupyter.stack.gateway.release("go")


async def test_a_client_with_a_name_gets_what_it_missed(jupyter: Front) -> None:
    kernel_id = await jupyter.start_kernel()
    socket = await jupyter.connect(kernel_id, session_id="tab-1")
    msg_id = socket.execute("print begun\nwait go\nprint missed\nresult 5")
    await _leave_while_it_runs(jupyter, kernel_id, socket)
    (run,) = await _ended_runs(jupyter)
    assert run.status.value == "ok"
    again = await jupyter.connect(kernel_id, session_id="tab-1")
    messages = await again.answers(msg_id)
    assert text(messages) == "missed\n"
    assert kinds(messages)[-2:] == ["execute_reply", "idle"]
    again.connection.close()


async def test_clients_of_one_kernel_see_each_others_output(jupyter: Front) -> None:
    kernel_id = await jupyter.start_kernel()
    one, two = (
        await jupyter.connect(kernel_id, session_id="1"),
        await jupyter.connect(kernel_id, session_id="2"),
    )
    msg_id = one.execute("print shared")
    seen = await two.answers(msg_id)
    assert text(seen) == "shared\n"
    assert "execute_reply" not in kinds(seen)
    one.connection.close()
    two.connection.close()


async def test_a_deleted_kernel_closes_its_websockets(jupyter: Front) -> None:
    kernel_id = await jupyter.start_kernel()
    socket = await jupyter.connect(kernel_id)
    msg_id = socket.execute("print begun\nsleep 60")
    while (message := await socket.read()) is not None and message["msg_type"] != "stream":
        pass
    await jupyter.ask("DELETE", f"/api/kernels/{kernel_id}")
    messages = await socket.answers(msg_id)
    assert contents(messages, "error")[-1]["ename"] == "RunCancelled"
    states = []
    while (message := await socket.read()) is not None:
        states += kinds([message])
    assert states == ["dead"]
    socket.connection.close()


async def test_one_session_for_all_kernels_of_a_token_that_keeps_its_state(jupyter: Front) -> None:
    first = await jupyter.start_kernel("keep")
    socket = await jupyter.connect(first, "keep")
    await socket.run("set x 41")
    socket.connection.close()
    assert (await jupyter.ask("DELETE", f"/api/kernels/{first}", token="keep")).code == 204
    async with jupyter.kernel("keep") as again:
        assert contents(await again.run("get x"), "execute_result")[0]["data"]["text/plain"] == "41"
    assert jupyter.stack.gateway.count("start") == 1
    async with jupyter.kernel("run") as other:
        assert contents(await other.run("get x"), "error")[0]["ename"] == "NameError"


async def test_kernels_that_are_made_at_once_share_the_session_too(jupyter: Front) -> None:
    ids = await asyncio.gather(*(jupyter.start_kernel("keep") for _ in range(4)))
    assert len(set(ids)) == 1


# Frames


async def test_no_frame_is_over_what_a_small_client_takes(jupyter: Front) -> None:
    big = json.dumps("ä\x01" * 300_000)
    async with jupyter.kernel() as socket:
        for command in ("print", "stderr", "result", "mime text/html", "mime application/json", "raise E"):
            messages = await socket.run(f"{command} {big}" if "json" not in command else f"{command} [{big}]")
            assert max(m["size"] for m in messages) <= LIMIT, command
            assert kinds(messages)[-1] == "idle"
        printed = text(await socket.run(f"print {json.dumps('x' * 700_000)}"))
        assert printed.count("x") == 700_000
        lines = json.dumps("\n".join(f"line {n}" for n in range(70_000)))
        messages = await socket.run(f"result {lines}")
        shown = [*contents(messages, "execute_result"), *contents(messages, "display_data")]
        assert len(shown) > 1
        assert "\n".join(content["data"]["text/plain"] for content in shown) == json.loads(lines)


async def test_what_is_not_shown_live_is_sent_at_the_end(tmp_path: Path) -> None:
    async with front(tmp_path, max_output_bytes=100_000) as jupyter, jupyter.kernel() as socket:
        printed = text(await socket.run("flood 90 1000"))
        assert len(printed.replace("\n", "")) == 90 * 999
        assert "not shown live" not in printed
        cut = await socket.run("flood 500 1000")
        assert 50_000 < len(text(cut)) < 101_000
        assert "stdout was cut" in text(cut, "stderr")


async def test_a_tornado_client_gets_large_frames_whole(tmp_path: Path) -> None:
    async with front(tmp_path, max_code_bytes=8 * LIMIT) as jupyter:
        socket = await jupyter.connect(await jupyter.start_kernel(), headers={"User-Agent": "Tornado/6.5"})
        image = "A" * 3_000_000
        messages = await socket.run(f"mime image/png {image}")
        assert contents(messages, "display_data")[0]["data"]["image/png"] == image
        socket.connection.close()


async def test_what_shows_only_text_and_png_is_given_text(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        for command, expected in (
            ("mime text/html <p>a&amp;b</p><script>x</script>", "a&b"),
            ("mime text/markdown # Title", "# Title"),
            ("mime image/svg+xml <svg><text>Total</text></svg>", "[SVG picture: Total]"),
        ):
            data = contents(await socket.run(command), "display_data")[0]["data"]
            assert data["text/plain"] == expected


async def test_the_v1_subprotocol(jupyter: Front) -> None:
    socket = await jupyter.connect(await jupyter.start_kernel(), v1=True)
    assert socket.connection.selected_subprotocol == "v1.kernel.websocket.jupyter.org"
    header = {"msg_id": "m1", "msg_type": "execute_request", "session": "s", "username": "", "version": "5.4"}
    parts = [json.dumps(part).encode() for part in (header, {}, {}, {"code": "print v1"})]
    frame = serialize_msg_to_ws_v1(parts, "shell")
    await socket.connection.write_message(frame, binary=True)
    seen = []
    while "idle" not in seen:
        channel, found = deserialize_msg_from_ws_v1(await socket.connection.read_message())
        answer, parent, _, content = (json.loads(part) for part in found[:4])
        assert parent == header
        seen.append(content.get("execution_state", answer["msg_type"]))
        assert (channel == "shell") == (answer["msg_type"] == "execute_reply")
    assert seen == ["busy", "execute_input", "stream", "execute_reply", "idle"]
    socket.connection.close()


@pytest.mark.parametrize(
    "frame", ["", "no json", "[]", "{}", '{"header": 1}', '{"header": {"msg_type": 5}}', b"\x00" * 40]
)
async def test_nonsense_is_passed_over(jupyter: Front, frame: str | bytes) -> None:
    async with jupyter.kernel() as socket:
        await socket.connection.write_message(frame, binary=isinstance(frame, bytes))
        assert text(await socket.run("print still here")) == "still here\n"


@pytest.mark.parametrize("more", ["x" * 70_000, [[]] * 30_000], ids=["large", "many"])
async def test_a_header_that_no_client_sends_is_nonsense(jupyter: Front, more: Any) -> None:
    async with jupyter.kernel() as socket:
        odd = socket.send("kernel_info_request", {}, more=more)
        run = socket.execute("print still here")
        seen = {odd: False, run: False}
        while not seen[run]:
            message = await socket.read()
            assert message is not None
            idle = message["content"].get("execution_state") == "idle"
            seen[message["parent_header"].get("msg_id")] = idle
        assert not seen[odd]


async def test_who_sends_only_nonsense_is_sent_away(jupyter: Front, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with jupyter.kernel() as socket:
        for _ in range(MAX_ODD_FRAMES + 1):
            socket.connection.write_message("nonsense")
        while await socket.read() is not None:
            pass
        assert socket.connection.close_code == NO_JUPYTER
    assert len([record for record in caplog.records if "no message" in record.message]) == 1


async def test_many_large_requests_are_refused(tmp_path: Path) -> None:
    large = "#" * 5_000_000
    async with front(tmp_path, max_code_bytes=6_000_000) as jupyter, jupyter.kernel() as socket:
        runs = [socket.execute("print begun\nwait go")]
        while (message := await socket.read()) is not None and message["msg_type"] != "stream":
            pass
        runs += [socket.execute(f"print x\n{large}") for _ in range(5)]
        refused, waiting = [], set(runs)
        while waiting:
            message = await socket.read()
            assert message is not None
            msg_id = message["parent_header"]["msg_id"]
            if message["msg_type"] == "error":
                refused.append(msg_id)
            if message["content"].get("execution_state") == "idle":
                waiting.discard(msg_id)
            if waiting == set(runs[:4]):
                jupyter.stack.gateway.release("go")
        assert refused == runs[4:]


async def test_a_kernel_has_only_so_many_clients(jupyter: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interpreter.frontends.jupyter.front.MAX_CONNECTIONS", 2)
    kernel_id = await jupyter.start_kernel()
    sockets = [await jupyter.connect(kernel_id) for _ in range(2)]
    with pytest.raises(HTTPClientError) as caught:
        await jupyter.connect(kernel_id)
    assert caught.value.code == 429
    for socket in sockets:
        socket.connection.close()


async def test_what_is_kept_for_a_client_is_bounded(jupyter: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interpreter.frontends.jupyter.kept.MAX_KEPT_BYTES", 500)
    monkeypatch.setattr("interpreter.frontends.jupyter.kept.MAX_KEPT_ENDS", 500)
    kernel_id = await jupyter.start_kernel()
    socket = await jupyter.connect(kernel_id, session_id="tab-1")
    runs = [socket.execute("print begun\nwait go"), *(socket.execute("print x") for _ in range(5))]
    await _leave_while_it_runs(jupyter, kernel_id, socket)
    await _ended_runs(jupyter, len(runs))
    again = await jupyter.connect(kernel_id, session_id="tab-1")
    last, kept = again.execute("print last"), 0
    while (message := await again.read()) is not None and message["parent_header"].get("msg_id") != last:
        kept += 1
    assert 0 < kept < 10
    again.connection.close()


async def test_every_request_gets_a_reply_and_idle(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        await socket.run("print one")
        for kind, content, field in (
            ("kernel_info", {}, "language_info"),
            ("complete", {"code": "pri", "cursor_pos": 3}, "matches"),
            ("inspect", {"code": "print", "cursor_pos": 99}, "found"),
            ("is_complete", {"code": "1"}, "status"),
            ("history", {"hist_access_type": "tail", "n": 5}, "history"),
            ("comm_info", {}, "comms"),
            ("nonsense", {}, "ename"),
        ):
            messages = await socket.answers(socket.send(f"{kind}_request", content))
            assert kinds(messages) == ["busy", f"{kind}_reply", "idle"]
            assert field in messages[1]["content"]
        history = await socket.answers(socket.send("history_request", {}))
        assert history[1]["content"]["history"] == [[0, 1, "print one"]]
        assert kinds(await socket.answers(socket.send("comm_open", {"comm_id": "c"}))) == ["busy", "idle"]
    assert jupyter.stack.gateway.codes == ["print one"]


async def test_a_shutdown_request_restarts_or_ends(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        await socket.run("set x 1")
        socket.send(
            "shutdown_request",
            {"restart": True},
        )
        states: list[str] = []
        while "restarting" not in states:
            message = await socket.read()
            assert message is not None
            states += kinds([message])
        assert contents(await socket.run("get x"), "error")[0]["ename"] == "NameError"
        socket.send("shutdown_request", {"restart": False})
        while (message := await socket.read()) is not None:
            states += kinds([message])
        assert states[-1] == "dead"
    assert read(await jupyter.ask("GET", "/api/kernels")) == []


# Jupyter's sessions


async def test_a_document_keeps_its_kernel(jupyter: Front) -> None:
    made = await jupyter.ask(
        "POST", "/api/sessions", {"path": "a/b.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
    )
    assert made.code == 201
    model = read(made)
    assert (model["path"], model["name"], model["kernel"]["name"]) == ("a/b.ipynb", "b.ipynb", "python3")
    again = read(await jupyter.ask("POST", "/api/sessions", {"path": "a/b.ipynb", "kernel": {}}))
    assert again["id"] == model["id"]
    assert read(await jupyter.ask("GET", "/api/sessions")) == [again]
    assert read(await jupyter.ask("GET", "/api/sessions", token="other")) == []
    path = f"/api/sessions/{model['id']}"
    assert (await jupyter.ask("GET", path, token="other")).code == 404
    changed = read(await jupyter.ask("PATCH", path, {"path": "c.ipynb", "name": "c.ipynb"}))
    assert (changed["path"], changed["kernel"]["id"]) == ("c.ipynb", model["kernel"]["id"])
    assert (await jupyter.ask("DELETE", path)).code == 204
    assert read(await jupyter.ask("GET", "/api/kernels")) == []
    assert (await jupyter.ask("GET", path)).code == 404


# Contents


async def test_contents_are_the_files_of_the_session(jupyter: Front) -> None:
    kernel_id = await jupyter.start_kernel()
    binary = base64.b64encode(b"\x00\xff").decode()
    put = {"type": "file", "format": "base64", "content": binary}
    assert (await jupyter.ask("PUT", "/api/contents/workspace/7/data.bin", put)).code == 201
    assert (await jupyter.ask("PUT", "/api/contents/workspace/7/data.bin", put)).code == 200
    assert (await jupyter.ask("PUT", "/api/contents/empty", {"type": "directory"})).code == 201
    notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    await jupyter.ask("PUT", "/api/contents/n.ipynb", {"type": "notebook", "content": notebook})
    await jupyter.ask("PUT", "/api/contents/a.txt", {"type": "file", "format": "text", "content": "ä"})
    listed = read(await jupyter.ask("GET", "/api/contents"))
    assert {e["name"]: e["type"] for e in listed["content"]} == {
        "workspace": "directory", "empty": "directory", "n.ipynb": "notebook", "a.txt": "file",
    }  # fmt: skip
    assert read(await jupyter.ask("GET", "/api/contents/empty"))["content"] == []
    assert [e["path"] for e in read(await jupyter.ask("GET", "/api/contents/workspace/7"))["content"]] == [
        "workspace/7/data.bin"
    ]
    got = read(await jupyter.ask("GET", f"/api/contents/{kernel_id}/workspace/7/data.bin"))
    assert (got["content"], got["format"], got["size"]) == (binary, "base64", 2)
    assert read(await jupyter.ask("GET", "/api/contents/a.txt"))["content"] == "ä"
    assert read(await jupyter.ask("GET", "/api/contents/a.txt?content=0"))["content"] is None
    assert read(await jupyter.ask("GET", "/api/contents/n.ipynb"))["content"] == notebook
    session_id = session_id_of(kernel_id)
    assert (
        await jupyter.ask("GET", f"/v1/sessions/{session_id}/files/workspace/7/data.bin")
    ).body == b"\x00\xff"


@pytest.mark.parametrize(
    ("model", "param"),
    [
        ({"type": "file", "format": "base64", "content": "!!!"}, "content"),
        ({"type": "file", "format": "text"}, "content"),
        ({"type": "zzz", "content": "x"}, "type"),
        ({"type": "file", "format": "zzz", "content": "x"}, "format"),
    ],
    ids=["no-base64", "no-content", "type", "format"],
)
def test_a_model_of_no_file_is_refused(model: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        content_of(model)
    assert raised.value.param == param


async def test_a_notebook_of_very_many_values_is_a_file_only(jupyter: Front) -> None:
    await jupyter.start_kernel()
    text = json.dumps({"cells": [[]] * 200_000})
    put = {"type": "file", "format": "text", "content": text}
    await jupyter.ask("PUT", "/api/contents/n.ipynb", put)
    refused = await jupyter.ask("GET", "/api/contents/n.ipynb")
    assert (refused.code, "too many values" in read(refused)["message"]) == (400, True)
    assert read(await jupyter.ask("GET", "/api/contents/n.ipynb?type=file"))["content"] == text


async def test_contents_are_made_moved_copied_and_deleted(jupyter: Front) -> None:
    await jupyter.start_kernel()
    made = read(await jupyter.ask("POST", "/api/contents", {"type": "notebook"}))
    assert made["path"] == "Untitled.ipynb"
    assert read(await jupyter.ask("POST", "/api/contents", {"type": "notebook"}))["path"] == "Untitled1.ipynb"
    moved = await jupyter.ask("PATCH", "/api/contents/Untitled.ipynb", {"path": "d/m.ipynb"})
    assert (moved.code, read(moved)["path"]) == (200, "d/m.ipynb")
    assert (await jupyter.ask("GET", "/api/contents/Untitled.ipynb")).code == 404
    copied = read(await jupyter.ask("POST", "/api/contents/d", {"copy_from": "d/m.ipynb"}))
    assert copied["path"].startswith("d/m-Copy")
    assert (await jupyter.ask("PATCH", "/api/contents/d/m.ipynb", {"path": copied["path"]})).code == 409
    assert (await jupyter.ask("DELETE", "/api/contents/d/m.ipynb")).code == 204
    folder = read(await jupyter.ask("POST", "/api/contents", {"type": "directory"}))["path"]
    assert (await jupyter.ask("DELETE", f"/api/contents/{folder.replace(' ', '%20')}")).code == 204
    assert read(await jupyter.ask("GET", "/api/contents/d/n/checkpoints")) == []


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a//b"])
async def test_contents_never_leave_the_folder(jupyter: Front, path: str) -> None:
    await jupyter.start_kernel()
    refused = await jupyter.ask(
        "PUT", f"/api/contents/{path}", {"type": "file", "content": "x", "format": "text"}
    )
    assert refused.code == 400


async def test_a_folder_that_one_kernel_has_stays_with_it(jupyter: Front) -> None:
    """As with a kernel for each project, whose files are uploaded below ``workspace/{project}``."""
    put = {"type": "file", "format": "text", "content": "x"}
    kernels = {}
    for project in ("a", "b"):
        kernels[project] = await jupyter.start_kernel()
        for folder in ("workspace", f"workspace/{project}"):
            await jupyter.ask("PUT", f"/api/contents/{folder}", {"type": "directory"})
    for path in ("workspace/a/1.csv", "workspace/b/2.csv", "workspace/a/deep/er/3.csv"):
        assert (await jupyter.ask("PUT", f"/api/contents/{path}", put)).code == 201
        kernel_id = kernels[path.split("/")[1]]
        assert (await jupyter.ask("GET", f"/api/contents/{kernel_id}/{path}")).code == 200
    listed = read(await jupyter.ask("GET", "/api/contents/workspace/a"))["content"]
    assert [entry["name"] for entry in listed] == ["1.csv", "deep"]
    assert (await jupyter.ask("DELETE", "/api/contents/workspace/a/1.csv")).code == 204
    newest = read(await jupyter.ask("GET", "/api/contents/workspace"))["content"]
    assert [entry["path"] for entry in newest] == ["workspace/b"]


async def test_contents_need_a_kernel_or_a_token_that_keeps_its_state(jupyter: Front) -> None:
    put = {"type": "file", "format": "text", "content": "x"}
    assert read(await jupyter.ask("GET", "/api/contents"))["content"] == []
    assert (await jupyter.ask("PUT", "/api/contents/a.txt", put)).code == 404
    assert (await jupyter.ask("PUT", "/api/contents/a.txt", put, token="keep")).code == 201
    assert (await jupyter.ask("GET", "/api/contents/a.txt", token="keep")).code == 200
    await jupyter.start_kernel("keep")
    assert jupyter.stack.gateway.count("start") == 1
    assert (await jupyter.ask("GET", "/api/contents/a.txt", token="other")).code == 404
