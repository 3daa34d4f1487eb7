"""What can be read of rich outputs where only text is shown."""

from typing import Any

import pytest

from interpreter.toolcalls import best_text
from interpreter.toolcalls.markup import text_of_markup

TABLE = """<style>td {color: red}</style><table><caption>Sales</caption>
<tr><th rowspan="2">year</th><th>sum &amp; more</th></tr><tr><td>42</td></tr>
<tr><td colspan=2>1 &lt; 2</td></tr></table><p>Hello <b>w</b>orld</p>"""


def test_a_table_keeps_its_rows_and_columns() -> None:
    lines = ["Sales", "year   sum & more", "       42", "1 < 2", "Hello world"]
    assert text_of_markup(TABLE).splitlines() == lines


@pytest.mark.parametrize(
    ("bundle", "text"),
    [
        ({"text/plain": "<IPython.core.display.HTML object>", "text/html": "<b>x</b>"}, "x"),
        ({"text/plain": "<a.io.Styler at 0x7f1>", "text/html": "<td>42</td>"}, "42"),
        ({"text/plain": "<IPython.core.display.Markdown object>", "text/markdown": "# T"}, "# T"),
        ({"text/plain": "<IPython.core.display.Latex object>", "text/latex": "$x$"}, "$x$"),
        ({"image/svg+xml": "<svg><title>A</title><text>b</text></svg>"}, "[SVG picture: A b]"),
        (
            {"application/vnd.plotly.v1+json": {"layout": {"title": {"text": "<b>S</b>"}}}},
            "[interactive Plotly chart, which is not shown here: S]",
        ),
        (
            {"text/plain": "alt.Chart(...)", "application/vnd.vegalite.v6+json": {"title": "S"}},
            "[interactive Vega-Lite chart, which is not shown here: S]",
        ),
        (
            {"text/plain": "alt.HConcatChart(...)", "text/html": "<script>spec</script>"},
            "[interactive Altair chart, which is not shown here]",
        ),
        ({"text/plain": "   a\n0  1", "text/html": "<td>1</td>"}, "   a\n0  1"),
        ({"text/plain": "<x.Y object at 0x7f>"}, "<x.Y object at 0x7f>"),
        ({"application/x-unknown": "1"}, None),
    ],
    ids=[
        "html",
        "styler",
        "markdown",
        "latex",
        "svg",
        "plotly",
        "vega-lite",
        "altair",
        "frame",
        "object",
        "unknown",
    ],
)
def test_the_name_of_an_object_gives_way_to_what_it_shows(bundle: Any, text: str | None) -> None:
    assert best_text(bundle) == text


@pytest.mark.parametrize(
    "markup",
    [
        "<" * 300_000,
        "<a" * 150_000,
        "<script>" * 40_000,
        "<!--" * 70_000,
        "<tr><td rowspan=50 colspan=50>" * 9000,
    ],
    ids=["signs", "tags", "scripts", "comments", "spans"],
)
def test_markup_of_any_form_is_read_in_bounded_work(markup: str) -> None:
    assert len(text_of_markup(f"<table>{markup}")) <= len(markup) + 10
