"""Why a kernel did not start, as the gateway tells it."""

import pytest

from interpreter.gateway_extension.causes import MAX_CAUSE, cause


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            FileNotFoundError(2, "No such file or directory", "/not/there"),
            "FileNotFoundError: No such file or directory",
        ),
        (PermissionError("may not open ~/secret/file.txt now"), "PermissionError: may not open … now"),
        (RuntimeError("no '/srv/My Data/state' nor \"~/a b/c\" here"), "no '…' nor \"…\" here"),
        (KeyError("shell_port"), "KeyError: 'shell_port'"),
        (
            RuntimeError("bwrap: Can't mkdir /newroot/x: No space left.\nmore"),
            "bwrap: Can't mkdir …: No space left",
        ),
        (ValueError("token abcdefgh12345678ijklmnop is wrong"), "token … is wrong"),
        (
            RuntimeError("all uids from 200000 to 265535 are in use"),
            "all uids from 200000 to 265535 are in use",
        ),
        (RuntimeError("\n\n  Traceback (most recent call last):"), "RuntimeError"),
        (AssertionError(), "AssertionError"),
        (TimeoutError(), "TimeoutError"),
        (RuntimeError("x y " * 1000), ("x y " * 1000)[:MAX_CAUSE].strip()),
    ],
    ids=[
        "os",
        "path",
        "quoted",
        "key",
        "first-line",
        "token",
        "numbers",
        "traceback",
        "empty",
        "timeout",
        "long",
    ],
)
def test_a_cause_is_one_sentence_of_what_concerns_nobody_else(error: Exception, told: str) -> None:
    assert cause(error) == told
