"""Writes the kernelspecs of a Python environment: ``path/to/env/bin/python install_kernel.py``.

Run it with the Python that the kernels are to use; it needs nothing but ipykernel there. The Python
kernelspec is a folder that is complete in itself: ``kernel.json`` with the absolute path of this
Python, the IPython configuration, the extension, and matplotlib's font list, made now because it
would cost each first plot some seconds. Where the environment holds bash_kernel or Deno, they get a
kernelspec too.
"""

import argparse
import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Of each kernel in Python. -P: nothing that it imports may be a file of the session's, whose folder it starts in.
PYTHON_OPTIONS = ("-P", "-Xfrozen_modules=off")
# Fonts for characters that matplotlib's own lacks: folders of packages in kernel-requirements.txt.
FONTS = ("cvttf_NotoSansCJK_Regular/NotoSansCJKtc-Regular.otf", "manimgx_fonts/NotoEmoji[wght].ttf")

WRITE_FONT_LIST = """
import os, sys
import matplotlib.font_manager as fonts
known = {entry.fname for entry in fonts.fontManager.ttflist}
for path in sys.argv[1:]:
    if path not in known:
        fonts.fontManager.addfont(path)
folder = os.environ["MPLCONFIGDIR"]
for name in os.listdir(folder):
    if name.startswith("fontlist-"):
        fonts.json_dump(fonts.fontManager, os.path.join(folder, name))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--prefix", default=sys.prefix, help="the kernelspecs go below PREFIX/share/jupyter")
    parser.add_argument("--name", default="python3", help="name of the Python kernelspec")
    parser.add_argument("--display-name", default="Python 3", help="what people read")
    options = parser.parse_args()
    kernels = Path(options.prefix) / "share" / "jupyter" / "kernels"
    install_python(kernels / options.name, options.display_name)
    if importlib.util.find_spec("bash_kernel"):
        install_bash(kernels / "bash")
    deno = Path(sys.prefix) / "bin" / "deno"
    if deno.is_file():
        install_deno(kernels / "deno", deno)
    return 0


def install_python(folder: Path, display_name: str) -> None:
    """The Python kernel with our configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    modules = []
    for source in sorted((HERE / "ipython").glob("*.py")):
        copy = Path(shutil.copyfile(source, folder / source.name))
        if source.stem.startswith("interpreter_"):
            py_compile.compile(str(copy))  # kernels may not write here, and each would compile it anew
            modules.append(source.stem)
    fonts = find_fonts()
    (folder / "fallback_fonts.json").write_text(json.dumps(fonts), encoding="utf-8")
    build_font_list(folder / "matplotlib", fonts)
    write_spec(
        folder,
        {
            "argv": [
                sys.executable,
                *PYTHON_OPTIONS,
                "-m",
                "ipykernel_launcher",
                "-f",
                "{connection_file}",
                "--config={resource_dir}/ipython_kernel_config.py",
            ],
            "display_name": display_name,
            "language": "python",
            # modules: files of this folder that a fork server may load before
            "metadata": {
                "supported_encryption": ["curve"],
                "interpreter": {"modules": modules},
            },
        },
    )


def install_bash(folder: Path) -> None:
    """A shell that keeps its state."""
    folder.mkdir(parents=True, exist_ok=True)
    write_spec(
        folder,
        {
            "argv": [
                sys.executable,
                *PYTHON_OPTIONS,
                "-m",
                "bash_kernel",
                "-f",
                "{connection_file}",
                "--HistoryManager.enabled=False",
                "--InteractiveShellApp.ignore_cwd=True",
            ],
            "display_name": "Bash",
            "language": "bash",
        },
    )


def install_deno(folder: Path, program: Path) -> None:
    """JavaScript and TypeScript. It knows TCP only, so it needs the sandbox, whose relay makes sockets of it."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(HERE / "deno.sh", folder / "deno.sh")
    provisioner = {"provisioner_name": "bubblewrap-provisioner", "config": {"kernel_transport": "tcp"}}
    write_spec(
        folder,
        {
            "argv": ["/bin/sh", "{resource_dir}/deno.sh", str(program), "{connection_file}"],
            "env": {"DENO_NO_UPDATE_CHECK": "1"},
            # SIGINT would end it. The message stops a loop; what only waits goes on till the restart.
            "interrupt_mode": "message",
            "display_name": "Deno",
            "language": "typescript",
            "metadata": {"kernel_provisioner": provisioner},
        },
    )


def write_spec(folder: Path, spec: dict[str, object]) -> None:
    """Write ``kernel.json``, in one step."""
    temporary = folder / "kernel.json.tmp"
    temporary.write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / "kernel.json")
    print(f"kernelspec {folder.name}: {folder}")  # noqa: T201


def find_fonts() -> list[str]:
    """Those of `FONTS` that this environment has."""
    found = (Path(folder) / font for font in FONTS for folder in sys.path)
    return list(dict.fromkeys(str(path) for path in found if path.is_file()))


def build_font_list(folder: Path, fonts: list[str]) -> None:
    """Lets matplotlib write its font list to `folder`; without matplotlib there is none to write."""
    folder.mkdir(exist_ok=True)
    if importlib.util.find_spec("matplotlib") is None:
        return
    with tempfile.TemporaryDirectory() as home:  # the user's own fonts are not there for kernels
        environment = {**os.environ, "HOME": home, "XDG_DATA_HOME": home, "MPLCONFIGDIR": str(folder)}
        subprocess.run(  # noqa: S603
            [sys.executable, "-c", WRITE_FONT_LIST, *fonts], env=environment, check=False
        )


if __name__ == "__main__":
    sys.exit(main())
