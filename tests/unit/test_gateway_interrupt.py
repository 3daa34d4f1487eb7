"""An interrupt reaches the code that runs when it is asked for, and nothing that runs later."""

import asyncio
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpec

from interpreter.gateway_extension import manager as module
from interpreter.gateway_extension.manager import OneKernelManager


class Control:
    """A control socket: keeps what is sent, answers what it is told to."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []
        self.answers: asyncio.Queue[list[bytes]] = asyncio.Queue()

    def send_multipart(self, frames: list[bytes], **_: Any) -> None:
        self.sent.append(frames)

    def close(self) -> None:
        pass

    async def recv_multipart(self) -> list[bytes]:
        return await self.answers.get()


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> OneKernelManager:
    made = OneKernelManager(kernel_name="deno")
    made._kernel_spec = KernelSpec(argv=["deno"], interrupt_mode="message")
    made._control_socket = Control()
    monkeypatch.setattr(OneKernelManager, "has_kernel", True)
    return made


async def test_a_kernel_that_is_not_there_is_not_waited_for(
    manager: OneKernelManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneKernelManager, "has_kernel", False)
    await manager.interrupt_kernel()
    assert manager._control_socket.sent == []


async def test_a_message_counts_as_an_interrupt_when_the_kernel_has_taken_it(
    manager: OneKernelManager,
) -> None:
    interrupting = asyncio.create_task(manager.interrupt_kernel())
    while not manager._control_socket.sent:
        await asyncio.sleep(0)
    _, parts = manager.session.feed_identities(manager._control_socket.sent[0])
    request = manager.session.deserialize(parts)
    answer = manager.session.msg("interrupt_reply", parent=request)
    for frames in ([b"garbage"], [b"<IDS|MSG>", b"bad", b"{}", b"{}", b"{}", b"{}"]):
        manager._control_socket.answers.put_nowait(frames)
    other = manager.session.msg("shutdown_reply", parent=manager.session.msg("shutdown_request"))
    manager._control_socket.answers.put_nowait(manager.session.serialize(other))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not interrupting.done()
    manager._control_socket.answers.put_nowait(manager.session.serialize(answer))
    await asyncio.wait_for(interrupting, 60)


@pytest.mark.parametrize("flood", [0, 200])
async def test_a_kernel_that_does_not_answer_holds_nobody_up(
    manager: OneKernelManager, monkeypatch: pytest.MonkeyPatch, flood: int
) -> None:
    monkeypatch.setattr(module, "INTERRUPT_REPLY_TIMEOUT", 60.0 if flood else 0.01)
    for _ in range(flood):
        manager._control_socket.answers.put_nowait([b"x"])
    await asyncio.wait_for(manager.interrupt_kernel(), 60)
    assert len(manager._control_socket.sent) == 1
