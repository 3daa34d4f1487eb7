"""What the gateway has in memory of many kernels that send as much as they can. Real gateway and kernels."""

import asyncio
from pathlib import Path

import psutil
import pytest
from gateway_fixtures import Channels, GatewayClient, embedded_gateway
from watching import MIB, peak_growth

pytestmark = pytest.mark.timeout(300)

ATTACKERS = 8
MOST_GROWTH = 420 * MIB
RESULTS = """
kernel = get_ipython().kernel
content = {"data": {"text/plain": "r" * 15_000_000}, "metadata": {}, "execution_count": 1}
for _ in range(10):
    kernel.send_response(kernel.iopub_socket, "execute_result", content)
"""
LITTLE = 900_000
"""Characters: so little is kept and passed on, whatever others have."""


async def attackers(gateway: GatewayClient) -> list[tuple[str, Channels]]:
    """Kernels that send results, which are never withheld."""
    kernel_ids = [await gateway.start_kernel() for _ in range(ATTACKERS)]
    return [(kernel_id, await gateway.connect(kernel_id, kernel_id)) for kernel_id in kernel_ids]


async def leave(channels: Channels, code: str) -> None:
    """The client goes as soon as its code runs: what it says is kept."""
    channels.send("execute_request", {"code": code})
    while (item := await channels.read()) and item[1]["header"]["msg_type"] != "execute_input":
        pass
    channels.socket.close()
    await channels.drain()


async def wait_until_idle(gateway: GatewayClient, kernel_id: str) -> None:
    while (await gateway.ask("GET", f"/api/kernels/{kernel_id}")).json["execution_state"] != "idle":
        await asyncio.sleep(0.1)


async def outputs(channels: Channels) -> list[dict[str, object]]:
    """What the client missed, until its run has ended."""
    found = []
    while (item := await channels.read()) is not None:
        _, message = item
        if message["header"]["msg_type"] in ("stream", "execute_result"):
            found.append(message)
        is_idle = message["content"].get("execution_state") == "idle"
        if is_idle and message["parent_header"].get("msg_type") == "execute_request":
            break
    channels.socket.close()
    return found


async def test_clients_that_are_away_do_not_fill_the_gateway(tmp_path: Path) -> None:
    async with embedded_gateway(tmp_path) as (running, gateway):
        many = await attackers(gateway)
        neighbour = await gateway.start_kernel()
        neighbours = await gateway.connect(neighbour, neighbour)
        assert running.pid is not None
        [process] = psutil.Process(running.pid).children()
        with peak_growth(process.pid) as growth:
            for _, channels in many:
                await leave(channels, RESULTS)
            for kernel_id, _ in many:
                await wait_until_idle(gateway, kernel_id)
            await leave(neighbours, f"print('x' * {LITTLE}, end='')")
            await wait_until_idle(gateway, neighbour)
        assert growth() < MOST_GROWTH, f"{growth() / MIB:.0f} MiB"
        [told] = await outputs(await gateway.connect(neighbour, neighbour))
        assert told["content"] == {"name": "stdout", "text": "x" * LITTLE}
        for kernel_id, _ in many:
            assert await outputs(await gateway.connect(kernel_id, kernel_id))


async def test_clients_that_do_not_read_do_not_fill_the_gateway(tmp_path: Path) -> None:
    async with embedded_gateway(tmp_path) as (running, gateway):
        many = await attackers(gateway)
        assert running.pid is not None
        [process] = psutil.Process(running.pid).children()
        async with gateway.kernel() as (_, neighbours):
            with peak_growth(process.pid) as growth:
                for _, channels in many:
                    channels.send("execute_request", {"code": RESULTS})
                for _ in range(100):
                    assert await neighbours.text(f"print('x' * {LITTLE}, end='')") == "x" * LITTLE
                for _, channels in many:
                    assert await outputs(channels)
        assert growth() < MOST_GROWTH, f"{growth() / MIB:.0f} MiB"
