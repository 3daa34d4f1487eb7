"""What the gateway learns of a kernel's state from the messages that pass."""

import json
from typing import Any

import pytest

from interpreter.gateway_extension.activity import activity
from interpreter.gateway_extension.bounding import Parts

UNTRACKED = {"status", "stream", "kernel_info_request"}


def is_tracked(msg_type: str) -> bool:
    return msg_type not in UNTRACKED


def message(msg_type: str, parent_type: str | None, content: Any) -> Parts:
    parent = {} if parent_type is None else {"msg_type": parent_type}
    return [json.dumps(part).encode() for part in ({"msg_type": msg_type}, parent, {}, content)]


def status(state: Any, parent_type: str | None = "execute_request") -> Parts:
    return message("status", parent_type, {"execution_state": state})


def test_a_request_of_a_user_makes_a_kernel_busy_and_idle_again() -> None:
    assert activity(status("busy"), is_tracked, "idle") == (True, "busy")
    assert activity(status("idle"), is_tracked, "busy") == (True, "idle")


def test_a_question_whether_it_lives_is_no_activity() -> None:
    assert activity(status("busy", "kernel_info_request"), is_tracked, "idle") == (False, "idle")


def test_any_answer_ends_the_start() -> None:
    assert activity(status("busy", "kernel_info_request"), is_tracked, "starting") == (False, "idle")


def test_whatever_a_busy_kernel_says_is_activity() -> None:
    assert activity(message("stream", "kernel_info_request", {}), is_tracked, "busy") == (True, "busy")
    assert activity(message("stream", "kernel_info_request", {}), is_tracked, "idle") == (False, "idle")


@pytest.mark.parametrize(
    "parts",
    [
        [b"", b"", b"", b""],
        [b"[]", b"{}", b"{}", b"{}"],
        [b"{}", b"3", b"{}", b"{}"],
        [b"[" * 50_000, b"{}", b"{}", b"{}"],
        [b"\xff", b"{}", b"{}", b"{}"],
        [b'"' + b"x" * 100_000 + b'"', b"{}", b"{}", b"{}"],
        [b'{"msg_type": "status"}', b"{}", b"{}", b"[]"],
        [b'{"msg_type": "status"}', b"{}"],
    ],
)
def test_nonsense_changes_nothing(parts: Parts) -> None:
    assert activity(parts, is_tracked, "idle") == (False, "idle")


@pytest.mark.parametrize("told", ["dead", "restarting", "x" * 10**5])
def test_what_only_the_gateway_says_changes_nothing(told: str) -> None:
    assert activity(status(told), is_tracked, "busy") == (False, "busy")
    assert activity(status(told), is_tracked, "starting") == (False, "starting")


def test_a_state_that_is_no_text_does_not_get_in() -> None:
    assert isinstance(activity(status(["busy"]), is_tracked, "idle")[1], str)
