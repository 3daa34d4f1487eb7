"""How a slow dependency of both processes, the service and its gateway, is imported fast."""

import sys

_GRAMMAR = "rfc3987_syntax"


def import_jsonschema() -> None:
    """Import jsonschema without a grammar that it takes in as it is imported, where it is installed.

    That takes a second of every start, for formats that no schema of ours or of the gateway's has. No
    argument or `FormatChecker` keeps jsonschema from it. Whoever wants the grammar itself can import it
    afterwards.
    """
    if "jsonschema" in sys.modules or _GRAMMAR in sys.modules:
        return
    sys.modules[_GRAMMAR] = None  # type: ignore[assignment]  # what the import system takes for "not there"
    try:
        import jsonschema  # noqa: F401, PLC0415
    finally:
        del sys.modules[_GRAMMAR]
