"""How long a message within the limits holds up the event loop, and how long the end of its run: of any kind."""

import functools
import gc
import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outputs_kit import Kit, clear, display, error, fold, limits, message, reply, result, stream, update

from interpreter import jsontext, messages
from interpreter.events import EventLog
from interpreter.messages import DROPPED_AT, DROPPED_BYTES, Message, divided
from interpreter.models import JSON
from interpreter.outputs import Bundle, Displays, OutputFolder, clean_text, prepared, strip_ansi

LONGEST = 8
"""So many times the yardstick's time one session may hold up the others: some 70 to 150 ms of the processor."""

LIMITS = limits(max_display_bytes=10 * 1024**2)  # the settings' defaults
STREAM = 4 * 1024**2  # what a gateway of ours lets through of a stream in one message
MESSAGE = 16 * 1024**2  # … of anything else
NAMES = {f"name {n}": n for n in range(95_000)}


def text_of(unit: str, size: int = STREAM) -> Message:
    return stream(unit * (size // len(unit)))


def page(data: JSON) -> JSON:
    return {"source": "page", "data": data}


COSTLY: dict[str, Callable[[], list[Message]]] = {
    "backspaces": lambda: [text_of("a\b")],
    "backspaces in lines": lambda: [text_of("a\b\n")],
    "backspaces at the start of lines": lambda: [text_of("\b\n")],
    "backspaces two by two": lambda: [text_of("éé\b\b")],
    "backspaces over an earlier message": lambda: [text_of("é", 200_000), text_of("\b", 200_000)],
    "backspaces after a gap": lambda: [
        message("stream", {"text": "a\b" * 1_000_000}, **{DROPPED_BYTES: 5, DROPPED_AT: 1_000_000})
    ],
    "backspaces in pieces": lambda: [stream(["a\b"] * 190_000)],
    "carriage returns": lambda: [text_of("a\r")],
    "carriage returns at the end of lines": lambda: [text_of("\r\n")],
    "carriage returns in lines": lambda: [text_of("a\rb\b\n")],
    "lines": lambda: [text_of("\n")],
    "half characters": lambda: [text_of("\ud800a", STREAM // 3)],
    "half characters in a display": lambda: [display({"text/html": "\ud800a" * 2_000_000})],
    "half characters in a text that is cut": lambda: [error(evalue="\ud800" * 2_600_000)],
    "ANSI": lambda: [text_of("\x1b[m"), result({"text/plain": "\x1b[m" * 2_700_000})],
    "ANSI that is broken": lambda: [result({"text/plain": "\x1b" * 8_000_000})],
    "ANSI between characters": lambda: [result({"text/plain": "\x1b[31mx" * 1_300_000})],
    "ANSI in an error": lambda: [error(evalue="\x1b[m" * 1_300_000, traceback=["\x1b[m" * 340_000])],
    "a text that is cut": lambda: [result({"text/plain": "a" * MESSAGE})],
    "two bytes": lambda: [result({"text/plain": "é" * (MESSAGE // 2)})],
    "two bytes in one place": lambda: [result({"text/plain": "a" * MESSAGE + "é"})],
    "two bytes that are left out": lambda: [display({"text/html": "a" * MESSAGE + "é", "text/plain": "é"})],
    "three bytes": lambda: [display({"text/plain": "漢" * (MESSAGE // 3)})],
    "names": lambda: [display({"application/json": NAMES})],
    "numbers": lambda: [display({"application/json": [n / 7 for n in range(200_000)]})],
    "long numbers": lambda: [display({"application/json": [10**2900] * 3000})],
    "lists": lambda: [display({"application/json": [[n] for n in range(60_000)]})],
    "deep": lambda: [display({"application/json": nested(list(range(200_000)), 90)})],
    "too deep": lambda: [display({"application/json": nested(list(range(200_000)), 150)})],
    "no numbers": lambda: [display({"application/json": [float("nan")] * 300_000})],
    "half characters in JSON": lambda: [display({"application/json": ["\ud800"] * 300_000})],
    "JSON in place of text": lambda: [display({"text/html": NAMES, "text/plain": [1.5] * 200_000})],
    "metadata": lambda: [display({"text/plain": "x"}, metadata=NAMES)],
    "pages": lambda: [reply(payload=[page({"application/json": NAMES})] * 3)],
    "long types": lambda: [display({f"application/{'+' * 15_000}{n}": "x" for n in range(1000)})],
    "an error without text": lambda: [error(ename=NAMES, evalue=[0.1] * 200_000)],  # type: ignore[arg-type]
    "frames": lambda: [error(traceback=["Cell In[1], line 1\n"] * 40_000)],
    "frames in one text": lambda: [error(traceback=["Cell In[1], line 1\n" * 55_000])],
    "nothing in a traceback": lambda: [error(traceback=[""] * 390_000)],
    "short lines in a traceback": lambda: [error(traceback=["é"] * 300_000)],
    "errors": lambda: [error(evalue="a" * 20_000, traceback=["x"] * 100)] * 600,
    "files named in stderr": lambda: [
        stream('ipykernel_1/1.py", line 1, in <module>\n' * 25_000, "stderr"),
        reply("error", ename="E", evalue="x"),
    ],
    "one display everywhere": lambda: [
        *[display({"text/plain": "a"}, "d")] * 500,
        *[update({"application/json": [[]] * 700}, "d")] * 3,
    ],
    "clearing": lambda: [each for _ in range(2000) for each in (stream("a"), clear())],
}


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def taken(sent: list[Message]) -> Iterator[Message]:
    """The messages as they are folded: a large one is prepared in a thread, and comes in parts."""
    for each in sent:
        yield from divided(prepared(each))


def longest_step(parts: list[Message]) -> float:
    """Seconds that the longest step takes of the folding of messages, and of the end of their run."""
    log = EventLog()
    folder = OutputFolder(
        "run_a_1", LIMITS, Displays(), code="1", on_event=log.append, on_amend=lambda *_: None
    )
    steps = [*(partial(folder.feed, each) for each in parts), lambda: (folder.close(), folder.folded())]
    longest = 0.0
    for step in steps:
        start = time.thread_time()
        step()
        longest = max(longest, time.thread_time() - start)
    return longest


@functools.cache
def longest_seconds() -> float:
    """`LONGEST` on this machine, which may be a slow one."""
    times = []
    for _ in range(5):
        start = time.thread_time()
        re.sub("a", "b", "a" * 100_000)
        sum(number % 7 for number in range(200_000))
        times.append(time.thread_time() - start)
    return LONGEST * min(times)


@pytest.fixture(autouse=True)
def no_search_for_cycles() -> Iterator[None]:
    """Its time depends on all else that the tests have made."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", COSTLY)
def test_no_message_and_no_end_of_a_run_holds_up_the_others(kind: str) -> None:
    parts = list(taken(COSTLY[kind]()))
    assert (
        min(longest_step(parts) for _ in range(3)) < longest_seconds()
    )  # the machine may have other things to do


@pytest.mark.parametrize(
    "kind", ["names", "numbers", "long numbers", "lists", "deep", "JSON in place of text"]
)
def test_json_is_measured_and_written_in_pieces_that_hold_up_nobody(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest, dumps = 0.0, json.dumps

    def timed(value: Any, **options: Any) -> str:
        nonlocal longest
        start = time.thread_time()
        text = dumps(value, **options)
        longest = max(longest, time.thread_time() - start)
        return text

    sent = COSTLY[kind]()
    monkeypatch.setattr(json, "dumps", timed)
    folded = Kit(limits=LIMITS).feed(*taken(sent)).folded
    jsontext.dump(list(folded.outputs), separators=(",", ":"))
    assert 0 < longest < 2 * longest_seconds()  # 500 integers of thousands of digits take most of the time


def test_what_a_later_run_shows_in_many_displays_is_measured_once() -> None:
    displays = Displays()
    earlier = {f"run_a_{n}": Kit(f"run_a_{n}", displays=displays, limits=LIMITS) for n in range(250)}
    for kit in earlier.values():
        kit.feed(display({"text/plain": "old"}, "d"))
        kit.folder.close()

    def amend(run_id: str, index: int, bundle: Bundle) -> None:
        earlier[run_id].folder.amend(index, bundle)

    folder = OutputFolder("run_a_251", LIMITS, displays, code="1", on_event=lambda *_: None, on_amend=amend)
    new = prepared(update({"application/json": NAMES, "text/html": "é" * 1_000_000}, "d"))
    start = time.thread_time()
    folder.feed(new)
    assert time.thread_time() - start < longest_seconds()
    assert all(kit.outputs[0]["data"]["application/json"] == NAMES for kit in earlier.values())


TEXT = st.text(st.sampled_from("ab\n\r\bé😀\ud800"), max_size=30)
GAPS = st.fixed_dictionaries(
    {}, optional={DROPPED_BYTES: st.integers(-1, 9), DROPPED_AT: st.integers(-1, 40) | st.none()}
)


@given(st.lists(st.tuples(TEXT, GAPS, st.booleans()), max_size=4), st.integers(1, 7), st.integers(4, 60))
def test_a_text_that_is_taken_in_parts_comes_to_the_same(
    sent: list[tuple[str, JSON, bool]], chars: int, size: int
) -> None:
    whole = [
        message("stream", {"name": "stdout", "text": list(text) if lines else text}, **gap)
        for text, gap, lines in sent
    ]
    small = limits(max_output_bytes=size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "PART_CHARS", chars)
        parts = [part for each in whole for part in divided(each)]
    assert all(len(part.content["text"]) <= chars for part in parts if isinstance(part.content["text"], str))
    assert fold(*parts, limits=small) == fold(*whole, limits=small)


def test_the_parts_of_a_message_count_as_one() -> None:
    one = Message("iopub", "stream", "s_1_7", "p", {"name": "stdout", "text": "x" * 500_000}, size=500_100)
    parts = list(divided(one))
    assert "".join(part.content["text"] for part in parts) == one.content["text"]
    assert [part.msg_id for part in parts if part.msg_id] == ["s_1_7"]
    assert sum(part.size for part in parts) == one.size
    assert len([*divided(result({"text/plain": "x" * 500_000}))]) == 1


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=30,
)


@given(st.dictionaries(st.sampled_from(["application/json", "text/plain", "x/y"]), JSON_VALUES), JSON_VALUES)
def test_a_display_that_was_prepared_comes_to_the_same(data: JSON, metadata: Any) -> None:
    sent = [display(data, metadata=metadata), result(data), reply(payload=[{"source": "page", "data": data}])]
    small = limits(max_mime_bytes=40)
    assert fold(*map(prepared, sent), limits=small) == fold(*sent, limits=small)


@given(JSON_VALUES, st.integers(1, 4), st.booleans(), st.booleans())
def test_what_is_written_in_pieces_equals_what_the_json_module_writes(
    value: Any, few: int, ordered: bool, compact: bool
) -> None:
    options: JSON = {"sort_keys": ordered, "separators": (",", ":") if compact else None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontext, "_AT_ONCE", few)
        written = jsontext.dump(value, **options)
    assert written == json.dumps(value, ensure_ascii=False, **options).encode()


def test_deep_json_is_written_in_pieces_like_any_other() -> None:
    value: Any = 1
    for _ in range(100):
        value = [*range(600), {"a": value, "b": 2}]
    assert jsontext.dump(value) == json.dumps(value).encode()
    assert jsontext.dump(["é" * 300_000], ensure_ascii=True) == json.dumps(["é" * 300_000]).encode()


def test_of_very_many_odd_characters_none_is_left() -> None:
    assert strip_ansi("a\x1b[31mb" * 200_000).count("\x1b") == 0
    assert strip_ansi("a\x1b[31mb" * 90_000) == "ab" * 90_000
    cleaned = clean_text("é\ud800" * 200_000)
    assert len(cleaned) == 400_000
    assert cleaned.encode()
    assert clean_text("é\ud800" * 50_000) == "é\ufffd" * 50_000


def test_an_endless_traceback_still_tells_the_line_of_the_innermost_frame() -> None:
    frames = ["Cell In[1], line 1\n", "File /lib/x.py:3\n" * 40_000, "Cell In[1], line 2\n"]
    kit = Kit(code="f()\ng()").feed(message("execute_input", {"execution_count": 1}), error(traceback=frames))
    assert kit.folded.error is not None
    assert kit.folded.error.line == 2
