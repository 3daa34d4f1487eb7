"""The native REST interface: every route of the HTTP contract, and the base handler of all others."""

import sys

# jsonschema takes these words of RFC 3987 where they are installed, to check formats that no schema of
# ours has; making their grammar takes 0.7 seconds of every start.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
