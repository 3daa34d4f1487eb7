"""What the kernel's extension tells of failed shell commands, as sentences."""

from typing import Any

import pytest

from interpreter.runs.exit_codes import failed_commands


def told(*pairs: Any) -> tuple[str, ...]:
    return failed_commands({"status": "ok", "interpreter": {"exit_codes": list(pairs)}})


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ("exit 3", 3, "The shell command `exit 3` ended with exit code 3."),
        ("kill -9 $$", -9, "The shell command `kill -9 $$` was ended by SIGKILL."),
        ("exit 200", -72, "The shell command `exit 200` ended with exit code 200."),
        ("a\n  b", 1, "The shell command `a b` ended with exit code 1."),
        ("\x1b[1m\ud800", 1, "The shell command `\ufffd[1m\ufffd` ended with exit code 1."),
        ("x" * 200, 1, f"The shell command `{'x' * 79}…` ended with exit code 1."),
    ],
    ids=["code", "signal", "code above 128", "lines", "no text", "long"],
)
def test_a_failed_command_is_one_sentence(command: str, code: int, sentence: str) -> None:
    assert told([command, code]) == (sentence,)


def test_of_many_the_last_ones_are_told() -> None:
    first, *rest = told(*([f"c{number}", 1] for number in range(9)))
    assert first == "6 more shell commands before these failed."
    assert [sentence.split("`")[1] for sentence in rest] == ["c6", "c7", "c8"]


@pytest.mark.parametrize(
    "reply",
    [None, {}, {"interpreter": 1}, {"interpreter": {"exit_codes": "no list"}}],
    ids=["no reply", "nothing", "no object", "no list"],
)
def test_kernels_that_tell_nothing_are_fine(reply: dict[str, Any] | None) -> None:
    assert failed_commands(reply) == ()


def test_what_is_no_command_and_code_is_passed_over() -> None:
    assert told(1, ["a"], ["a", "1"], ["a", True], [None, 1], ["a", 10**9], {}, ["b", 1]) == told(["b", 1])
