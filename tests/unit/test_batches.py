"""Batches of messages: what goes in comes out, and what is no batch is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpreter.batches import batch, messages_of


@given(st.lists(st.binary()))
def test_what_goes_in_comes_out(messages: list[bytes]) -> None:
    assert [bytes(message) for message in messages_of(b"".join(batch(messages)))] == messages


@given(st.lists(st.binary(min_size=1), min_size=1), st.integers(min_value=1, max_value=8))
def test_a_cut_batch_is_refused(messages: list[bytes], missing: int) -> None:
    whole = b"".join(batch(messages))
    cut = whole[: -min(missing, len(messages[-1]) + 7)]
    with pytest.raises(ValueError, match="is cut"):
        list(messages_of(cut))
