"""JSON with too many values: what is read of it, what stands for the rest, and how much that costs."""

import json
import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outputs_kit import Kit, limits, message

from interpreter import jsontext
from interpreter.gateway_extension.bounding import Bounds, bounded
from interpreter.jsontext import (
    MAX_MEMBERS,
    MAX_VALUES,
    Unread,
    Utf8,
    count_values,
    dump,
    load,
    load_utf8,
    read_utf8,
)
from interpreter.messages import decode
from interpreter.record.entries import decode as decode_entry
from interpreter.record.entries import encode
from interpreter.record.journal import read_entry

LARGE = 'é😀\n"\\\x00\u2028' * 70_000
MANY = [{} for _ in range(MAX_VALUES // 4)]
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(alphabet='a"\\[]{},:é😀 \n'),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('k"\\{}[],', max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)
LEGACY_PARTS = ("header", "parent_header", "metadata", "content")


def frame(content: Any, *, v1: bool, msg_type: str = "display_data") -> bytes | str:
    """What a gateway sends of a message."""
    parts = [{"msg_id": "m", "msg_type": msg_type}, {"msg_id": "p"}, {}, content]
    if not v1:
        return json.dumps({"channel": "iopub", **dict(zip(LEGACY_PARTS, parts, strict=True))})
    blobs = [b"iopub", *(json.dumps(part).encode() for part in parts)]
    offsets = [8 * (len(blobs) + 2)]
    for blob in blobs:
        offsets.append(offsets[-1] + len(blob))
    numbers = [len(offsets), *offsets]
    return b"".join(number.to_bytes(8, "little") for number in numbers) + b"".join(blobs)


@given(st.dictionaries(st.text('k"\\{', min_size=1, max_size=3), JSON_VALUES, max_size=5), st.booleans())
def test_members_are_read_as_the_json_module_reads_them(value: dict[str, Any], spread: bool) -> None:
    text = json.dumps(value, indent=2 if spread else None, ensure_ascii=spread)
    assert jsontext._Members(text).read(("data",)) == value


def test_large_text_is_read_from_its_bytes_as_the_json_module_reads_it() -> None:
    value: Any = ["é", {"ключ": [1.5, None, {"": "漢"}], "a": "\x85\xa0"}, [], {}, True, LARGE]
    value = {"data": {"outputs": [{"text": LARGE, "data": {"text/html": LARGE, "é": value}}]}, "é": [value]}
    data = json.dumps(value, ensure_ascii=False).encode()
    assert load_utf8(data)[0] == load_utf8(memoryview(data))[0] == read_utf8(data) == value
    escaped = data.replace(b'"data"', b'"\\u00e9\\ud83d\\ude00"', 1)
    assert read_utf8(escaped) == json.loads(escaped)
    broken = data.replace("é".encode(), b"\xe9")
    assert load_utf8(broken, errors="replace")[0] == json.loads(broken.decode("utf-8", "replace"))
    with pytest.raises(UnicodeDecodeError):
        read_utf8(broken)


def test_what_is_read_to_be_written_again_is_written_the_same() -> None:
    nested: list[Any] = [LARGE]
    for _ in range(12):
        nested = [LARGE, nested]
    many = {str(number): LARGE[: number % 3] for number in range(20_000)} | {"x": LARGE, "y": [LARGE]}
    data = {"text/html": LARGE, "json": nested, "many": many}
    output = {"output_type": "display_data", "data": data, "text": LARGE, "metadata": {}}
    entry = {"outputs": [output], "changes": [[0, output]]}
    line, _ = encode(1, datetime.now(UTC), "run_ended", entry, previous=b"", key=b"")
    read = decode_entry(line, raw=True).data
    for raw in (read["outputs"][0], read["changes"][0][1]):
        assert type(raw["text"]) is type(raw["data"]["text/html"]) is Utf8
        assert dump(raw) == dump(output)


def test_one_emoji_does_not_make_four_bytes_of_each_character_on_the_way(tmp_path: Path) -> None:
    size = 8_000_000
    output = {"output_type": "display_data", "data": {"text/html": "a" * size + "😀"}, "metadata": {}}
    line, _ = encode(1, datetime.now(UTC), "run_ended", {"outputs": [output]}, previous=b"", key=b"")
    (path := tmp_path / "journal").write_bytes(line)
    del output, line
    with path.open("rb") as file:
        tracemalloc.start()
        [output] = read_entry(file.fileno(), 0, raw=True).data["outputs"]
        assert len(dump(output)) > size
        assert tracemalloc.get_traced_memory()[1] < 5 * size
        tracemalloc.stop()


@given(JSON_VALUES)
def test_no_value_is_overlooked_in_the_count(value: Any) -> None:
    def count(item: Any) -> int:
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        return 1 + sum(map(count, inner))

    assert count_values(json.dumps(value)) >= count(value)


@given(JSON_VALUES, st.integers(1, 7))
def test_the_count_is_the_same_wherever_the_text_is_divided(value: Any, chars: int) -> None:
    def count(item: Any) -> int:
        if not isinstance(item, dict | list):
            return 0
        inner = item.values() if isinstance(item, dict) else item
        return 4 + max(len(item) - 1, 0) + sum(map(count, inner))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontext, "_FEW", 0)
        patch.setattr(jsontext, "_PIECE_CHARS", chars)
        assert count_values(json.dumps(value)) == 1 + count(value)


def test_to_count_takes_about_as_long_as_to_read() -> None:
    def took(work: Callable[[str], Any], text: str) -> float:
        times = []
        for _ in range(5):
            start = time.thread_time()
            work(text)
            times.append(time.thread_time() - start)
        return min(times)

    for text in ("[" + '",",' * 200_000 + "1]", "[" + r'"\"",' * 150_000 + "1]"):
        assert took(count_values, text) < 4 * took(json.loads, text)


@pytest.mark.parametrize("count", [MAX_MEMBERS, MAX_MEMBERS + 1, 200_000, 500_000])
def test_a_bundle_has_so_many_members_and_no_more(count: int) -> None:
    data = {f"text/x{i}": i for i in range(count)}
    value, lost = load(json.dumps({"data": data, "metadata": {}}))
    assert len(value.get("data", {})) <= MAX_MEMBERS
    assert (lost == 0) is (count <= MAX_MEMBERS)


def test_what_is_in_strings_does_not_count() -> None:
    value = {"text/html": '<a href="x">[1], {2},</a>\n' * 100_000}
    assert load(json.dumps(value)) == (value, 0)


@pytest.mark.parametrize("v1", [True, False], ids=["v1", "legacy"])
def test_a_display_keeps_the_values_beside_the_one_that_is_too_many(v1: bool) -> None:
    data = {"text/plain": "<JSON>", "application/json": MANY, "text/html": "<b>"}
    got = decode(frame({"data": data, "metadata": {}, "transient": {"display_id": "d"}}, v1=v1), v1=v1)
    size = len(json.dumps(MANY))
    assert got.content["data"] == {**data, "application/json": Unread(size)}
    assert got.content["transient"] == {"display_id": "d"}
    folded = Kit().feed(got).folded
    assert folded.outputs[0]["data"] == {"text/plain": "<JSON>", "text/html": "<b>"}
    assert folded.notices == (f"1 display value was left out: over {MAX_VALUES:,} values of JSON.",)
    assert folded.dropped_bytes == size


def test_a_display_of_nothing_else_says_what_is_missing() -> None:
    folded = Kit().feed(decode(frame({"data": {"application/json": MANY}}, v1=True), v1=True)).folded
    size = len(json.dumps(MANY))
    (output,) = folded.outputs
    notice = f"[application/json of {size:,} bytes is not shown: it holds too many values]"
    assert output["data"] == {"text/plain": notice}


@pytest.mark.parametrize(
    "content",
    [{"ename": "E", "evalue": "v", "traceback": MANY}, {"a": MANY, "ename": "E", "evalue": "v"}],
    ids=["traceback", "elsewhere"],
)
def test_what_is_missing_elsewhere_is_counted(content: dict[str, Any]) -> None:
    got = decode(frame(content, v1=True, msg_type="error"), v1=True)
    folded = Kit().feed(got).folded
    assert folded.error is not None
    assert (folded.error.ename, folded.error.evalue) == ("E", "v")
    assert folded.dropped_bytes == len(json.dumps(MANY))


def test_what_is_nested_too_deeply_to_be_measured_is_lost_and_counted() -> None:
    deep: Any = MANY
    for _ in range(60):
        deep = [deep]
    content = {"data": {"application/json": deep}}
    folded = Kit().feed(decode(frame(content, v1=True), v1=True)).folded
    assert folded.dropped_bytes == len(json.dumps(content))


def test_a_figure_of_a_hundred_thousand_points_is_shown() -> None:
    figure = {"data": [{"x": list(range(100_000)), "y": [i / 3 for i in range(100_000)]}], "layout": {}}
    data = {"application/vnd.plotly.v1+json": figure}
    folded = (
        Kit(limits=limits(max_display_bytes=10 * 1024**2))
        .feed(decode(frame({"data": data}, v1=True), v1=True))
        .folded
    )
    assert folded.outputs[0]["data"] == data
    assert folded.notices == ()


def test_all_displays_of_a_run_share_one_measure_of_values() -> None:
    value = [{} for _ in range(MAX_VALUES // 10)]
    kit = Kit(limits=limits(max_display_bytes=1024**2))
    for number in range(5):
        kit.feed(message("display_data", {"data": {"application/json": [number, *value]}}))
    shown = [output["data"] for output in kit.folded.outputs]
    assert "values is not shown" in shown[-1]["text/plain"]
    assert sum("application/json" in data for data in shown) == 1
    updates = [event for event in kit.events if event[0] == "output"]
    assert len(updates) == 5


@pytest.mark.parametrize("at_gateway", [True, False], ids=["gateway", "service"])
def test_too_many_values_cost_no_more_than_their_text(at_gateway: bool) -> None:
    content = {"data": {"application/json": [{} for _ in range(1_000_000)]}, "metadata": {}}
    parts = [b'{"msg_type":"display_data"}', b"{}", b"{}", json.dumps(content).encode()]
    whole = frame(content, v1=True)
    bounds = Bounds(max_stream_bytes=1000, max_message_bytes=1024**2)
    tracemalloc.start()
    kept = bounded(parts, bounds) if at_gateway else decode(whole, v1=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kept is not None
    assert peak < 4 * len(parts[3])


def test_the_gateway_says_what_it_left_out() -> None:
    parts = [b'{"msg_type":"display_data"}', b"{}", b"{}"]
    content = {"data": {"text/plain": "plain", "application/json": MANY}, "metadata": {}}
    got = bounded(
        [*parts, json.dumps(content).encode()], Bounds(max_stream_bytes=1000, max_message_bytes=100_000)
    )
    assert got is not None
    size = len(b"".join(parts)) + len(json.dumps(content))
    assert json.loads(got[3])["data"] == {
        "text/plain": f"plain\n[an output of {size} bytes was left out: too large]"
    }
    assert json.loads(got[2])["interpreter_dropped_bytes"] == size


@given(JSON_VALUES, st.booleans())
def test_what_is_written_equals_what_the_json_module_writes(value: Any, ordered: bool) -> None:
    expected = json.dumps(value, ensure_ascii=False, sort_keys=ordered).encode()
    assert jsontext.dump(value, sort_keys=ordered) == expected


@pytest.mark.parametrize("text", ['x"\\\n' * 300_000, "é" * 300_000 + "😀", "\u2028\x00\x7f" * 200_000])
def test_large_texts_are_written_like_any_other(text: str) -> None:
    value = {"b": [{"data": {"text/html": text, "a": text}}], "a": text, "c": [[[[[[[text]]]]]]]}
    for ordered in (True, False):
        expected = json.dumps(value, ensure_ascii=False, sort_keys=ordered).encode()
        assert jsontext.dump(value, sort_keys=ordered) == expected


def test_half_a_character_in_a_large_text_cannot_be_written() -> None:
    with pytest.raises(UnicodeEncodeError):
        jsontext.dump(["x" * 300_000 + "\ud800"])


def test_a_rare_character_makes_a_text_no_larger_when_it_is_written() -> None:
    value = {"data": {"text/html": "x" * 4_000_000 + "😀"}}
    tracemalloc.start()
    size = len(jsontext.dump(value))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * size


def test_a_text_that_is_cut_within_a_string_is_counted_in_the_time_of_reading() -> None:
    """Quotes in a script are escaped; taken for ends, each would be searched to the end of the text."""
    script = json.dumps('a="b","c",[' * 500_000)
    assert count_values(script) < 10
    assert count_values(script[:-1]) < 10
    assert count_values(script[:-2]) < 10
    assert not jsontext.has_too_many(script)
