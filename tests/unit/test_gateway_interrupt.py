"""An interrupt reaches the code that runs when it is asked for, and nothing that runs later."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from jupyter_client.kernelspec import KernelSpec

from interpreter.gateway_extension import manager as module
from interpreter.gateway_extension.manager import OneKernelManager

TIMEOUT = 20.0


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OneKernelManager:
    made = OneKernelManager(kernel_name="deno", transport="ipc", ip=str(tmp_path / "k"), control_port=1)
    made._kernel_spec = KernelSpec(argv=["deno"], interrupt_mode="message")
    monkeypatch.setattr(OneKernelManager, "has_kernel", True)
    return made


@pytest.fixture
async def control(tmp_path: Path) -> "AsyncIterator[zmq.asyncio.Socket]":
    """The kernel's control socket."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(f"ipc://{tmp_path}/k-1")
    yield socket
    context.destroy(linger=0)


async def test_a_kernel_that_is_not_there_is_not_waited_for(
    manager: OneKernelManager, control: "zmq.asyncio.Socket", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneKernelManager, "has_kernel", False)
    await manager.interrupt_kernel()
    assert not await control.poll(50)


async def test_a_message_counts_as_an_interrupt_when_the_kernel_has_taken_it(
    manager: OneKernelManager, control: "zmq.asyncio.Socket", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERRUPT_REPLY_TIMEOUT", 60.0)
    interrupting = asyncio.create_task(manager.interrupt_kernel())
    async with asyncio.timeout(TIMEOUT):
        identities, parts = manager.session.feed_identities(await control.recv_multipart())
    request = manager.session.deserialize(parts)
    assert request["msg_type"] == "interrupt_request"
    other = manager.session.msg("shutdown_reply", parent=manager.session.msg("shutdown_request"))
    head, header, content = b"<IDS|MSG>", b"{}", b"{}"
    for frames in (
        [b"garbage"],
        [head],
        [head, b"bad", header, b"not JSON", b"{}", content],
        [head, b"bad", header, b"[]", b"{}", content],
        [head, b"bad", header, b"[" * 50_000, b"{}", content],
        [head, b"bad", header, b'{"msg_id": "' + b"x" * 100_000 + b'"}', b"{}", content],
        manager.session.serialize(other),
    ):
        await control.send_multipart([*identities, *frames])
    _, waiting = await asyncio.wait([interrupting], timeout=0.1)
    assert waiting
    answer: Any = manager.session.msg("interrupt_reply", parent=request)
    await control.send_multipart([*identities, *manager.session.serialize(answer)])
    await asyncio.wait_for(interrupting, TIMEOUT)


@pytest.mark.parametrize("floods", [False, True])
async def test_a_kernel_that_does_not_answer_holds_nobody_up(
    manager: OneKernelManager, control: "zmq.asyncio.Socket", monkeypatch: pytest.MonkeyPatch, floods: bool
) -> None:
    monkeypatch.setattr(module, "INTERRUPT_REPLY_TIMEOUT", 0.1)

    asked = asyncio.Event()

    async def flood() -> None:
        identity, *_ = await control.recv_multipart()
        asked.set()
        while floods:
            await control.send_multipart([identity, b"x"])
            await asyncio.sleep(0)

    flooding = asyncio.create_task(flood())
    await asyncio.wait_for(manager.interrupt_kernel(), TIMEOUT)
    assert asked.is_set()
    flooding.cancel()
