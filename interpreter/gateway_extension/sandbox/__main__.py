"""``python -m interpreter.gateway_extension.sandbox``: say whether the sandbox works here, as JSON."""

import json
import sys

from interpreter.gateway_extension.sandbox.probe import probe

if __name__ == "__main__":
    result = probe()
    json.dump(result.as_json(), sys.stdout, indent=2)
    sys.stdout.write("\n")
    sys.exit(0 if result.ok else 1)
