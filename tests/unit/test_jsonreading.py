"""JSON that is read piece by piece is what the JSON module reads, and holds up other threads less."""

import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpreter import jsonreading
from interpreter.jsonreading import read_in_pieces
from interpreter.jsontext import load_utf8, read_utf8

STRINGS = st.text(st.sampled_from('a"\\/\n\x1bé😀\ud83d\ude00,:[]{}'), max_size=80)
SMALL = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=40),
    max_leaves=12,
)
TIMES = st.sampled_from([1, 40, 150])
VALUES = SMALL | st.builds(  # of so many members that they are read in pieces
    lambda member, times, name, others: [{name: [member] * times, **others}, *[member] * times],
    SMALL,
    TIMES,
    STRINGS,
    st.dictionaries(STRINGS, SMALL, max_size=5),
)
NAMES = {f"name {n}": n for n in range(150_000)}
LARGE = {
    "names": NAMES,
    "numbers": [n / 7 for n in range(300_000)],
    "long numbers": [10**2900] * 3000,
    "lists": [[n, [n]] for n in range(25_000)],
    "objects": {"rows": [{"a": n, "b": {"c": "x"}} for n in range(20_000)]},
    "texts": ["x\n" * 40] * 50_000,
    "one text": {"text/html": '"\x1b,' * 1_000_000, "application/json": [1] * 1000},
    "deep": [[[[[[[[[[NAMES]]]]]]]]]],
}


@pytest.fixture(autouse=True)
def no_search_for_cycles() -> Iterator[None]:
    """Its time depends on all else that the tests have made."""
    gc.disable()
    yield
    gc.enable()


@given(VALUES, st.booleans(), st.booleans())
def test_it_is_what_the_json_module_reads(value: Any, ascii_only: bool, spread: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1 if spread else None)
    assert repr(read_in_pieces(text)) == repr(json.loads(text))  # so that NaN equals itself


@given(
    VALUES,
    st.integers(0, 300),
    st.sampled_from(["", ",", "]", "}", '"', "\\", ":", " ", "1", "\x0b", "\xa0"]),
)
def test_what_is_no_json_is_refused_alike(value: Any, at: int, text: str) -> None:
    whole = json.dumps(value)
    at = min(at, len(whole))
    damaged = whole[:at] + text + whole[at + 1 :]
    assert outcome(read_in_pieces, damaged) == outcome(json.loads, damaged)


def outcome(read: Callable[[str], Any], text: str) -> str:
    try:
        return repr(read(text))
    except ValueError as error:
        return f"no JSON: {error}"


def test_of_a_name_that_comes_twice_the_last_value_counts() -> None:
    members = ", ".join(f'"{n % 170}": {n}' for n in range(400))
    large = json.dumps(["x\n" * 100])
    text = f'{{"0": {large}, {members}, "1": {large}, "0": 7}}'
    assert read_in_pieces(text) == json.loads(text)
    assert list(read_in_pieces(text)) == list(json.loads(text))


@pytest.mark.parametrize("kind", LARGE)
def test_no_step_takes_long(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    longest, loads = 0.0, json.loads

    def timed(text: str) -> Any:
        nonlocal longest
        start = time.thread_time()
        value = loads(text)
        longest = max(longest, time.thread_time() - start)
        return value

    data = json.dumps({"data": {"application/json": LARGE[kind]}}).encode()
    for read in (lambda: load_utf8(data)[0], lambda: read_utf8(data)):
        monkeypatch.setattr(json, "loads", timed)
        value = read()
        monkeypatch.setattr(json, "loads", loads)
        assert value["data"]["application/json"] == LARGE[kind]
    assert 0 < longest < 0.05


def test_what_is_nested_very_deeply_is_read_too() -> None:
    text = "[" * 300 + json.dumps(["x\n" * 100] * 200) + "]" * 300
    assert read_in_pieces(text) == json.loads(text)
    with pytest.raises(RecursionError):
        read_in_pieces("[" * 100_000)


def test_two_halves_of_a_character_stay_together_wherever_a_text_is_divided() -> None:
    for before in range(3):
        text = json.dumps("\n" * (jsonreading._PIECE - before) + "😀" * 3)
        assert read_in_pieces(text) == json.loads(text)
