"""The gateway's own side: what our personality, managers and websocket class mend. Real gateway and kernels."""

import asyncio
import ctypes
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from gateway_fixtures import Channels, GatewayClient, admins_gateway, kernelspecs_folder
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

pytestmark = pytest.mark.asyncio(loop_scope="module")

KERNEL_ENDED = 4404
MIB = 1024**2
PATIENCE = 90  # seconds after which this gateway gives up a kernel that does not answer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayClient]:
    """As an admin runs one: our configuration file, secrets in its environment, room for six kernels."""
    folder = tmp_path_factory.mktemp("gw")
    broken = folder / "kernels" / "broken"
    broken.mkdir(parents=True)
    (broken / "kernel.json").write_text('{"argv": ["/not/there"], "display_name": "B", "language": "b"}')
    stillborn = folder / "kernels" / "stillborn"
    stillborn.mkdir()
    (stillborn / "kernel.json").write_text('{"argv": ["/bin/false"], "display_name": "S", "language": "s"}')
    kernelspecs = os.pathsep.join([kernelspecs_folder(), str(folder)])
    async with admins_gateway(
        folder,
        f"--MappingKernelManager.kernel_info_timeout={PATIENCE}",
        KG_MAX_KERNELS="6",
        OPENAI_API_KEY="sk-secret",
        JUPYTER_PATH=kernelspecs,
    ) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def channels(gateway: GatewayClient) -> AsyncIterator[Channels]:
    """A fresh kernel's websocket."""
    async with gateway.kernel() as (_, opened):
        yield opened


# Starting kernels


async def test_concurrent_starts_keep_their_environments_apart(gateway: GatewayClient) -> None:
    async def tenant(number: int) -> str:
        env = {"KERNEL_TENANT": str(number)} if number else {}
        async with gateway.kernel(env=env) as (_, opened):
            return await opened.text("import os; print(os.environ.get('KERNEL_TENANT'))")

    seen = await asyncio.gather(*(tenant(number) for number in range(4)))
    assert seen == ["None\n", "1\n", "2\n", "3\n"]


async def test_max_kernels_holds_for_concurrent_starts(gateway: GatewayClient) -> None:
    replies = await asyncio.gather(
        *(gateway.ask("POST", "/api/kernels", {"name": "python3"}) for _ in range(9))
    )
    started = [reply.json["id"] for reply in replies if reply.status == 201]
    await asyncio.gather(*(gateway.ask("DELETE", f"/api/kernels/{kernel_id}") for kernel_id in started))
    assert len(started) == 6
    refused = [reply for reply in replies if reply.status != 201]
    assert {(reply.status, reply.json["reason"]) for reply in refused} == {(429, "Resource Limit")}


@pytest.mark.parametrize(
    "body",
    [
        {"kernel_id": "abc"},
        {"path": "../../etc"},
        {"path": "a/../../b"},
        {"path": "link"},
        {"path": "not-there"},
        {"path": 7},
        {"path": "nul\0"},
        {"env": ["KERNEL_A"]},
        {"env": {"KERNEL_A": 1}},
        {"name": 7},
    ],
)
async def test_a_start_that_is_not_sound_is_refused(gateway: GatewayClient, body: dict[str, object]) -> None:
    link = gateway.root / "link"
    if not link.is_symlink():
        link.symlink_to("/etc")
    reply = await gateway.ask("POST", "/api/kernels", {"name": "python3", **body})
    assert reply.status == 400
    assert set(reply.json) == {"reason", "message"}
    assert (await gateway.ask("GET", "/api/kernels")).json == []


async def test_a_body_that_is_no_object_is_refused(gateway: GatewayClient) -> None:
    assert (await gateway.ask("POST", "/api/kernels", [1])).status == 400


async def test_path_is_the_working_directory(gateway: GatewayClient) -> None:
    (gateway.root / "session-a").mkdir()
    async with gateway.kernel(path="session-a") as (_, opened):
        assert await opened.text("import os; print(os.getcwd())") == f"{gateway.root / 'session-a'}\n"


async def test_an_unknown_kernelspec_has_a_stable_reason_and_no_traceback(gateway: GatewayClient) -> None:
    reply = await gateway.ask("POST", "/api/kernels", {"name": "no-such"})
    assert (reply.status, reply.json["reason"]) == (400, "Unknown kernelspec")
    assert "Traceback" not in reply.text
    assert str(gateway.root) not in reply.text


async def test_a_kernel_that_cannot_be_started_tells_nothing_of_the_inside(gateway: GatewayClient) -> None:
    reply = await gateway.ask("POST", "/api/kernels", {"name": "broken"})
    assert (reply.status, reply.json["reason"]) == (500, "Kernel did not start")
    assert reply.json["message"].startswith("FileNotFoundError: No such file or directory")
    assert "/not/there" not in reply.text
    assert "Traceback" not in reply.text
    assert (await gateway.ask("GET", "/api/kernels")).json == []


async def test_a_kernel_that_dies_at_its_start_is_told_at_once(gateway: GatewayClient) -> None:
    kernel_id = await gateway.start_kernel(name="stillborn")
    async with asyncio.timeout(PATIENCE / 2):
        with pytest.raises(HTTPClientError) as refused:
            await gateway.connect(kernel_id)
    assert (refused.value.code, refused.value.message) == (404, "Kernel died")
    assert refused.value.response is not None
    assert json.loads(refused.value.response.body)["interpreter"]["exit_code"] is not None
    assert (await gateway.ask("GET", "/api/kernels")).json == []


# Who may ask


async def test_the_token_is_taken_from_the_header_in_both_schemes(gateway: GatewayClient) -> None:
    for authorization in ("token admins-own", "Bearer admins-own", "bearer admins-own"):
        assert (await gateway.ask("GET", "/api/kernels", authorization=authorization)).status == 200


@pytest.mark.parametrize(
    "path", ["/api", "/api/kernels", "/api/kernelspecs", "/api/kernels?token=admins-own"]
)
async def test_without_the_header_nothing_is_told(gateway: GatewayClient, path: str) -> None:
    for authorization in ("Basic x", "token wrong", "token", "Bearer "):
        reply = await gateway.ask("GET", path, authorization=authorization)
        assert (reply.status, reply.json["reason"]) == (401, "Unauthorized")


async def test_a_websocket_needs_the_header_too(gateway: GatewayClient) -> None:
    kernel_id = await gateway.start_kernel()
    with pytest.raises(HTTPClientError) as refused:
        await websocket_connect(
            f"{gateway.url.replace('http', 'ws')}/api/kernels/{kernel_id}/channels?token=admins-own"
        )
    await gateway.ask("DELETE", f"/api/kernels/{kernel_id}")
    assert refused.value.code == 401


@pytest.mark.parametrize("path", ["/api/sessions", "/api/contents", "/login", "/"])
async def test_other_routes_do_not_exist(gateway: GatewayClient, path: str) -> None:
    assert (await gateway.ask("GET", path)).status == 404


# The kernel's environment


async def test_a_kernel_sees_nothing_of_the_gateways_environment(channels: Channels) -> None:
    text = await channels.text("import os; print(dict(os.environ))")
    assert "sk-secret" not in text
    assert "admins-own" not in text


async def test_only_kernel_names_of_the_requests_env_arrive(gateway: GatewayClient) -> None:
    env = {"KERNEL_A": "1", "PATH": "/evil", "LD_PRELOAD": "x", "HOME": "/root"}
    async with gateway.kernel(env=env) as (_, opened):
        names = await opened.text(
            "import os; print({k: os.environ.get(k) for k in ('KERNEL_A', 'PATH', 'LD_PRELOAD', 'HOME')})"
        )
    assert "'KERNEL_A': '1'" in names
    assert "/evil" not in names
    assert "'LD_PRELOAD': None" in names
    assert "'HOME': '/root'" not in names


async def test_homes_are_private_and_go_with_the_kernel(gateway: GatewayClient) -> None:
    read_home = "import os; print(os.environ['HOME'])"
    async with gateway.kernel() as (_, one), gateway.kernel() as (_, two):
        homes = {(await one.text(read_home)).strip(), (await two.text(read_home)).strip()}
        assert len(homes) == 2
        assert all(os.stat(home).st_mode & 0o777 == 0o700 for home in homes)
    assert not any(os.path.exists(home) for home in homes)


# What kernels show


async def test_every_flushed_line_arrives(channels: Channels) -> None:
    lines = (await channels.text("for i in range(20_000): print(i, flush=True)")).split()
    assert lines == [str(number) for number in range(20_000)]


async def test_a_huge_print_keeps_head_and_tail_and_is_counted(channels: Channels) -> None:
    [stream, _] = await channels.run("print('a' + 'é' * 40_000_000 + 'z', end='')")
    text = stream["content"]["text"]
    assert stream["size"] < 8 * MIB
    assert (text[0], text[-1]) == ("a", "z")
    assert set(text[1:-1]) == {"é"}
    assert stream["metadata"]["interpreter_dropped_bytes"] == 80_000_002 - len(text.encode())


async def test_a_huge_value_is_replaced_by_a_notice(channels: Channels) -> None:
    code = (
        "from IPython.display import display\n"
        "display({'text/html': 'x' * 20_000_000, 'text/plain': 'small'}, raw=True)\n"
        "display({'text/html': 'x' * 80_000_000, 'text/plain': 'small'}, raw=True)\n"
        "raise ValueError('y' * 30_000_000)"
    )
    *outputs, reply = await channels.run(code)
    assert max(message["size"] for message in [*outputs, reply]) <= 24 * MIB
    one, two, error = outputs
    assert one["content"]["data"]["text/plain"].startswith("small\n[text/html of 200000")
    assert set(one["content"]["data"]) == {"text/plain"}
    assert one["metadata"]["interpreter_dropped_bytes"] > 20_000_000
    assert two["metadata"]["interpreter_dropped_bytes"] > 80_000_000
    assert error["content"]["ename"] == "ValueError"
    assert reply["content"]["status"] == "error"


# How connections end


async def test_a_websocket_is_closed_when_its_kernel_is_deleted(gateway: GatewayClient) -> None:
    kernel_id = await gateway.start_kernel()
    opened = await gateway.connect(kernel_id)
    assert (await gateway.ask("DELETE", f"/api/kernels/{kernel_id}")).status == 204
    await opened.drain()
    assert opened.socket.close_code == KERNEL_ENDED


async def test_a_kernel_that_is_being_restarted_can_be_deleted(gateway: GatewayClient) -> None:
    kernel_id = (await gateway.ask("POST", "/api/kernels", {"name": "python3"})).json["id"]
    restarting = asyncio.create_task(gateway.ask("POST", f"/api/kernels/{kernel_id}/restart", {}))
    await asyncio.sleep(0)  # it is sent first
    assert (await gateway.ask("DELETE", f"/api/kernels/{kernel_id}")).status == 204
    assert (await gateway.ask("GET", f"/api/kernels/{kernel_id}")).status == 404
    restarting.cancel()  # its kernel is gone: nothing answers it


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os; os._exit(7)", {"exit_code": 7, "signal": None, "reason": None}),
        ("import os; os.kill(os.getpid(), 9)", {"exit_code": None, "signal": "SIGKILL", "reason": None}),
        ("import ctypes; ctypes.string_at(0)", {"exit_code": None, "signal": "SIGSEGV", "reason": None}),
        ("exit()", {"exit_code": 0, "signal": None, "reason": None}),
    ],
    ids=["exit-code", "killed", "segfault", "exit()"],
)
async def test_death_is_told_with_its_cause_and_then_the_websocket_is_closed(
    gateway: GatewayClient, code: str, cause: dict[str, object]
) -> None:
    kernel_id = await gateway.start_kernel()
    opened = await gateway.connect(kernel_id)
    await opened.text("print('alive')")
    opened.send("execute_request", {"code": code})
    async with asyncio.timeout(PATIENCE / 2):
        await opened.drain()
    channel, last = opened.received[-1]
    assert (channel, last["content"]) == ("iopub", {"execution_state": "dead", "interpreter": cause})
    assert opened.socket.close_code == KERNEL_ENDED
    gone = await gateway.ask("GET", f"/api/kernels/{kernel_id}")
    assert (gone.status, gone.json["interpreter"]) == (404, cause)


async def test_the_json_protocol_gets_the_same(gateway: GatewayClient) -> None:
    kernel_id = await gateway.start_kernel()
    url = f"{gateway.url.replace('http', 'ws')}/api/kernels/{kernel_id}/channels?session_id=json"
    headers = {"Authorization": f"token {gateway.token}"}
    opened = await websocket_connect(HTTPRequest(url, headers=headers), max_message_size=1024**3)

    def execute(code: str) -> None:
        header = {"msg_id": code, "msg_type": "execute_request", "username": "", "session": "json"}
        request = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}}
        opened.write_message(json.dumps({**request, "content": {"code": code}}))

    execute("from IPython.display import display; display({'text/html': 'x' * 20_000_000}, raw=True)")
    received = []
    while (frame := await opened.read_message()) is not None:
        received.append(json.loads(frame))
        if received[-1]["msg_type"] == "display_data":
            execute("import os; os._exit(5)")
    opened.close()
    [display] = [message for message in received if message["msg_type"] == "display_data"]
    assert display["metadata"]["interpreter_dropped_bytes"] > 20_000_000
    assert received[-1]["content"]["interpreter"]["exit_code"] == 5


async def test_what_a_kernel_started_ends_with_it(gateway: GatewayClient) -> None:
    start_child = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True); print(child.pid)"
    )
    async with gateway.kernel() as (_, opened):
        pid = int(await opened.text(start_child))
        assert os.path.exists(f"/proc/{pid}")
    assert not _runs(pid)


async def test_a_client_that_comes_back_gets_what_it_missed(gateway: GatewayClient) -> None:
    async with gateway.kernel() as (kernel_id, first):
        second = await gateway.connect(kernel_id, "same-session")
        code = "import time\nfor i in range(20): print(i, flush=True); time.sleep(0.02)"
        msg_id = second.send("execute_request", {"code": code})
        while (await second.read())[1]["header"]["msg_type"] != "execute_input":
            pass
        first.socket.close()
        await first.drain()  # the gateway keeps messages for the one that leaves last
        second.socket.close()
        await second.drain()
        again = await gateway.connect(kernel_id, "same-session")
        again.received = second.received
        while not _has(again, msg_id, "execute_reply"):
            assert await again.read() is not None
        text = "".join(
            message["content"]["text"]
            for _, message in again.received
            if message["header"]["msg_type"] == "stream"
        )
        again.socket.close()
    assert text.split() == [str(number) for number in range(20)]


async def test_the_websocket_has_nagle_turned_off(gateway: GatewayClient, channels: Channels) -> None:
    local = channels.socket.protocol.stream.socket.getsockname()
    kernel_pid = int(await channels.text("import os; print(os.getppid())"))
    with _copy_of_socket(kernel_pid, peer=local) as served:
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def _has(channels: Channels, msg_id: str, kind: str) -> bool:
    return any(
        m["header"]["msg_type"] == kind and m["parent_header"].get("msg_id") == msg_id
        for _, m in channels.received
    )


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _copy_of_socket(pid: int, *, peer: tuple[str, int]) -> socket.socket:
    """A duplicate of another process's socket that is connected to `peer` (pidfd_getfd(2))."""
    pidfd = os.pidfd_open(pid)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            fd = libc.syscall(438, pidfd, int(name), 0)
            if fd < 0:
                continue
            try:
                copy = socket.socket(fileno=fd)
            except OSError:
                os.close(fd)
                continue
            try:
                if copy.family == socket.AF_INET and copy.getpeername() == peer:
                    return copy
            except OSError:
                pass
            copy.close()
    finally:
        os.close(pidfd)
    raise AssertionError(f"no socket to {peer}")
