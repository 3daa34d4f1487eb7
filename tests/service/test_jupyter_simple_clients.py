"""Clients that read a kernel's messages in a simple way: they stop at the first error, and read no replies."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from jupyter_kit import UPGRADE, Front, contents, front, kinds, text

from interpreter.frontends.images import ImageShrinker
from interpreter.frontends.jupyter.ids import session_id_of

WEBSOCKET_CLIENT = {"Origin": "http://127.0.0.1", "User-Agent": ""}  # which knows no limit
NAMED = {**WEBSOCKET_CLIENT, "User-Agent": "Jupyter Kernel Client"}  # the same, in jupyter_kernel_client


@pytest.fixture
async def jupyter(tmp_path: Path) -> AsyncIterator[Front]:
    async with front(tmp_path, max_code_bytes=8 * 1024**2) as running:
        yield running


async def test_who_hangs_up_at_an_error_leaves_a_failed_run(jupyter: Front) -> None:
    kernel_id = await jupyter.start_kernel()
    for _ in range(2):
        socket = await jupyter.connect(kernel_id)
        socket.execute("raise E x")
        while (message := await socket.read()) is not None and message["msg_type"] != "error":
            pass
        socket.connection.close()
    runs = await jupyter.stack.recorder.list_runs(session_id_of(kernel_id))
    assert [run.status.value for run in runs] == ["error", "error"]


async def test_the_first_error_says_that_it_was_the_time_limit(tmp_path: Path) -> None:
    async with front(tmp_path, execute_timeout=1) as jupyter, jupyter.kernel() as socket:
        messages = await socket.run("print begun\nsleep 60")
        (error,) = contents(messages, "error")
        assert error["ename"] == "TimeoutError"
        assert "KeyboardInterrupt" in "".join(error["traceback"])
        assert error["traceback"][-1] == f"TimeoutError: {error['evalue']}"


async def test_code_that_was_not_run_is_not_taken_for_code_that_printed_nothing(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        first, second = (socket.execute(code) for code in ("wait go\nraise E x", "print no"))
        jupyter.stack.gateway.release("go")
        await socket.answers(first)
        messages = await socket.answers(second)
        assert kinds(messages) == ["busy", "error", "execute_reply", "idle"]
        assert contents(messages, "error")[0]["ename"] == "RunAborted"
        assert contents(messages, "execute_reply") == [{"status": "aborted"}]


async def test_websocket_client_gets_values_and_errors_whole(jupyter: Front) -> None:
    socket = await jupyter.connect(await jupyter.start_kernel(), headers=WEBSOCKET_CLIENT)
    value = "x" * 900_000
    (result,) = contents(await socket.run(f"result {value}"), "execute_result")
    assert result["data"]["text/plain"] == value
    (error,) = contents(await socket.run(f"raise FinalAnswerException {value}"), "error")
    assert error["evalue"] == value
    socket.connection.close()


@pytest.mark.parametrize("character", ["x", "ä", "\x01"], ids=["ascii", "two-bytes", "escaped"])
async def test_long_text_comes_in_few_pieces(jupyter: Front, character: str) -> None:
    async with jupyter.kernel() as socket:
        value = character * 500_000
        size = len(json.dumps(value, ensure_ascii=False).encode())
        messages = await socket.run(f"result {json.dumps(value)}")
        shown = [*contents(messages, "execute_result"), *contents(messages, "display_data")]
        assert "".join(content["data"]["text/plain"] for content in shown) == value
        assert len(shown) <= size // 400_000 + 1
        printed = await socket.run(f"print {json.dumps(value)}")
        assert text(printed).rstrip("\n") == value


async def test_a_client_is_fed_while_an_image_is_made_to_fit(
    jupyter: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()

    async def to_png(self: ImageShrinker, encoded: str, max_bytes: int) -> str:
        await gate.wait()
        return "iVBOR"

    monkeypatch.setattr(ImageShrinker, "to_png", to_png)
    async with jupyter.kernel() as socket:
        msg_id = socket.execute(f"mime image/png iVBORw0KGgoA{'A' * 2_000_000}")
        busy = 0
        while busy < 4 and (message := await socket.read()) is not None:
            busy += message["content"].get("execution_state") == "busy"
        gate.set()
        (shown,) = contents(await socket.answers(msg_id), "display_data")
        assert shown["data"]["image/png"] == "iVBOR"


async def test_a_picture_is_sent_once_as_png_to_who_takes_little(
    jupyter: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def to_png(self: ImageShrinker, encoded: str, max_bytes: int) -> str:
        return "iVBOR"

    monkeypatch.setattr(ImageShrinker, "to_png", to_png)
    kernel_id = await jupyter.start_kernel()
    for headers, kept in ((UPGRADE, []), (WEBSOCKET_CLIENT, ["image/jpeg"]), (NAMED, ["image/jpeg"])):
        socket = await jupyter.connect(kernel_id, headers=headers)
        (shown,) = contents(await socket.run("mime image/jpeg QUJD"), "display_data")
        assert sorted(shown["data"]) == [*kept, "image/png", "text/plain"]
        socket.connection.close()


async def test_what_is_no_picture_is_not_sent_as_one(jupyter: Front) -> None:
    async with jupyter.kernel() as socket:
        for encoded in ("?!", "QUJD"):
            (shown,) = contents(await socket.run(f"mime image/png {encoded}"), "display_data")
            assert shown["data"] == {"text/plain": "[image/png that is not valid]"}
