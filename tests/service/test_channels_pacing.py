"""A kernel whose messages take long to read is listened to less, and the others are not kept waiting."""

import asyncio
import time

import pytest
from tornado.websocket import WebSocketHandler
from websocket_kit import serving

from interpreter.kernels import channels
from interpreter.kernels.channels import LARGE_FRAME_BYTES, KernelChannels
from interpreter.kernels.turns import COSTLY
from interpreter.messages import V1_SUBPROTOCOL, Message, encode

SMALL = 50  # messages of the normal kernel
KERNELS = 6
TEXTS = {
    "heavy": ["x" * (LARGE_FRAME_BYTES + 1)] * 3,
    "medium": ["x" * 10_000] * 3,
    "figure": ["x" * 300_000],
    "normal": ["small"] * SMALL,
}
PATIENCE = 60.0  # seconds; far more than anything here takes


def frame(text: str) -> bytes:
    made = encode("iopub", "stream", {"name": "stdout", "text": text}, msg_id="m", client_id="c", v1=True)
    assert isinstance(made, bytes)
    return made


class Speaks(WebSocketHandler):
    """A kernel's websocket that sends all it has at once."""

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return V1_SUBPROTOCOL

    def open(self, name: str) -> None:
        for text in TEXTS[name]:
            self.write_message(frame(text), binary=True)


async def test_a_normal_kernel_is_heard_while_a_heavy_one_has_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "PEACE", 1e6)  # so that the wait outlasts the test on any machine …
    monkeypatch.setattr(channels, "MAX_PEACE", 10 * PATIENCE)
    heavy, normal = 0, 0
    began, done = asyncio.Event(), asyncio.Event()

    def hear_heavy(_: Message) -> None:
        nonlocal heavy
        heavy += 1
        end = time.thread_time() + 2 * COSTLY
        while time.thread_time() < end:  # … once a message took the processor so long
            pass
        began.set()

    def hear_normal(_: Message) -> None:
        nonlocal normal
        normal += 1
        if normal == SMALL:
            done.set()

    async with serving(Speaks) as gateway, asyncio.timeout(PATIENCE):
        opened = []
        for name, hear, heard in (("heavy", hear_heavy, began), ("normal", hear_normal, done)):
            one = KernelChannels(
                gateway, name, on_message=hear, on_reconnect=lambda: None, on_gone=lambda _: None
            )
            opened.append(one)
            await one.connect(timeout=PATIENCE)
            await heard.wait()
        assert (heavy, normal) == (1, SMALL)
        for one in opened:
            await one.aclose()


async def test_large_messages_are_taken_one_after_another_whoever_sends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is followed by time for small ones: ten such kernels take no more of the service than one."""
    decoding, at_once, decode = 0, [], channels._decode_timed

    def count(data: bytes | memoryview | str, v1: bool) -> tuple[Message, float]:
        nonlocal decoding
        decoding += 1
        at_once.append(decoding)
        try:
            return decode(data, v1=v1)
        finally:
            decoding -= 1

    monkeypatch.setattr(channels, "_decode_timed", count)
    heard, done = 0, asyncio.Event()

    def hear(_: Message) -> None:
        nonlocal heard
        heard += 1
        if heard == 3 * KERNELS:
            done.set()

    async with serving(Speaks) as gateway, asyncio.timeout(PATIENCE):
        opened = [
            KernelChannels(
                gateway, "heavy", on_message=hear, on_reconnect=lambda: None, on_gone=lambda _: None
            )
            for _ in range(KERNELS)
        ]
        await asyncio.gather(*(one.connect(timeout=PATIENCE) for one in opened))
        await done.wait()
        for one in opened:
            await one.aclose()
    assert at_once == [1] * (3 * KERNELS)


async def test_who_says_much_in_little_time_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "COSTLY", PATIENCE)
    monkeypatch.setattr(channels, "MAX_PEACE", 10 * PATIENCE)
    texts: list[Message] = []
    done = asyncio.Event()

    def hear(message: Message) -> None:
        texts.append(message)
        if len(texts) == 3:
            done.set()

    async with serving(Speaks) as gateway, asyncio.timeout(PATIENCE):
        one = KernelChannels(
            gateway, "heavy", on_message=hear, on_reconnect=lambda: None, on_gone=lambda _: None
        )
        await one.connect(timeout=PATIENCE)
        await done.wait()
        await one.aclose()


async def taken_in_turn(name: str, monkeypatch: pytest.MonkeyPatch, *, cost: float = 0.0) -> int:
    """How many messages of the kernel were read by a thread, when to hear each costs so many seconds."""
    in_turn, heard, decode = 0, 0, channels._decode_timed
    done = asyncio.Event()

    def count(data: bytes | memoryview | str, v1: bool) -> tuple[Message, float]:
        nonlocal in_turn
        in_turn += 1
        return decode(data, v1)

    def hear(_: Message) -> None:
        nonlocal heard
        heard += 1
        end = time.thread_time() + cost
        while time.thread_time() < end:
            pass
        if heard == len(TEXTS[name]):
            done.set()

    monkeypatch.setattr(channels, "_decode_timed", count)
    async with serving(Speaks) as gateway, asyncio.timeout(PATIENCE):
        one = KernelChannels(
            gateway, name, on_message=hear, on_reconnect=lambda: None, on_gone=lambda _: None
        )
        await one.connect(timeout=PATIENCE)
        await done.wait()
        await one.aclose()
    return in_turn


async def test_what_may_hold_up_others_is_read_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await taken_in_turn("figure", monkeypatch) == 1


@pytest.mark.parametrize("name", ["medium", "normal"])
async def test_what_costs_little_is_read_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await taken_in_turn(name, monkeypatch) == 0


async def test_who_owes_for_what_was_read_at_once_waits_for_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await taken_in_turn("medium", monkeypatch, cost=2 * COSTLY) == 2


async def test_many_that_cost_a_little_each_make_a_debt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEXTS, "medium", ["x" * 10_000] * 100)
    assert await taken_in_turn("medium", monkeypatch, cost=4 * channels.CHEAP) > 10
