"""What can be read of a rich output, for clients and models that see text only. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any

from interpreter.toolcalls.markup import text_of_markup

# The reprs that say nothing: of figures, and of objects whose only use is to be displayed.
_EMPTY = re.compile(r"<(?:Figure size|IPython\.core\.display\.|IPython\.lib\.display\.)[^>]*>")
# Those that only name an object, beside which there is something better.
_ALTAIR = re.compile(
    r"alt\.\w*Chart\(\.\.\.\)"
)  # beside it there is a page of scripts, and no type of its own
_NAME = re.compile(rf"<[\w.]+ (?:object )?at 0x[0-9a-fA-F]+>|<[\w.]+ object>|{_ALTAIR.pattern}")
_CHARTS = (
    ("application/vnd.plotly.", "interactive Plotly chart"),
    ("application/vnd.vegalite.", "interactive Vega-Lite chart"),
    ("application/vnd.vega.", "interactive Vega chart"),
    ("application/vnd.bokehjs", "interactive Bokeh chart"),
    ("application/vnd.jupyter.widget-view", "widget"),
    ("audio/", "audio player"),
    ("video/", "video player"),
    ("application/pdf", "PDF"),
)
_MAX_TITLE = 200  # characters
_MAX_NAME = 1000  # characters


def is_empty(text: str) -> bool:
    """Whether a ``text/plain`` says nothing at all, as ``<IPython.core.display.HTML object>``."""
    return len(text) < _MAX_NAME and _EMPTY.fullmatch(text.strip()) is not None


def names_only(text: str) -> bool:
    """Whether a ``text/plain`` is but the name of an object, as ``<Styler at 0x7f…>``."""
    return is_empty(text) or (len(text) < _MAX_NAME and _NAME.fullmatch(text.strip()) is not None)


def noun_of(bundle: Mapping[str, Any]) -> str | None:
    """What an interactive output is called; None for any other."""
    noun = next((noun for prefix, noun in _CHARTS for mime in bundle if mime.startswith(prefix)), None)
    plain = text_field(bundle, "text/plain") if noun is None else None
    is_altair = plain is not None and len(plain) < _MAX_NAME and _ALTAIR.fullmatch(plain.strip()) is not None
    return "interactive Altair chart" if is_altair else noun


def text_field(bundle: Mapping[str, Any], mime: str) -> str | None:
    """A text of a bundle; None when there is none, or nothing in it."""
    value = bundle.get(mime)
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "".join(value)  # nbformat's multi-line form
    return value if isinstance(value, str) and value.strip() else None


def readable(bundle: Mapping[str, Any]) -> str | None:
    """The text of a bundle that tells something, None when there is none.

    ``text/plain`` unless it only names the object, else Markdown, the source of LaTeX, the text of HTML
    (its tables as text) or JSON.
    """
    plain = text_field(bundle, "text/plain")
    if plain is not None and not names_only(plain):
        return plain
    for mime in ("text/markdown", "text/latex"):
        if (text := text_field(bundle, mime)) is not None:
            return text
    if (markup := text_field(bundle, "text/html")) is not None and (text := text_of_markup(markup)):
        return text
    if "application/json" in bundle:
        try:
            return json.dumps(bundle["application/json"], ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            return None
    return plain if bundle.keys() == {"text/plain"} and plain is not None and not is_empty(plain) else None


def described(bundle: Mapping[str, Any]) -> str | None:
    """A line about a bundle that has no text to read: a drawing with its words, or a chart with its title."""
    if (noun := noun_of(bundle)) is not None:
        title = next((title for value in bundle.values() if (title := _title(value))), "")
        return f"[{noun}, which is not shown here{f': {title}' if title else ''}]"
    if (drawing := text_field(bundle, "image/svg+xml")) is not None:
        words = " ".join(text_of_markup(drawing).split())[:_MAX_TITLE]
        return f"[SVG picture{f': {words}' if words else ''}]"
    return None


def best_text(bundle: Mapping[str, Any]) -> str | None:
    """`readable`, else `described`, else the name of the object; None when there is nothing at all."""
    return readable(bundle) or described(bundle) or text_field(bundle, "text/plain")


def _title(figure: Any) -> str:
    """The title of a chart of Plotly or Vega."""
    if not isinstance(figure, Mapping):
        return ""
    layout = figure.get("layout")
    title = layout.get("title") if isinstance(layout, Mapping) else figure.get("title")
    if isinstance(title, Mapping):
        title = title.get("text")
    return " ".join(text_of_markup(title[:1000]).split())[:_MAX_TITLE] if isinstance(title, str) else ""
