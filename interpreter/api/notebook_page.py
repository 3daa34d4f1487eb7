"""A notebook as one self-contained page, by nbconvert. Blocking: call it in a thread."""


def render_page(notebook: bytes, title: str) -> bytes:
    """HTML of a notebook's bytes. Nothing in it is loaded from elsewhere."""
    import nbformat  # noqa: PLC0415  # the two take 0.2 seconds, which no start needs
    from nbconvert import HTMLExporter  # noqa: PLC0415

    node = nbformat.reads(notebook.decode(), as_version=4)  # type: ignore[no-untyped-call]
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
