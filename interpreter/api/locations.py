"""Where a redirect may lead: nowhere but to this host."""


def local_path(path: str) -> str:
    """A path on this host: one leading slash, so that no browser takes it for another host."""
    return "/" + path.lstrip("/\\")


def is_local(path: str) -> bool:
    """Whether a redirect to this stays on this host."""
    return path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
