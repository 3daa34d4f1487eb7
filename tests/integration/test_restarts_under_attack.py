"""A restart ends a kernel that attacks the gateway, and nothing of the attack stays with the next one."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from gateway_fixtures import GatewayClient, admins_gateway, kernelspecs_folder

A_FEW_SECONDS = 10.0  # on a busy machine
GOES_ON = 100.0  # seconds: longer than any test waits
PREPARED = 1.5  # seconds of attack before the restart: as much waits as may

SOCKETS = f"""
import array, contextlib, os, pathlib, socket, stat, threading, time

def sockets(*, listening):
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                found = socket.socket(fileno=os.dup(number))
                found.settimeout({GOES_ON})
                is_stream = found.type == socket.SOCK_STREAM and found.getsockname()
                if is_stream and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == listening:
                    yield found

def refuse(listener):
    with contextlib.suppress(OSError):
        while True:
            listener.accept()[0].close()

def attack(send, targets):
    for target in targets:
        threading.Thread(target=send, args=(target,), daemon=True).start()
    time.sleep({PREPARED})
    pathlib.Path("attacked").touch()
    time.sleep({GOES_ON})

def flood(payload):
    def send(target):
        with contextlib.suppress(OSError):
            while True:
                target.sendall(payload)
    return send

def send_descriptors(target):
    with contextlib.suppress(OSError):
        while True:
            target.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 100))])
"""
ATTACKS = {
    "messages of nothing": "attack(flood(bytes((0, 0)) * 65536), sockets(listening=False))",
    "messages of many parts": (
        "attack(flood((bytes((1, 0)) * 31 + bytes((0, 0))) * 2048), sockets(listening=False))"
    ),
    "bytes against the protocol": "attack(flood(b'\\xff' * 65536), sockets(listening=False))",
    "descriptors": "attack(send_descriptors, sockets(listening=False))",
    "hanging up again and again": (
        "for one in sockets(listening=False): one.shutdown(2)\nattack(refuse, sockets(listening=True))"
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_restart_ends_it_soon(api: httpx.Client, session_id: str, attack: str) -> None:
    session = f"/v1/sessions/{session_id}"
    attacking = {"code": SOCKETS + attack, "background": True, "timeout": GOES_ON}
    assert api.post(f"{session}/runs", json=attacking).status_code == 202
    while api.get(f"{session}/files/attacked").status_code == 404:
        time.sleep(0.1)
    started = time.monotonic()
    restarted = api.post(f"{session}/restart")
    assert restarted.status_code == 200, restarted.text
    ended = api.post(f"{session}/runs", json={"code": "1 + 1"}).json()
    assert (ended["status"], ended["result"]) == ("ok", "2")
    assert time.monotonic() - started < A_FEW_SECONDS


@pytest_asyncio.fixture
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayClient]:
    folder = tmp_path_factory.mktemp("gw")  # a short path, so that sockets can be in it
    async with admins_gateway(folder, JUPYTER_PATH=kernelspecs_folder()) as client:
        yield client


@pytest.mark.parametrize("attack", ["bytes against the protocol", "descriptors", "messages of nothing"])
async def test_a_client_that_was_away_meanwhile_hears_the_next_kernel(
    gateway: GatewayClient, attack: str
) -> None:
    """Its channels wait for it in the gateway, which hung up on what the kernel sent."""
    (gateway.root / "work").mkdir()
    kernel_id = await gateway.start_kernel(path="work")
    leaving = await gateway.connect(kernel_id, "same")
    assert await leaving.text("print('hello')") == "hello\n"
    leaving.send("execute_request", {"code": SOCKETS + ATTACKS[attack]})
    while not (gateway.root / "work" / "attacked").exists():
        await asyncio.sleep(0.1)
    leaving.socket.close()
    await leaving.drain()
    restarted = await gateway.ask("POST", f"/api/kernels/{kernel_id}/restart", {})
    assert restarted.status == 200, restarted.text
    async with asyncio.timeout(A_FEW_SECONDS):
        back = await gateway.connect(kernel_id, "same")
        with contextlib.closing(back.socket):
            assert await back.text("print('good')") == "good\n"
    await gateway.ask("DELETE", f"/api/kernels/{kernel_id}")
