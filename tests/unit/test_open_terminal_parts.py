"""Open Terminal's pure parts: patterns of a search."""

import pytest

from interpreter.frontends.open_terminal.search import read_patterns


@pytest.mark.parametrize(
    ("values", "patterns"),
    [
        ([], []),
        (["*.py", "*.txt"], ["*.py", "*.txt"]),
        (["['*.py', \"it's\"]"], ["*.py", "it's"]),
        (['["*.py"]'], ["*.py"]),
        (["[]"], []),
        (["[ab].py"], ["[ab].py"]),
        (["[0-9]"], ["[0-9]"]),
        (["[" * 3000], ["[" * 3000]),
    ],
    ids=["none", "repeated", "as-python-writes-it", "as-json", "empty", "a-class", "digits", "no-list"],
)
def test_patterns_come_repeated_or_as_one_list(values: list[str], patterns: list[str]) -> None:
    assert read_patterns(values) == patterns
