"""A notebook as one self-contained page, by nbconvert. Blocking: call it in a thread."""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

MAX_PAGE_BYTES = 2 * 1024**2
"""Of a notebook that are rendered: nbconvert takes seven times as much memory, and seconds."""

MAX_PAGE_CELLS = 300

_OUTPUTS = b', "outputs": ['
_SOURCE = b'], "source": '
_BEGIN = 16 * 1024


def render_page(notebook: BinaryIO, size: int, title: str, download_url: str) -> bytes:
    """HTML of a notebook of ``size`` bytes. Nothing in it is loaded from elsewhere.

    Of a large one the first cells, with a note instead of large outputs. The notes name ``download_url``
    and are no links: the page is sandboxed, and a browser saves nothing from there.
    """
    import nbformat  # noqa: PLC0415  # the two take 0.2 seconds, which no start needs
    from nbconvert import HTMLExporter  # noqa: PLC0415

    text = notebook.read() if size <= MAX_PAGE_BYTES else _excerpt(notebook, download_url)
    node = nbformat.reads(text.decode("utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    if len(node.cells) > MAX_PAGE_CELLS:
        node.cells[MAX_PAGE_CELLS:] = [nbformat.from_dict(_end_note(download_url))]  # type: ignore[no-untyped-call]
    node.metadata.setdefault("title", title)
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="lab",
        mathjax_url="",
        require_js_url="",
        jquery_url="",
        mermaid_js_url="",
        jupyter_widgets_base_url="",
    )
    html, _ = exporter.from_notebook_node(node)
    return html.encode("utf-8", "replace")


def _excerpt(notebook: BinaryIO, download_url: str) -> bytes:
    """The JSON of a notebook that is read up to where the page is full; never more than a cell of it is in memory."""
    cells = list(_first_cells(notebook, download_url))
    return b'{"cells": [%s], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}' % b",".join(cells)


def _first_cells(notebook: BinaryIO, download_url: str) -> Iterator[bytes]:
    """The record has one cell per line, after a line that opens the list of them."""
    notebook.readline()
    room = MAX_PAGE_BYTES
    for count, line in enumerate(notebook):
        cell = line.rstrip().removesuffix(b",")
        if cell == b"]":
            return
        if len(cell) > min(room, MAX_PAGE_BYTES // 4):
            cell = _without_outputs(cell, download_url)
        if len(cell) > room or count >= MAX_PAGE_CELLS:
            yield json.dumps(_end_note(download_url)).encode()
            return
        room -= len(cell)
        yield cell


def _without_outputs(cell: bytes, download_url: str) -> bytes:
    """The line of a cell with a note in place of its outputs, without parsing them."""
    begin, end = cell.find(_OUTPUTS, 0, _BEGIN), cell.rfind(_SOURCE)
    if begin < 0 or end < begin:
        return cell
    note = f"[{end - begin:,} bytes of outputs are not shown on this page; they are in the notebook: {download_url}]\n"
    output = {"output_type": "stream", "name": "stdout", "text": note}
    return b"".join((cell[:begin], _OUTPUTS, json.dumps(output).encode(), cell[end:]))


def _end_note(download_url: str) -> dict[str, Any]:
    text = f"*The page ends here, as the notebook is large. All of it: {download_url}*"
    return {"cell_type": "markdown", "id": "page-end", "metadata": {}, "source": text}
