"""Writes the kernelspec of a Python environment: ``path/to/env/bin/python install_kernel.py``.

Run it with the Python that the kernels are to use; it needs nothing but ipykernel there. The
kernelspec is a folder that is complete in itself: ``kernel.json`` with the absolute path of this
Python, the IPython configuration, the extension, and matplotlib's font list, made now because it
would cost each first plot some seconds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--prefix", default=sys.prefix, help="the kernelspec goes below PREFIX/share/jupyter")
    parser.add_argument("--name", default="python3", help="name of the kernelspec")
    parser.add_argument("--display-name", default="Python 3", help="what people read")
    options = parser.parse_args()
    folder = Path(options.prefix) / "share" / "jupyter" / "kernels" / options.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("ipython_kernel_config.py", "interpreter_kernel.py"):
        shutil.copyfile(HERE / "ipython" / name, folder / name)
    build_font_list(folder / "matplotlib")
    spec = {
        "argv": [
            sys.executable,
            "-Xfrozen_modules=off",
            "-m",
            "ipykernel_launcher",
            "-f",
            "{connection_file}",
            "--config={resource_dir}/ipython_kernel_config.py",
        ],
        "display_name": options.display_name,
        "language": "python",
        # waits_for_reader: the extension sets XPUB_NODROP, so the gateway may read at its own pace
        "metadata": {"supported_encryption": ["curve"], "interpreter": {"waits_for_reader": True}},
    }
    temporary = folder / "kernel.json.tmp"
    temporary.write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / "kernel.json")
    print(f"kernelspec {options.name}: {folder}")  # noqa: T201
    return 0


def build_font_list(folder: Path) -> None:
    """Lets matplotlib write its font list to `folder`; without matplotlib there is none to write."""
    folder.mkdir(exist_ok=True)
    code = "import importlib.util as u\nif u.find_spec('matplotlib'): import matplotlib.font_manager"
    environment = {**os.environ, "MPLCONFIGDIR": str(folder)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=False)  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
