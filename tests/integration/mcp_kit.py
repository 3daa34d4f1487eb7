"""The MCP SDK's client against the service."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from service_process import ServiceProcess

LEGACY = "legacy"
MODERN = "2026-07-28"


@asynccontextmanager
async def mcp_client(
    service: ServiceProcess, mode: str, headers: Mapping[str, str] | None = None, path: str = "/mcp"
) -> AsyncIterator[Client]:
    """A connected client of one protocol era."""
    sent = {"Authorization": f"Bearer {service.token}", **(headers or {})}
    async with create_mcp_http_client(headers=sent) as http:
        transport: Any = streamable_http_client(service.url + path, http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


async def execute(client: Client, code: str, **arguments: Any) -> Any:
    """The result of the tool."""
    return await client.call_tool("execute_python", {"code": code, **arguments})


def text_of(result: Any) -> str:
    """The text that a model reads."""
    text: str = result.content[0].text
    return text
