"""A run's events as a kernel's messages."""

from typing import Any

import pytest

from interpreter.events import RunEvent
from interpreter.frontends.jupyter.translate import Translator

ERROR = {"output_type": "error", "ename": "E", "evalue": "x", "traceback": ["E: x"]}
PRINTED = {"output_type": "stream", "name": "stdout", "text": "on"}
ENDED: dict[str, Any] = {
    "status": "ok",
    "error": None,
    "notices": [],
    "recorded": True,
    "outputs": [],
    "execution_count": 1,
    "started_at": "2026-01-01T00:00:00Z",
}


def kinds(events: list[tuple[str, Any]], *, errors_last: bool) -> list[str]:
    translator = Translator({}, "run_1", execution_count=1, errors_last=errors_last)
    told = [translator.translate(RunEvent(n, kind, data)) for n, (kind, data) in enumerate(events)]
    return [message.msg_type for messages in told for message in messages]


SHOWN = [
    ("output", {"index": 0, "output": ERROR}),
    ("output", {"index": 1, "output": PRINTED}),
    ("run.completed", ENDED),
]


@pytest.mark.parametrize(
    ("errors_last", "expected"),
    [(True, ["stream", "error", "execute_reply"]), (False, ["error", "stream", "execute_reply"])],
    ids=["last", "in-order"],
)
def test_an_error_that_code_goes_on_after_comes_last_for_who_stops_at_it(
    errors_last: bool, expected: list[str]
) -> None:
    assert kinds(SHOWN, errors_last=errors_last) == expected


def test_a_cleared_error_is_not_shown_at_the_end() -> None:
    events = [SHOWN[0], ("output.clear", {}), *SHOWN[1:]]
    assert kinds(events, errors_last=True) == ["clear_output", "stream", "execute_reply"]
