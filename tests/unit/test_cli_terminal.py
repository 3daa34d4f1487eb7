"""What hostile code prints can't steer the terminal of who runs it."""

import pytest

from interpreter.cli.output import coloured


@pytest.mark.parametrize(
    "text",
    ["plain\n", "\x1b[31mred\x1b[0m", "\x1b[38;5;196mmany\x1b[m", "10%\r20%\r", "a\bb\t", "é漢🎉 שלום"],
    ids=["text", "colour", "256 colours", "progress", "backspace", "letters"],
)
def test_colours_and_progress_bars_stay(text: str) -> None:
    assert coloured(text) == text


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b]52;c;aGk=\x07",
        "\x1b]0;title\x07",
        "\x1b[2J",
        "\x1b[?1049h",
        "\x1b[8m\x1b[1;1H",
        "\x1bP+q544e\x1b\\",
        "\x1bc",
        "\x9b2J",
        "\x7f",
        "\x0e",
        "\u202egnp.exe",
        "\u2066",
    ],
    ids=lambda sequence: sequence.encode("unicode_escape").decode(),
)
def test_nothing_else_reaches_the_terminal(sequence: str) -> None:
    shown = coloured(f"before{sequence}after")
    assert shown.startswith("before")
    assert shown.endswith("after")
    rest = shown.replace("\x1b[8m", "")
    assert rest.isprintable(), rest
