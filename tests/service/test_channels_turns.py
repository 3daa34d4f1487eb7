"""A normal session's large figure is not kept waiting by many that send heavy JSON."""

import asyncio
from collections import Counter
from functools import partial

import pytest
from tornado.websocket import WebSocketHandler
from websocket_kit import serving

from interpreter.kernels import channels, turns
from interpreter.kernels.channels import KernelChannels
from interpreter.messages import V1_SUBPROTOCOL, Message, encode

FIGURE = 5 * 1024**2
HEAVY = [f"heavy{number}" for number in range(10)]
PATIENCE = 60.0  # seconds; far more than anything here takes


class Speaks(WebSocketHandler):
    """A kernel's websocket: two messages of one that is heavy, one figure of one that is not."""

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return V1_SUBPROTOCOL

    def open(self, name: str) -> None:
        self.set_nodelay(True)
        data = {"image/png": "A" * FIGURE} if name == "normal" else {"text/plain": "x" * (FIGURE // 4)}
        content = {"data": data, "metadata": {}, "transient": {}}
        frame = encode("iopub", "display_data", content, msg_id="m", client_id="c", v1=True)
        for _ in range(1 if name == "normal" else 2):
            self.write_message(frame, binary=True)


async def test_a_figure_waits_for_none_of_the_peace_after_heavy_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (channels, turns):
        monkeypatch.setattr(module, "MAX_SHARED_PEACE", 10 * PATIENCE, raising=False)
    monkeypatch.setattr(channels, "PEACE", 0.0)  # they come again at once
    decode = channels._decode_timed

    def dear(data: bytes | memoryview | str, v1: bool) -> tuple[Message, float]:
        """What is heavy costs more than the whole test may take."""
        message, spent = decode(data, v1)
        return message, spent if len(data) > FIGURE else 10 * PATIENCE

    monkeypatch.setattr(channels, "_decode_timed", dear)
    heard: Counter[str] = Counter()
    all_heavy, normal = asyncio.Event(), asyncio.Event()

    def hear(name: str, _: Message) -> None:
        heard[name] += 1
        if name == "normal":
            normal.set()
        elif len(heard) == len(HEAVY):
            all_heavy.set()

    async with serving(Speaks) as gateway, asyncio.timeout(PATIENCE):
        opened = {
            name: KernelChannels(
                gateway,
                name,
                on_message=partial(hear, name),
                on_reconnect=lambda: None,
                on_gone=lambda _: None,
            )
            for name in (*HEAVY, "normal")
        }
        await asyncio.gather(*(opened[name].connect(timeout=PATIENCE) for name in HEAVY))
        await all_heavy.wait()
        await opened["normal"].connect(timeout=PATIENCE)
        await normal.wait()
        for one in opened.values():
            await one.aclose()
    assert heard == Counter([*HEAVY, "normal"])
