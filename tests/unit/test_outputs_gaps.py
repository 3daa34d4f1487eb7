"""Text that was cut before it came: where it is missing, and how much, stays exact."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from outputs_kit import Kit, limits, message, stream

from interpreter.gateway_extension.bounding import Bounds, bounded
from interpreter.messages import Message
from interpreter.outputs.streams import marker

_EXTENSION = Path(__file__).parents[2] / "gateway_config" / "ipython" / "interpreter_kernel.py"


@pytest.fixture(scope="module")
def extension() -> ModuleType:
    """The kernel's IPython extension, which belongs to no package."""
    spec = importlib.util.spec_from_file_location("interpreter_kernel", _EXTENSION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gap(text: str, lost: int, place: int, name: str = "stdout") -> Message:
    content = {"name": name, "text": text}
    return message("stream", content, interpreter_dropped_bytes=lost, interpreter_dropped_at=place)


def travelled(extension: ModuleType, text: str) -> Message:
    """The message of a print after the kernel's and the gateway's cut."""
    sent = {"content": {"name": "stdout", "text": text}, "metadata": {}}
    extension.cut_stream(sent)
    parts = [{"msg_type": "stream"}, {}, sent["metadata"], sent["content"]]
    got = bounded([json.dumps(part, ensure_ascii=False).encode() for part in parts], Bounds())
    assert got is not None
    return message("stream", json.loads(got[3]), **json.loads(got[2]))


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000_000,
        "H" + "x" * 3_000_000 + "T",
        "".join(f"{n:4} {'y' * 1000}\n" for n in range(3000)),
        "x" * 2_500_000 + "😀" * 2_500_000,  # the gateway cuts again, beside the kernel's cut
        "é" * 2_500_000 + "z" * 2_500_000,
        "😀" * 3_000_000,
    ],
    ids=["10 MB", "head and tail", "lines", "cut twice, before", "cut once, wide", "cut twice, around"],
)
def test_a_huge_print_keeps_head_and_tail_and_counts_the_rest(extension: ModuleType, text: str) -> None:
    folded = Kit().feed(travelled(extension, text)).folded
    data, limit = text.encode(), 1024**2
    head, _, tail = folded.stdout.partition(marker(folded.dropped_bytes))
    assert head.encode() == data[: limit * 3 // 4].decode(errors="ignore").encode()
    assert data.endswith(tail.encode())
    assert limit - 8 < len(head.encode()) + len(tail.encode()) <= limit
    assert folded.dropped_bytes == len(data) - len(head.encode()) - len(tail.encode())
    assert folded.truncated


def test_a_gap_within_the_head_ends_it() -> None:
    folded = Kit().feed(stream("one "), gap("two three", 1000, 4), stream(" four")).folded
    assert folded.stdout == "one two " + marker(1000) + "three four"
    assert folded.dropped_bytes == 1000
    assert folded.notices == ("stdout was cut: 18 of 1,018 bytes are shown.",)


def test_two_gaps_are_one_and_the_text_between_them_is_counted() -> None:
    folded = Kit().feed(gap("ab", 10, 1), gap("cd", 20, 1)).folded
    assert folded.stdout == "a" + marker(32) + "d"
    assert folded.dropped_bytes == 32


def test_a_carriage_return_takes_back_nothing_from_before_a_gap() -> None:
    folded = Kit().feed(gap("kept" + "gone\rnew", 5, 4)).folded
    assert folded.stdout == "kept" + marker(5) + "new"


def test_backspaces_remove_nothing_from_before_a_gap() -> None:
    assert Kit().feed(gap("kept\b\b\bnew", 5, 4)).folded.stdout == "kept" + marker(5) + "new"


def test_a_gap_of_a_stream_that_is_left_out_counts() -> None:
    kit = Kit(limits=limits(max_outputs=0)).feed(gap("ab", 10, 1))
    assert kit.folded.dropped_bytes == 12


def test_live_events_say_that_they_end_at_a_gap() -> None:
    kit = Kit().feed(gap("ab", 10, 1), stream("c"))
    texts = [data["output"]["text"] for kind, data in kit.events if kind == "output"]
    assert texts == ["a", "\n[… the rest of stdout is not shown live …]\n"]


@pytest.mark.parametrize("place", [None, -1, "1", True, 1.5])
def test_a_place_that_is_none_is_a_loss_of_the_run(place: object) -> None:
    cut = message(
        "stream", {"name": "stdout", "text": "x"}, interpreter_dropped_bytes=7, interpreter_dropped_at=place
    )
    folded = Kit().feed(cut).folded
    assert (folded.stdout, folded.dropped_bytes) == ("x", 7)
