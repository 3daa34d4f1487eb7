"""The fast library and the standard one agree wherever the fast one is asked."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interpreter import smalljson
from interpreter.jsontext import dump_compact, load_utf8

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def as_standard(text: bytes) -> Any:
    """The value, or None for what the standard library does not take."""
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):
        return None


def as_here(text: bytes) -> Any:
    try:
        return load_utf8(text)[0]
    except (ValueError, RecursionError):
        return None


@given(VALUES, st.booleans())
@example(10**30, False)
@example(-0.0, False)
@example(5e-324, False)
@example({"": [2**63, -(2**63) - 1]}, True)
def test_what_the_standard_library_wrote_is_read_as_it_was(value: Any, escaped: bool) -> None:
    read = as_here(json.dumps(value, ensure_ascii=escaped).encode())
    assert repr(read) == repr(value)  # which tells 1 from 1.0 and 0.0 from -0.0


@given(VALUES)
def test_what_is_written_is_read_by_the_standard_library_as_it_was(value: Any) -> None:
    assert repr(json.loads(dump_compact(value))) == repr(value)


@given(st.text("0123456789.eE+-", max_size=40))
@example("1e400")
@example("-1e400")
@example("01")
@example("1" * 400)
def test_a_number_is_the_same_to_both(text: str) -> None:
    assert repr(as_here(text.encode())) == repr(as_standard(text.encode()))


@given(st.text('{}[]",:\\ \n\tu0d8nul1-', max_size=30))
@example("NaN")
@example("[Infinity, -Infinity]")
@example('"\\ud800"')
@example('"\\ud83d\\ude00"')
@example('{"a":1,"a":2}')
@example("[1,]")
@example("\ufeff{}")
@example('"\t"')
@example("[" * 3000)
def test_a_text_is_the_same_to_both(text: str) -> None:
    assert repr(as_here(text.encode())) == repr(as_standard(text.encode()))


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": -math.inf}])
def test_a_number_that_is_not_finite_is_null(value: Any) -> None:
    assert b"null" in smalljson.write(value)


@pytest.mark.parametrize("value", [object(), "\ud800", {"a": ["\udfff"]}, {("a",): 1}])
def test_what_json_does_not_know_is_refused(value: Any) -> None:
    with pytest.raises(smalljson.RefusedError):
        smalljson.write(value)
