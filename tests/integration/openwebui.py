"""Open WebUI's own executor, unchanged, out of its published wheel.

The wheel is only read: installed it would bring a hundred packages. Two of its modules that the
executor imports, its settings and its JSON codec, are stood in for by what they are by default.
"""

import importlib.util
import json
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CLIENTS = Path(sys.prefix) / "clients"  # where `make test` puts wheels
_MODULE = "open_webui/utils/code_interpreter.py"


def load_executor(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    """The module; its ``execute_code_jupyter`` is what Open WebUI calls."""
    wheels = sorted(CLIENTS.glob("open_webui-*.whl"))
    if not wheels:
        pytest.skip("Open WebUI's wheel is not there; `make test` downloads it")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        path = Path(wheel.extract(_MODULE, folder))
    env, codec = ModuleType("open_webui.env"), ModuleType("open_webui.utils.json_codec")
    env.AIOHTTP_CLIENT_ALLOW_REDIRECTS = False  # type: ignore[attr-defined]
    codec.JSONCodec = json  # type: ignore[attr-defined]
    for name, module in {
        "open_webui": ModuleType("open_webui"),
        "open_webui.utils": ModuleType("open_webui.utils"),
        env.__name__: env,
        codec.__name__: codec,
    }.items():
        patch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("open_webui.utils.code_interpreter", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
