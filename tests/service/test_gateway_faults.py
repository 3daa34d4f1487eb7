"""What the gateway's HTTP side can do wrong: the client is told what to change, never what the gateway said."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from runs_kit import ALICE, MARGIN, Stack, stack, target_of
from scripted_gateway import (
    CUT,
    HTTP_401,
    HTTP_403,
    HTTP_404,
    HTTP_500,
    MAX_KERNELS,
    NO_SUCH_KERNELSPEC,
    NOT_JSON,
    NOT_JUPYTER,
    TRACEBACK_MARK,
    WRONG_SHAPE,
    Answer,
    Manner,
    ScriptedGateway,
)

from interpreter.errors import GatewayError, InterpreterError, InvalidRequestError, SettingsError
from interpreter.kernels import gateway as gateway_module
from interpreter.kernels.channels import KernelChannels
from interpreter.kernels.gateway import Gateway
from interpreter.kernels.target import GatewayTarget
from interpreter.models import RunStatus
from interpreter.settings import Settings

REFUSALS = {
    "500": HTTP_500,
    "401": HTTP_401,
    "403": HTTP_403,
    "404": HTTP_404,
    "max_kernels": MAX_KERNELS,
    "not json": NOT_JSON,
    "not jupyter": NOT_JUPYTER,
    "wrong shape": WRONG_SHAPE,
    "cut": CUT,
}


def clean(error: InterpreterError) -> None:
    """One sentence, nothing of the gateway's body."""
    assert TRACEBACK_MARK not in str(error)
    assert "Traceback" not in str(error)
    assert error.message.endswith((".", "?"))


async def ask(operation: Callable[[Gateway], Awaitable[object]], answer: Answer, op: str) -> GatewayError:
    async with ScriptedGateway() as scripted:
        scripted.answer(op, answer)
        gateway = Gateway(target_of(scripted, connect_timeout=1.0))  # a look for TLS takes that long
        with pytest.raises(GatewayError) as caught:
            await operation(gateway)
        await gateway.settle()
        gateway.close()
    clean(caught.value)
    return caught.value


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize(
    ("op", "operation"),
    [
        ("api", lambda gateway: gateway.check("python3")),
        ("kernelspecs", lambda gateway: gateway.kernelspecs()),
        ("start", lambda gateway: gateway.start_kernel("python3")),
    ],
    ids=["api", "kernelspecs", "start"],
)
async def test_every_bad_answer_is_a_gateway_error_with_a_sentence(
    answer: Answer, op: str, operation: Callable[[Gateway], Awaitable[object]]
) -> None:
    await ask(operation, answer, op)


@pytest.mark.parametrize("answer", [HTTP_500, HTTP_401, HTTP_403, CUT], ids=["500", "401", "403", "cut"])
@pytest.mark.parametrize("op", ["get", "interrupt", "restart", "delete"])
async def test_every_refused_act_on_a_kernel_is_a_gateway_error(answer: Answer, op: str) -> None:
    acts = {
        "get": Gateway.has_kernel,
        "interrupt": Gateway.interrupt_kernel,
        "restart": Gateway.restart_kernel,
        "delete": Gateway.delete_kernel,
    }
    await ask(lambda gateway: acts[op](gateway, "k"), answer, op)


@pytest.mark.parametrize(
    ("answer", "op", "code"),
    [
        (HTTP_500, "start", "gateway_failed"),
        (HTTP_401, "start", "gateway_unauthorized"),
        (HTTP_403, "start", "gateway_unauthorized"),
        (MAX_KERNELS, "start", "gateway_full"),
        (NOT_JUPYTER, "start", "not_jupyter"),
        (NOT_JUPYTER, "kernelspecs", "not_jupyter"),
        (HTTP_404, "kernelspecs", "not_jupyter"),
        (HTTP_404, "interrupt", "kernel_gone"),
        (CUT, "kernelspecs", "gateway_unreachable"),
    ],
)
async def test_the_code_tells_what_is_wrong(answer: Answer, op: str, code: str) -> None:
    operations: dict[str, Callable[[Gateway], Awaitable[object]]] = {
        "start": lambda gateway: gateway.start_kernel("python3"),
        "kernelspecs": lambda gateway: gateway.kernelspecs(),
        "interrupt": lambda gateway: gateway.interrupt_kernel("k"),
    }
    assert (await ask(operations[op], answer, op)).code == code


@pytest.mark.parametrize(
    ("status", "op"), [(500, "start"), (500, "restart"), (404, "interrupt")], ids=["start", "restart", "gone"]
)
async def test_how_a_kernel_died_is_told_whatever_was_asked(status: int, op: str) -> None:
    body = '{"reason": "x", "message": "y", "interpreter": {"reason": "workspace full (limit 1 GiB)"}}'
    operations: dict[str, Callable[[Gateway], Awaitable[object]]] = {
        "start": lambda gateway: gateway.start_kernel("python3"),
        "restart": lambda gateway: gateway.restart_kernel("k"),
        "interrupt": lambda gateway: gateway.interrupt_kernel("k"),
    }
    error = await ask(operations[op], Answer(status, body), op)
    assert error.message.endswith("The kernel died: workspace full (limit 1 GiB).")
    assert error.code == ("kernel_gone" if status == 404 else "kernel_not_up")


async def test_a_kernel_that_died_before_its_websocket_opened_tells_how(tmp_path: Path) -> None:
    async with stack(tmp_path) as parts:
        parts.gateway.answer("websocket", Answer(404, '{"interpreter": {"exit_code": 4}}'))
        with pytest.raises(GatewayError, match="exit code 4"):
            await parts.session()


async def test_a_kernel_that_died_while_the_websocket_was_lost_tells_how(tmp_path: Path) -> None:
    async with stack(tmp_path) as parts:
        session = await parts.session()
        parts.gateway.answer("get", Answer(404, '{"interpreter": {"reason": "out of memory (limit 1 GiB)"}}'))
        parts.gateway.kernel.manner = Manner.DROPS_SOCKET
        run = await parts.run(session, "print a")
        assert run.status is RunStatus.KERNEL_DIED
        assert run.notices[0] == "The kernel died: out of memory (limit 1 GiB)."


@pytest.mark.parametrize("answer", [HTTP_500, HTTP_401, HTTP_403, HTTP_404, NOT_JSON, CUT])
async def test_a_websocket_that_does_not_open_is_a_gateway_error_and_the_kernel_is_deleted(
    tmp_path: Path, answer: Answer
) -> None:
    async with stack(tmp_path) as parts:
        parts.gateway.answer("websocket", answer)
        with pytest.raises(GatewayError) as caught:
            await parts.session()
        clean(caught.value)
        await parts.gateway.until(lambda: parts.gateway.count("delete") > 0 and not parts.gateway.kernels)
        parts.gateway.heal("websocket")
        assert (await parts.run(await parts.session(), "print a")).status is RunStatus.OK


async def test_nothing_listens() -> None:
    async with ScriptedGateway() as scripted:
        pass
    gateway = Gateway(target_of(scripted))
    with pytest.raises(GatewayError) as caught:
        await gateway.kernelspecs()
    assert caught.value.code == "gateway_refused"
    assert caught.value.message.startswith("Nothing listens at http://127.0.0.1:")
    gateway.close()


async def test_a_gateway_that_does_not_answer_in_time() -> None:
    async with ScriptedGateway() as scripted:
        scripted.hold("kernelspecs")
        gateway = Gateway(target_of(scripted, request_timeout=0.5))
        with pytest.raises(GatewayError) as caught:
            await gateway.kernelspecs()
        assert caught.value.code == "gateway_timeout"
        gateway.close()


@pytest.mark.parametrize("words", [NO_SUCH_KERNELSPEC, Answer(400, '{"reason": "Unknown kernelspec"}')])
async def test_an_unknown_kernelspec_is_the_requests_fault(words: Answer) -> None:
    async with ScriptedGateway() as scripted:
        scripted.answer("start", words)
        gateway = Gateway(target_of(scripted))
        with pytest.raises(InvalidRequestError) as caught:
            await gateway.start_kernel("nope")
        assert (caught.value.param, caught.value.code) == ("kernel_name", "no_such_kernelspec")
        clean(caught.value)
        gateway.close()


async def test_a_session_with_an_unknown_kernelspec_names_those_there_are(tmp_path: Path) -> None:
    async with stack(tmp_path) as parts:
        with pytest.raises(InvalidRequestError) as caught:
            await parts.session(kernel_name="nope")
        assert caught.value.param == "kernel_name"
        assert "'nope'" in caught.value.message
        assert "python3" in caught.value.message
        assert parts.gateway.count("start") == 0


async def test_a_full_gateway_refuses_and_later_takes_a_session(tmp_path: Path) -> None:
    async with ScriptedGateway(max_kernels=1) as scripted, stack(tmp_path, gateway=scripted) as parts:
        session = await parts.session()
        with pytest.raises(GatewayError, match="max_kernels") as caught:
            await parts.session()
        assert caught.value.code == "gateway_full"
        await parts.sessions.delete(ALICE, session.id)
        await parts.session()


async def running(parts: Stack):
    """A session and a run that waits at the gate."""
    session = await parts.session()
    active = await parts.submit(session, "print begun\nwait gate")
    await parts.gateway.reached("gate")
    return session, active


async def test_a_gateway_that_stops_ends_the_run_and_the_next_run_works_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with stack(tmp_path) as parts:
        session, active = await running(parts)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await parts.gateway.stop()
        run = await parts.ended(active)
        assert loop.time() - begin < 1 + MARGIN
        assert (run.status, run.folded.stdout, run.kernel_restarted) == (
            RunStatus.KERNEL_DIED,
            "begun\n",
            True,
        )
        assert run.notices[0] == (
            "The connection to the kernel was lost and could not be restored: the gateway can't be reached."
        )
        down = await parts.run(session, "print down")
        assert down.status is RunStatus.KERNEL_DIED
        assert "connection refused" in down.notices[0]
        await parts.gateway.start()
        run = await parts.run(session, "print up")
        assert (run.status, run.folded.stdout, run.kernel_restarted) == (RunStatus.OK, "up\n", True)
        assert "The kernel is a fresh one" in run.notices[0]


async def test_a_gateway_that_restarts_at_once_has_lost_the_kernel(tmp_path: Path) -> None:
    async with stack(tmp_path) as parts:
        session, active = await running(parts)
        await parts.gateway.stop()
        await parts.gateway.start()
        run = await parts.ended(active)
        assert run.status is RunStatus.KERNEL_DIED
        assert run.notices[0].endswith("the gateway does not know it any more.")
        assert (await parts.run(session, "print up")).folded.stdout == "up\n"


async def test_a_gateway_that_hangs_after_the_socket_broke_ends_the_run_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interpreter.kernels.channels.RECONNECT_TIMEOUT", 0.3)
    async with stack(tmp_path) as parts:
        _, active = await running(parts)
        parts.gateway.hold("get")
        parts.gateway.kernel.cut_sockets()
        run = await parts.ended(active)
        assert run.status is RunStatus.KERNEL_DIED
        assert run.notices[0].endswith("the gateway did not answer in time.")
        parts.gateway.release("get")


@pytest.mark.parametrize("answer", [HTTP_500, CUT], ids=["500", "cut"])
async def test_an_interrupt_that_fails_once_is_tried_again(tmp_path: Path, answer: Answer) -> None:
    async with stack(tmp_path, interrupt_grace=5.0) as parts:
        session = await parts.session()
        parts.gateway.answer("interrupt", answer, times=1)
        run = await parts.run(session, "wait gate", timeout=0.1)
        assert (run.status, run.kernel_restarted) == (RunStatus.TIMEOUT, False)


@pytest.mark.parametrize("answer", [HTTP_500, HTTP_404, CUT], ids=["500", "404", "cut"])
async def test_a_restart_that_fails_gives_a_new_kernel(tmp_path: Path, answer: Answer) -> None:
    async with stack(tmp_path) as parts:
        session = await parts.session()
        old = session.kernel.id
        parts.gateway.kernel.manner = Manner.IGNORES_INTERRUPT
        parts.gateway.answer("restart", answer)
        run = await parts.run(session, "wait gate", timeout=0.1)
        assert (run.status, run.kernel_restarted) == (RunStatus.TIMEOUT, True)
        run = await parts.run(session, "print next")
        assert (run.folded.stdout, run.kernel_restarted) == ("next\n", True)
        assert session.kernel.id != old
        await parts.gateway.until(lambda: old not in parts.gateway.kernels)


async def test_a_kernel_that_dies_of_a_requested_restart_is_replaced(tmp_path: Path) -> None:
    async with stack(tmp_path) as parts:
        session = await parts.session()
        old = parts.gateway.kernel
        parts.gateway.hold("restart")
        restarting = asyncio.create_task(parts.runs.restart(ALICE, session.id))
        await parts.gateway.reached("restart")
        await old.die(Manner.DIES_AND_CLOSES)
        parts.gateway.release("restart")
        await restarting
        run = await parts.run(session, "print next")
        assert (run.status, run.folded.stdout) == (RunStatus.OK, "next\n")


@pytest.mark.parametrize("answer", [HTTP_500, CUT], ids=["500", "cut"])
async def test_a_delete_that_fails_once_is_sent_again(tmp_path: Path, answer: Answer) -> None:
    async with stack(tmp_path) as parts:
        session = await parts.session()
        parts.gateway.answer("delete", answer, times=1)
        await parts.sessions.delete(ALICE, session.id)
        assert not parts.gateway.kernels


async def test_a_gateway_that_is_about_to_end_is_asked_to_delete_nothing(tmp_path: Path) -> None:
    async with stack(tmp_path, outlives_service=False) as parts:
        for _ in range(3):
            await parts.session()
        parts.client.leave_kernels()
        await parts.sessions.aclose()
        assert parts.gateway.count("delete") == 0


async def test_a_request_that_nobody_waits_for_fails_silently(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedGateway() as scripted:
        scripted.hold("kernelspecs")
        gateway = Gateway(target_of(scripted, request_timeout=0.5))
        asking = asyncio.create_task(gateway.kernelspecs())
        await scripted.until(lambda: scripted.count("kernelspecs") == 1)
        asking.cancel()
        await asyncio.wait({asking})
        with pytest.raises(GatewayError):  # the first one's time is up before this one's
            await gateway.kernelspecs()
        gateway.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("opens", [True, False])
async def test_a_websocket_that_is_answered_after_the_stop_is_closed_or_forgotten(
    opens: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateway_module, "SETTLE_TIMEOUT", 0.05)
    async with ScriptedGateway() as scripted:
        gateway = Gateway(target_of(scripted))
        kernel_id = scripted.add_kernel(Manner.GOOD).id if opens else "unknown"
        scripted.hold("websocket")
        connecting = asyncio.create_task(_channels(gateway, kernel_id).connect(timeout=MARGIN))
        await scripted.reached("websocket")
        connecting.cancel()
        await asyncio.wait({connecting})
        del connecting  # its traceback holds what it waited for
        await gateway.settle()
        scripted.release("websocket")
        if opens:
            await scripted.until(lambda: len(scripted.sockets) == 1)
            await scripted.until(lambda: not scripted.sockets)
        else:
            with pytest.raises(GatewayError):  # the first one's answer comes before this one's
                await _channels(gateway, kernel_id).connect(timeout=MARGIN)
        gateway.close()
    gc.collect()  # only then asyncio complains about errors that nobody looked at
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def _channels(gateway: Gateway, kernel_id: str) -> KernelChannels:
    def ignore(*_: object) -> None:
        pass

    return KernelChannels(gateway, kernel_id, on_message=ignore, on_reconnect=ignore, on_gone=ignore)


# Credentials


async def test_an_expired_login_is_renewed(tmp_path: Path) -> None:
    async with ScriptedGateway(auth="password") as scripted, stack(tmp_path, gateway=scripted) as parts:
        session = await parts.session()
        assert scripted.count("login") == 2
        await scripted.stop()
        await scripted.start()  # with another cookie secret: no cookie of before counts
        while session.kernel is not None:
            await asyncio.sleep(0)
        run = await parts.run(session, "print again")
        assert (run.status, run.folded.stdout) == (RunStatus.OK, "again\n")
        assert scripted.count("login") == 4
        assert scripted.password not in str(scripted.messages)


async def test_a_login_that_expires_before_the_websocket_is_renewed(tmp_path: Path) -> None:
    async with ScriptedGateway(auth="password") as scripted, stack(tmp_path, gateway=scripted) as parts:
        scripted.answer("websocket", HTTP_403, times=1)
        assert (await parts.run(await parts.session(), "print a")).folded.stdout == "a\n"


async def test_concurrent_requests_log_in_once(tmp_path: Path) -> None:
    async with ScriptedGateway(auth="password") as scripted:
        gateway = Gateway(target_of(scripted))
        await asyncio.gather(*(gateway.kernelspecs() for _ in range(20)))
        assert scripted.count("login") == 2
        gateway.close()


@pytest.mark.parametrize(
    ("auth", "changes", "sentence"),
    [
        ("token", {"token": "wrong"}, "The gateway refuses gateway_token."),
        ("password", {"password": "wrong"}, "The gateway refuses gateway_password."),
        ("token", {"auth": "none"}, "The gateway wants credentials; set gateway_auth and gateway_token"),
        ("token", {"auth": "password", "password": "x"}, "The gateway has no login form"),
    ],
)
async def test_wrong_credentials_name_the_setting(auth, changes, sentence: str) -> None:
    async with ScriptedGateway(auth=auth) as scripted:
        gateway = Gateway(target_of(scripted, **changes))
        with pytest.raises(GatewayError) as caught:
            await gateway.kernelspecs()
        assert caught.value.message.startswith(sentence)
        assert caught.value.code == "gateway_unauthorized"
        gateway.close()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"gateway_url": "localhost:8888"}, "gateway_url"),
        ({"gateway_url": "http://u:p@host"}, "gateway_url"),
        ({"gateway_url": "http://host/?token=x"}, "gateway_url"),
        ({"gateway_url": "http://host:port"}, "gateway_url"),
        ({"gateway_url": "http://host", "gateway_auth": "token"}, "gateway_token"),
        ({"gateway_url": "http://host", "gateway_auth": "password"}, "gateway_password"),
        (
            {"gateway_url": "https://host", "gateway_auth": "none", "gateway_ca_file": "/nowhere"},
            "gateway_ca_file",
        ),
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, str], word: str) -> None:
    with pytest.raises(SettingsError, match=word):
        GatewayTarget.from_settings(Settings(**changes))


def test_a_target_shows_no_secret_and_quotes_what_it_is_given() -> None:
    target = GatewayTarget.from_settings(
        Settings(gateway_url="https://host/base/", gateway_token="secret", gateway_auth="token")
    )
    assert "secret" not in repr(target)
    assert target.http_url("api", "kernels", "../x") == "https://host/base/api/kernels/..%2Fx"
    assert target.ws_url("k", "c") == "wss://host/base/api/kernels/k/channels?session_id=c"
