"""A journal's line is strict JSON that any changed byte gives away."""

import json
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpreter.record.entries import BadEntryError, decode, encode, genesis, proves

KEY = b"k" * 32
AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
PREVIOUS = genesis(KEY, "journal")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=10,
)


def line_of(data: dict, seq: int = 1) -> bytes:
    return encode(seq, AT, "run_accepted", data, previous=PREVIOUS, key=KEY)[0]


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_an_entry_reads_back_as_it_was_written(data):
    line = line_of(data)
    entry = decode(line)
    assert (entry.seq, entry.at, entry.kind, entry.data) == (1, AT, "run_accepted", data)
    assert proves(line, entry, previous=PREVIOUS, key=KEY)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\x00\ufeff\r\n\u2028", "😀 \u202e"])
def test_any_text_stays_exact(text):
    assert decode(line_of({"code": text})).data == {"code": text}


def test_what_json_does_not_know_becomes_strict_json():
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    data = decode(line_of({"a": math.nan, "b": [math.inf], "c": deep, "d": {1: b"x"}})).data
    assert data["a"] is None
    assert data["b"] == [None]
    assert data["d"] == {"1": "b'x'"}
    json.dumps(data, allow_nan=False)


def test_each_flipped_bit_of_a_line_is_found():
    line = line_of({"run": 1, "code": "print('é')"})
    for position in range(len(line)):
        for bit in range(8):
            changed = bytearray(line)
            changed[position] ^= 1 << bit
            try:
                entry = decode(bytes(changed))
            except BadEntryError:
                continue
            assert not proves(bytes(changed), entry, previous=PREVIOUS, key=KEY), (position, bit)


def test_a_line_proves_itself_only_in_its_place_its_journal_and_under_its_key():
    line = line_of({"run": 1})
    entry = decode(line)
    assert not proves(line, entry, previous=entry.mac, key=KEY)
    assert not proves(line, entry, previous=genesis(KEY, "other"), key=KEY)
    assert not proves(line, entry, previous=PREVIOUS, key=b"x" * 32)


@pytest.mark.parametrize("line", [b"", b"\n", b"{}\n", b"\0" * 100, line_of({})[:-1], b"x" + line_of({})])
def test_what_is_not_an_entry_is_refused(line):
    with pytest.raises(BadEntryError):
        decode(line)
