"""HTML and SVG as text: tables keep their rows and columns. Pure, and linear in the size of the markup."""

import html
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_MAX_CHARS = 256 * 1024  # of markup that is read
_MAX_WIDTH = 40  # characters to which the cells of a column are padded
_MAX_SPAN = 50  # rows or columns that a cell takes
_MAX_COLUMNS = 200  # of a row
_TAG = re.compile(r"(/?)([a-zA-Z][a-zA-Z0-9:-]*)")
_SPAN = re.compile(r"\b(col|row)span\s*=\s*[\"']?(\d{1,4})", re.IGNORECASE)
_UNSEEN = frozenset({"script", "style", "head", "template"})
_LINES = frozenset(
    {
        *("address", "article", "blockquote", "br", "caption", "dd", "div", "dl", "dt", "figcaption", "hr"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "li", "ol", "p", "pre", "section", "table", "tr", "ul"),
        *("text", "title", "desc"),
    }
)


@dataclass(slots=True)
class _Table:
    """Rows of a table that is being read."""

    rows: list[list[str]] = field(default_factory=list)
    cell: list[str] | None = None
    spans: tuple[int, int] = (1, 1)  # columns, rows
    taken: dict[int, int] = field(default_factory=dict)  # rows that a cell above still takes, by column

    def end_cell(self) -> None:
        if self.cell is None:
            return
        text, self.cell = " ".join("".join(self.cell).split()), None
        if not self.rows:
            self.rows.append([])
        row = self.rows[-1]
        self._skip_taken(row)
        columns, rows = self.spans
        for offset in range(min(columns, _MAX_COLUMNS - len(row))):
            if rows > 1:
                self.taken[len(row)] = rows - 1
            row.append("" if offset else text)

    def _skip_taken(self, row: list[str]) -> None:
        while self.taken.get(len(row), 0) and len(row) < _MAX_COLUMNS:
            self.taken[len(row)] -= 1
            row.append("")

    def text(self) -> str:
        rows = [row for row in self.rows if any(row)]
        widths = [
            min(_MAX_WIDTH, max(map(len, column))) for column in itertools.zip_longest(*rows, fillvalue="")
        ]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows
        )
        return "\n".join(line.rstrip() for line in lines)


class _Reader:
    """Collects the text of markup."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.table: _Table | None = None
        self.depth = 0  # of tables: one within another is a part of its cell

    def text(self, text: str) -> None:
        shown = html.unescape(text)
        if self.table is None:
            self.parts.append(
                " ".join(shown.split()).join((" " * shown[:1].isspace(), " " * shown[-1:].isspace()))
            )
        elif self.table.cell is not None:
            self.table.cell.append(shown)
        elif shown.strip():  # a caption
            self.parts.append(f"\n{' '.join(shown.split())}\n")

    def tag(self, name: str, attributes: str, *, closes: bool) -> None:
        if name == "table":
            self._table(closes=closes)
        elif self.table is None or self.depth > 1:
            self.text("\n") if self.table else self.parts.extend(["\n"] * (name in _LINES))
        elif name in ("td", "th"):
            self.table.end_cell()
            if not closes:
                self.table.cell, self.table.spans = [], _spans(attributes)
        elif name == "tr":
            self.table.end_cell()
            if not closes:
                self.table.rows.append([])
        elif name in _LINES:
            self.text(" ")

    def _table(self, *, closes: bool) -> None:
        if not closes:
            self.depth += 1
            self.table = self.table or _Table()
        elif self.depth:
            self.depth -= 1
            if not self.depth:
                self.end()

    def end(self) -> None:
        """Take what a table holds, which may have been cut."""
        if self.table is not None:
            self.table.end_cell()
            self.parts += ["\n", self.table.text(), "\n"]
            self.table = None


def text_of_markup(markup: str) -> str:
    """The text that HTML or SVG shows, without empty lines; ``""`` when it shows none."""
    reader = _Reader()
    for text, tag, attributes in _tokens(markup[:_MAX_CHARS]):
        if text:
            reader.text(text)
        if tag:
            reader.tag(tag.lower().lstrip("/"), attributes, closes=tag.startswith("/"))
    reader.end()
    lines = (line.rstrip() for line in "".join(reader.parts).split("\n"))
    return "\n".join(line for line in lines if line.strip())


def _tokens(markup: str) -> Iterator[tuple[str, str, str]]:
    """Pieces of text, each with the tag that ends it (``/`` before one that closes) and its attributes."""
    position = start = 0  # `start` is that of the text
    while (opening := markup.find("<", position)) >= 0:
        if markup.startswith(("<!", "<?"), opening):
            ending = "-->" if markup.startswith("<!--", opening) else ">"
            closing = markup.find(ending, opening)
            yield markup[start:opening], "", ""
            if closing < 0:
                return
            position = start = closing + len(ending)
            continue
        found = _TAG.match(markup, opening + 1)
        if found is None:  # the sign for "less than"
            position = opening + 1
            continue
        closing = markup.find(">", found.end())
        if closing < 0:
            yield markup[start:opening], "", ""
            return
        yield markup[start:opening], found[0], markup[found.end() : closing]
        position = start = closing + 1
        if not found[1] and found[2].lower() in _UNSEEN:
            end = re.compile(f"</{found[2]}", re.IGNORECASE).search(markup, position)
            if end is None:
                return
            position = start = end.start()
    yield markup[start:], "", ""


def _spans(attributes: str) -> tuple[int, int]:
    found = {match[1].lower(): int(match[2]) for match in _SPAN.finditer(attributes)}
    columns, rows = (min(max(found.get(name, 1), 1), _MAX_SPAN) for name in ("col", "row"))
    return columns, rows
