"""The native REST interface: every route of the HTTP contract, and the base handler of all others."""

import sys

_GRAMMAR = "rfc3987_syntax"


def _import_jsonschema() -> None:
    """Import jsonschema without a grammar that it takes in as it is imported, where it is installed.

    That takes a second of every start, for formats that no schema here has. No argument or
    `FormatChecker` keeps jsonschema from it. Whoever wants the grammar itself can import it afterwards.
    """
    if "jsonschema" in sys.modules or _GRAMMAR in sys.modules:
        return
    sys.modules[_GRAMMAR] = None  # type: ignore[assignment]  # what the import system takes for "not there"
    try:
        import jsonschema  # noqa: F401, PLC0415
    finally:
        del sys.modules[_GRAMMAR]


_import_jsonschema()
