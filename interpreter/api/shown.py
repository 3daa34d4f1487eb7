"""One output of a run as a page may show it: markup that is safe, or a frame of its own. Pure.

An output is what hostile code made. In the page itself only text, pictures and plain tables stand; what
needs a script, a style or a link gets a frame, whose document (`interpreter.api.frames`) is confined.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any
from urllib.parse import quote

MAX_PLAIN_BYTES = 64 * 1024
"""HTML that is sanitised for the page itself, in a second; larger gets a frame. Code is coloured up to that."""

_MAX_DEPTH = 30
"""Of tags in it."""

_PICTURES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp")
_SCRIPTS = ("application/javascript", "text/javascript")
_BLOCKS = "p br hr div pre blockquote ul ol li dl dt dd h1 h2 h3 h4 h5 h6"
_INLINE = "b i em strong u s small sub sup code kbd samp span"
_TABLES = "table caption thead tbody tfoot tr th td"
_TAGS = frozenset(f"{_BLOCKS} {_INLINE} {_TABLES}".split())
_KEPT = {"td": ["colspan", "rowspan"], "th": ["colspan", "rowspan", "scope"]}
_DROPPED = frozenset({"class", "id", "border", "align", "halign", "valign", "colspan", "rowspan", "scope"})
"""Attributes that may go without changing what is to be seen."""

_ALIGNMENT = re.compile(r"\s*text-align:\s*\w+;?\s*")
_PANDAS_STYLE = re.compile(r"<style scoped>.*?</style>", re.DOTALL)
_ELSEWHERE = re.compile(
    r"""<(?:script|link)\b[^>]*\b(?:src|href)\s*=\s*["']?\s*(?:https?:)?//"""
    r"""|\b(?:import|from)\s*\(?\s*["'`]https?://|["'`]https?://[^"'`\s]*\b(?:cdn|cdnjs|npm|unpkg|esm)\b""",
    re.IGNORECASE,
)
_OWN_CODE = 1024**2
"""HTML of more characters brings its code along, whatever addresses are in there."""

_TAG = re.compile(r'<(/?)([a-zA-Z][a-zA-Z0-9]*)((?:\s+[a-zA-Z-]+="[^"<>]*")*)\s*/?>')
_ATTRIBUTE = re.compile(r'([a-zA-Z-]+)="([^"<>]*)"')
_LINK = re.compile(r"</?(?:a|img)\b[^<>]*>")
_ANCHOR = re.compile(r'<a class="anchor-link"[^>]*>[^<]*</a>')
_STYLE = re.compile(r' style="[^"]*"')
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")


@dataclass(frozen=True, slots=True)
class Shown:
    """``html`` is safe markup. With ``framed`` the output is in a frame; ``note`` is a sentence below."""

    html: str = ""
    framed: bool = False
    note: str = ""
    kind: str = "display"
    """``stdout``, ``stderr``, ``error`` or ``display``."""


def show_output(output: Mapping[str, Any], *, rich: bool = True) -> Shown:
    """What the page has of an nbformat output. Without ``rich`` no HTML is sanitised: it gets a frame."""
    kind = output.get("output_type")
    if kind == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        return Shown(_text(joined(output.get("text", ""))), kind=name)
    if kind == "error":
        lines = output.get("traceback") or [f"{output.get('ename')}: {output.get('evalue')}"]
        return Shown(_text("\n".join(map(str, lines))), kind="error")
    data = output.get("data")
    return _show_data(data if isinstance(data, dict) else {}, rich)


def framed_html(output: Mapping[str, Any]) -> str | None:
    """What a frame shows of an output, None when it has neither HTML nor a script."""
    data = output.get("data")
    if not isinstance(data, dict):
        return None
    if "text/html" in data:
        return joined(data["text/html"])
    script = next((joined(data[mime]) for mime in _SCRIPTS if mime in data), None)
    return None if script is None else f"<script>{script}</script>"


def rich_size(output: Mapping[str, Any]) -> int:
    """Characters of an output that would be sanitised."""
    data = output.get("data")
    texts = (data.get(mime) for mime in ("text/html", "text/markdown")) if isinstance(data, dict) else ()
    return sum(len(joined(text)) for text in texts if text is not None)


def joined(text: Any) -> str:
    """A multi-line value of nbformat as one string."""
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def highlight(source: str, language: str) -> str:
    """Code as markup with classes; without colours where it is long."""
    from nbconvert.filters import Highlight2HTML  # noqa: PLC0415  # slow to import

    if len(source) > MAX_PLAIN_BYTES:
        return f"<pre>{escape(source)}</pre>"
    lexer = "ipython3" if language.lower() == "python" else language.lower()
    colored: str = Highlight2HTML(pygments_lexer=lexer)(source)  # type: ignore[no-untyped-call]
    return _STYLE.sub("", colored)


def _show_data(data: Mapping[str, Any], rich: bool) -> Shown:
    picture = next((_picture(mime, data[mime]) for mime in _PICTURES if mime in data), "")
    if "text/html" in data:
        return _show_html(joined(data["text/html"]), picture, rich)
    if any(mime in data for mime in _SCRIPTS):
        return Shown(framed=True)
    if picture:
        return Shown(picture)
    if "text/markdown" in data:
        return Shown(_markdown(joined(data["text/markdown"]), rich))
    return _show_text(data)


def _show_html(html: str, picture: str, rich: bool) -> Shown:
    plain = _PANDAS_STYLE.sub("", html, count=1)
    if rich and len(plain) <= MAX_PLAIN_BYTES and _is_plain(plain):
        return Shown(_sanitized(plain))
    if len(html) > _OWN_CODE or not _ELSEWHERE.search(html):
        return Shown(framed=True)
    if picture:
        return Shown(
            picture, note="Its interactive form needs code from the internet, which no output may load here."
        )
    note = "This output needs code from the internet, which no output may load here: it may stay empty."
    return Shown(framed=True, note=note)


def _show_text(data: Mapping[str, Any]) -> Shown:
    special = next((mime for mime in data if mime.startswith("application/vnd.")), None)
    note = f"Its interactive form ({special}) is only in the notebook file." if special else ""
    if "application/json" in data:
        text = json.dumps(data["application/json"], indent=2, ensure_ascii=False)
        return Shown(_text(text), note=note)
    for mime in ("text/latex", "text/plain"):
        if mime in data:
            return Shown(_text(joined(data[mime])), note=note)
    kinds = ", ".join(sorted(data)) or "no content"
    return Shown(
        note=note or f"An output of a kind that this page can't show ({kinds}); the notebook file has it."
    )


def _picture(mime: str, value: Any) -> str:
    """A picture as an ``img``, in which no script runs and nothing is loaded."""
    text = joined(value)
    if mime == "image/svg+xml":
        return f'<img alt="Picture" src="data:image/svg+xml,{quote(text)}">'
    if not _BASE64.fullmatch(text):
        return ""
    return f'<img alt="Picture" src="data:{mime};base64,{"".join(text.split())}">'


def _text(text: str) -> str:
    from nbconvert.filters import ansi2html, strip_ansi  # noqa: PLC0415

    if len(text) > MAX_PLAIN_BYTES:
        return f"<pre>{escape(strip_ansi(text))}</pre>"  # type: ignore[no-untyped-call]
    return f"<pre>{_STYLE.sub('', ansi2html(text))}</pre>"  # type: ignore[no-untyped-call]


def _markdown(text: str, rich: bool) -> str:
    """Rendered, without its links; as text where it has HTML of its own or is long."""
    from nbconvert.filters import markdown2html  # noqa: PLC0415

    if rich and len(text) <= MAX_PLAIN_BYTES // 4:
        html = _LINK.sub("", _STYLE.sub("", _ANCHOR.sub("", markdown2html(text))))
        if _is_plain(html):
            return _sanitized(html)
    return f"<pre>{escape(text)}</pre>"


def _sanitized(html: str) -> str:
    return f'<div class="rich">{_sanitizer().sanitize_html_tags(html)}</div>'


def _is_plain(html: str) -> bool:
    """Whether the markup is well-formed and has only what sanitising keeps, in linear time."""
    opened: list[str] = []
    end = 0
    for match in _TAG.finditer(html):
        closing, tag = match[1], match[2].lower()
        if "<" in html[end : match.start()] or tag not in _TAGS or len(opened) > _MAX_DEPTH:
            return False
        if not all(_is_dropped(name.lower(), value) for name, value in _ATTRIBUTE.findall(match[3])):
            return False
        if closing:
            if not opened or opened.pop() != tag:
                return False
        elif tag not in ("br", "hr"):
            opened.append(tag)
        end = match.end()
    return not opened and "<" not in html[end:]


def _is_dropped(name: str, value: str) -> bool:
    return name in _DROPPED or (name == "style" and bool(_ALIGNMENT.fullmatch(value)))


@cache
def _sanitizer() -> Any:
    from nbconvert.preprocessors.sanitize import SanitizeHTML  # noqa: PLC0415

    return SanitizeHTML(tags=sorted(_TAGS), attributes=_KEPT, strip=True)  # type: ignore[no-untyped-call]
