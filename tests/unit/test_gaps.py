"""Message ids as a count of what a kernel sent."""

import pytest

from interpreter.kernels.gaps import MessageCount, origin_of
from interpreter.messages import Message, new_msg_id

OURS = new_msg_id()


def message(number: int, *, origin: str = "abc_77", parent: str = OURS, state: str | None = None) -> Message:
    kind, content = ("status", {"execution_state": state}) if state else ("stream", {"text": ""})
    return Message("iopub", kind, f"{origin}_{number}", parent, content)


def missing(*messages: Message) -> int:
    count = MessageCount()
    for one in messages:
        count.see(one)
    return count.missing


def test_what_came_in_any_order_is_not_missing() -> None:
    assert missing() == 0
    assert missing(*(message(number) for number in (4, 6, 5, 7))) == 0


def test_what_did_not_come_is_counted() -> None:
    assert missing(*(message(number) for number in (4, 7, 8, 12))) == 5


def test_the_reply_to_another_client_is_not_expected() -> None:
    assert missing(message(4, parent="x_1_2", state="busy"), message(6, parent="x_1_2", state="idle")) == 0
    assert missing(message(4, state="busy"), message(6, state="idle")) == 1


def test_a_forked_copy_does_not_count() -> None:
    assert missing(message(4), message(90, origin="abc_78"), message(5)) == 0


@pytest.mark.parametrize("msg_id", ["", "uuid", "a_b", "abc_77_x", "5", "_5", "abc_77_" + "9" * 5000])
def test_other_ids_tell_nothing(msg_id: str) -> None:
    other = Message("iopub", "stream", msg_id, OURS, {})
    assert missing(other, message(4), other) == 0
    assert origin_of(other) is None


def test_the_origin_is_the_sender() -> None:
    assert origin_of(message(4)) == "abc_77"
