"""A client that comes back gets what it missed before what comes now."""

import asyncio
from types import SimpleNamespace
from typing import Any

from interpreter.api.shares import Shares
from interpreter.frontends.jupyter.conversation import Conversation
from interpreter.frontends.jupyter.wire import Outgoing


class Line:
    """A socket that takes everything at once."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, message: Outgoing) -> bool:
        self.sent.append(message.content["text"])
        return True

    def end(self, code: int) -> None:
        pass


def message(text: str) -> Outgoing:
    return Outgoing("iopub", "stream", {"name": "stdout", "text": text}, {})


async def test_what_was_missed_comes_before_what_comes_now() -> None:
    tasks: list[asyncio.Task[Any]] = []
    background = SimpleNamespace(spawn=lambda work: tasks.append(asyncio.ensure_future(work)))
    hub = SimpleNamespace(background=background, ended=False, shared=False, kept=Shares(1000))
    client = Conversation(hub, SimpleNamespace(id="tok"), resumable=True)  # type: ignore[arg-type]
    await client.send(message("missed"))
    await client.send(message("missed too"))
    line = Line()
    client.attach(line)  # type: ignore[arg-type]
    await client.send(message("now"))  # before any other task has its turn
    await asyncio.gather(*tasks)
    assert line.sent == ["missed", "missed too", "now"]
