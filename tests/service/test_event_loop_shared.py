"""Others go on between the parts of what one session says, and while what is large of it is written."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tornado.websocket import WebSocketHandler
from websocket_kit import serving

from interpreter.api import responses, sse
from interpreter.batches import BATCH_SUBPROTOCOL, batch
from interpreter.events import COMPLETED, RunEvent
from interpreter.kernels import channels
from interpreter.kernels.channels import KernelChannels
from interpreter.messages import Message, encode
from interpreter.models import Folded, Run, RunStatus

PATIENCE = 60.0  # seconds; far more than anything here takes
TEXT = "a\b" * 500_000
MANY = 20
OUTPUT = {"output_type": "display_data", "data": {"application/json": list(range(1000))}, "metadata": {}}
OUTPUTS = {
    "many values": ([OUTPUT], True),
    "a large text": ([{"output_type": "stream", "name": "stdout", "text": "é" * 500_000}], False),
    "little": ([{"output_type": "stream", "name": "stdout", "text": "2"}], False),
    "nothing": ([], False),
}


class Speaks(WebSocketHandler):
    """A kernel's websocket that sends a large text, or many small ones in one frame."""

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return BATCH_SUBPROTOCOL

    def open(self, name: str) -> None:
        texts = [TEXT] if name == "large" else ["small"] * MANY
        content = [{"name": "stdout", "text": text} for text in texts]
        sent = [encode("iopub", "stream", each, msg_id="m", client_id="c", v1=True) for each in content]
        frames = [frame for frame in sent if isinstance(frame, bytes)]
        self.write_message(b"".join(batch(frames)), binary=True)


@pytest.mark.parametrize("name", ["large", "small"])
async def test_others_go_on_between_two_parts_of_what_a_kernel_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "AT_ONCE", 0.0)  # each of the small ones takes longer
    said: list[str] = []
    others = 0
    done = asyncio.Event()

    def go_on() -> None:
        nonlocal others
        others += 1

    def hear(part: Message) -> None:
        assert others == len(said), "nobody else had a turn since the part before"
        said.append(part.content["text"])
        asyncio.get_running_loop().call_soon(go_on)
        before = time.monotonic()
        while time.monotonic() == before:
            pass
        if sum(map(len, said)) == len(TEXT if name == "large" else "small" * MANY):
            done.set()

    async with serving(Speaks) as gateway, asyncio.timeout(PATIENCE):
        one = KernelChannels(
            gateway, name, on_message=hear, on_reconnect=lambda: None, on_gone=lambda _: done.set()
        )
        await one.connect(timeout=PATIENCE)
        await done.wait()
        await one.aclose()
    assert len(said) > 5
    assert "".join(said) == (TEXT if name == "large" else "small" * MANY)


def ended(outputs: list[Any]) -> Run:
    return Run(
        f"run_{'a' * 21}_1",
        "a" * 21,
        "owner",
        RunStatus.OK,
        "x = '\ud800'",  # which UTF-8 can't hold
        datetime(2026, 1, 1, tzinfo=UTC),
        60.0,
        folded=Folded(tuple(outputs)),
    )


@pytest.mark.parametrize("kind", OUTPUTS)
async def test_an_answer_of_many_values_is_written_in_a_thread(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, apart = OUTPUTS[kind]
    writers, write = [], responses.dump_json

    def noted(value: Any) -> bytes:
        writers.append(threading.current_thread())
        return write(value)

    monkeypatch.setattr(responses, "dump_json", noted)
    run = ended(outputs)
    assert json.loads(await responses.dump_run(run)) == run.as_json()
    assert (writers != [threading.main_thread()]) == apart


class Client:
    """What is sent of a stream of events, at once."""

    unsent = 0

    def __init__(self) -> None:
        self.sent = b""

    def has_room(self, _: int) -> bool:
        return True

    def set_header(self, name: str, value: str) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.sent += data

    async def flush(self) -> None:
        pass


@pytest.mark.parametrize("kind", OUTPUTS)
async def test_an_event_of_many_values_is_written_in_a_thread(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, apart = OUTPUTS[kind]
    writers, write = [], sse.encode_event

    def noted(event: RunEvent) -> bytes:
        writers.append(threading.current_thread())
        return write(event)

    async def events() -> AsyncIterator[RunEvent]:
        yield RunEvent(1, COMPLETED, ended(outputs).as_json())

    monkeypatch.setattr(sse, "encode_event", noted)
    client = Client()
    await sse.send_events(client, events(), PATIENCE)  # type: ignore[arg-type]
    [_, sent, _] = client.sent.split(b"\n\n")
    assert sent.isascii()
    assert json.loads(sent.partition(b"data: ")[2]) == ended(outputs).as_json()
    assert (writers != [threading.main_thread()]) == apart
