"""How a kernel's end is told: what our own gateway says of it, and never more than that."""

import json

import pytest

from interpreter.kernels.deaths import KernelDeath, death_told, find_death, find_start_failure, start_failure


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (
            {"reason": "out of memory (limit 1 GiB)", "exit_code": 1},
            "The kernel died: out of memory (limit 1 GiB).",
        ),
        ({"reason": None, "signal": "SIGSEGV"}, "The kernel died: it was ended by SIGSEGV."),
        ({"exit_code": 3}, "The kernel died: its process ended with exit code 3."),
        ({"reason": "x" * 1000, "exit_code": "3", "signal": 9}, "The kernel died."),
        (["reason"], "The kernel died."),
    ],
    ids=["reason", "signal", "exit-code", "nonsense", "no-object"],
)
def test_a_death_is_one_sentence(cause: object, sentence: str) -> None:
    assert death_told(cause).sentence == sentence


@pytest.mark.parametrize(
    "body",
    [None, b"", b"[1]", b"not json", b"[" * 100_000, b'{"interpreter": "x"}', b'{"message": "Traceback"}'],
    ids=["none", "empty", "list", "text", "deep", "string", "other-gateway"],
)
def test_a_refusal_without_a_death_tells_none(body: bytes | None) -> None:
    assert find_death(body) is None
    assert find_start_failure(body) is None


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (
            {"reason": "Kernel did not start", "message": "all uids are in use"},
            "The gateway could not start the kernel: all uids are in use.",
        ),
        ({"reason": "Internal Server Error", "message": "of another gateway"}, None),
        ({"reason": "Kernel did not start", "message": "x" * 1000}, None),
        ({"reason": "Kernel did not start", "message": ["x"]}, None),
        ({"reason": "Kernel did not start"}, None),
    ],
    ids=["told", "other", "long", "nonsense", "missing"],
)
def test_why_a_kernel_did_not_start_is_told_by_our_own_gateway_only(
    refusal: dict[str, object], sentence: str | None
) -> None:
    assert find_start_failure(json.dumps(refusal).encode()) == sentence


def test_a_refusal_with_a_death_tells_it() -> None:
    body = json.dumps({"reason": "x", "interpreter": {"exit_code": 7, "signal": None, "reason": None}})
    assert find_death(body.encode()) == KernelDeath("The kernel died: its process ended with exit code 7.", 7)


def test_a_kernel_that_had_too_little_memory_to_start_names_the_setting() -> None:
    told = start_failure(death_told({"reason": "out of memory (limit 700 MiB)"}))
    assert "700 MiB" in told
    assert "kernel_memory_bytes" in told
    assert "kernel_memory_bytes" not in start_failure(death_told({"exit_code": 1}))
