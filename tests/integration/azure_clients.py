"""The two published clients of Azure's dynamic sessions, unchanged, out of their wheels.

The wheels are only read: installed they would bring Azure's identity library and two frameworks. What
the modules take from these is stood in for.
"""

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

import pydantic
import pytest
from openwebui import CLIENTS

OPENED: list[IO[Any]] = []
"""The files that the clients have opened; they close none."""

_LANGCHAIN = ("langchain_azure_dynamic_sessions-*.whl", "langchain_azure_dynamic_sessions/tools/sessions.py")
_LLAMA_INDEX = (
    "llama_index_tools_azure_code_interpreter-*.whl",
    "llama_index/tools/azure_code_interpreter/base.py",
)


class _BaseTool(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)


def load_langchain(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    """The module with ``SessionsPythonREPLTool`` and ``SessionsBashTool``."""
    return _load(*_LANGCHAIN, folder, patch)


def load_llama_index(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    """The module with ``AzureCodeInterpreterToolSpec``."""
    return _load(*_LLAMA_INDEX, folder, patch)


def _load(wheel: str, module: str, folder: Path, patch: pytest.MonkeyPatch) -> Any:
    wheels = sorted(CLIENTS.glob(wheel))
    if not wheels:
        pytest.skip(f"{wheel} is not there; `make test` downloads it")
    with zipfile.ZipFile(wheels[-1]) as archive:
        path = Path(archive.extract(module, folder))
    stands: dict[str, dict[str, Any]] = {
        "azure.core.credentials": {"AccessToken": SimpleNamespace},
        "azure.identity": {"DefaultAzureCredential": object},
        "langchain_core.tools": {"BaseTool": _BaseTool},
        "llama_index.core.tools.tool_spec.base": {"BaseToolSpec": object},
    }
    for name, values in stands.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            patch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        vars(sys.modules[name]).update(values)
    spec = importlib.util.spec_from_file_location(f"client_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, spec.name, loaded)
    spec.loader.exec_module(loaded)
    patch.setattr(loaded, "open", _open, raising=False)
    return loaded


def _open(*arguments: Any) -> IO[Any]:
    OPENED.append(open(*arguments))  # noqa: SIM115 - closed by the tests
    return OPENED[-1]
