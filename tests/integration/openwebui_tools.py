"""Open WebUI's own client of tool servers, unchanged, out of its published wheel.

Its module imports all of Open WebUI; so the functions are taken out of its source one by one, and the
settings that they read are stood in for by what they are by default.
"""

import ast
import base64
import copy
import json
import logging
import re
import zipfile
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import pytest
from openwebui import CLIENTS

_TOOLS = "open_webui/utils/tools.py"
_MIDDLEWARE = "open_webui/utils/middleware.py"
_NAMES = {
    _TOOLS: {
        "resolve_schema",
        "convert_openapi_to_tool_payload",
        "execute_tool_server",
        "get_tool_server_data",
        "get_tool_server_url",
        "get_terminal_cwd",
        "get_terminal_system_prompt",
        "clean_properties",
        "clean_openai_tool_schema",
        "OPENAPI_HTTP_METHODS",
    },
    _MIDDLEWARE: {"extract_base64_images", "BASE64_IMAGE_DATA_URI_RE"},
}


def load_tool_client() -> Any:
    """The functions, as attributes."""
    wheels = sorted(CLIENTS.glob("open_webui-*.whl"))
    if not wheels:
        pytest.skip("Open WebUI's wheel is not there; `make test` downloads it")
    found: dict[str, Any] = {
        "Any": Any,
        "AIOHTTP_CLIENT_ALLOW_REDIRECTS": False,
        "AIOHTTP_CLIENT_SESSION_SSL": True,
        "AIOHTTP_CLIENT_SESSION_TOOL_SERVER_SSL": True,
        "AIOHTTP_CLIENT_TIMEOUT_TOOL_SERVER": 60,
        "AIOHTTP_CLIENT_TIMEOUT_TOOL_SERVER_DATA": 10,
        "ENABLE_TOOL_SERVERS": True,
        "JSONCodec": json,
        "log": logging.getLogger("open_webui"),
        **{module.__name__: module for module in (aiohttp, base64, copy, re)},
        "quote": quote,
        "urlencode": urlencode,
    }
    with zipfile.ZipFile(wheels[-1]) as wheel:
        for path, names in _NAMES.items():
            tree = ast.parse(wheel.read(path))
            tree.body = [node for node in tree.body if _name_of(node) in names]
            exec(compile(tree, path, "exec"), found)
    return SimpleNamespace(**found)


def _name_of(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return ""
