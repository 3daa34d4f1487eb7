"""A websocket's client that is slow is not given up for one that is gone."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from interpreter.api.shares import Shares
from interpreter.frontends.jupyter import frames
from interpreter.frontends.jupyter.frames import SharedProtocol

PINGS = 5


class Gone(Exception):
    """The test has seen enough."""


async def closed_after(
    monkeypatch: pytest.MonkeyPatch, waited: Callable[[Any, Any, int], None]
) -> int | None:
    """After how many waits the client is given up; None: it is not. ``waited`` does what happens in each."""
    stream, closed = SimpleNamespace(_total_write_done_index=0), []

    def close(reason: str) -> None:
        closed.append(reason)

    protocol: Any = SharedProtocol.__new__(SharedProtocol)
    protocol.stream, protocol._held = stream, frames.Held(Shares(1))
    protocol.params = SimpleNamespace(ping_interval=30.0)
    protocol.write_ping = lambda data: None
    protocol.close = close
    count = 0

    async def sleep(seconds: float) -> None:
        nonlocal count
        count += 1
        waited(protocol, stream, count)
        if count > PINGS:
            raise Gone

    monkeypatch.setattr(frames, "asyncio", SimpleNamespace(sleep=sleep))
    try:
        await protocol.periodic_ping()
    except Gone:
        return None
    assert closed == ["ping timed out"]
    return count


async def test_who_is_still_taking_a_large_message_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes(protocol: Any, stream: Any, count: int) -> None:
        stream._total_write_done_index += 1000

    assert await closed_after(monkeypatch, takes) is None


async def test_who_answers_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(protocol: Any, stream: Any, count: int) -> None:
        protocol._received_pong = True

    assert await closed_after(monkeypatch, answers) is None


async def test_who_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await closed_after(monkeypatch, lambda protocol, stream, count: None) == 2
