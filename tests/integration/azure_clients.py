"""The two published clients of Azure's dynamic sessions, with what they are built on."""

from typing import IO, Any

import pytest
from agent_clients import load

OPENED: list[IO[Any]] = []
"""The files that the clients have opened; they close none."""


def load_langchain(patch: pytest.MonkeyPatch) -> Any:
    """The module with ``SessionsPythonREPLTool`` and ``SessionsBashTool``, LangChain tools."""
    return _watched(load("langchain_azure_dynamic_sessions.tools.sessions"), patch)


def load_llama_index(patch: pytest.MonkeyPatch) -> Any:
    """The module with ``AzureCodeInterpreterToolSpec``, a tool spec of LlamaIndex."""
    module = load(
        "llama_index.tools.azure_code_interpreter.base", "llama_index.core", "llama_index.core.tools"
    )
    return _watched(module, patch)


def _watched(module: Any, patch: pytest.MonkeyPatch) -> Any:
    patch.setattr(module, "open", _open, raising=False)
    return module


def _open(*arguments: Any) -> IO[Any]:
    OPENED.append(open(*arguments))  # noqa: SIM115 - closed by the tests
    return OPENED[-1]
