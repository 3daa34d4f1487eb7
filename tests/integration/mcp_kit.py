"""The MCP SDK's client against the service."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from lazily import Lazy
from service_process import ServiceProcess

mcp, mcp_http, mcp_utils = Lazy("mcp"), Lazy("mcp.client.streamable_http"), Lazy("mcp.shared._httpx_utils")
LEGACY = "legacy"
MODERN = "2026-07-28"


@asynccontextmanager
async def mcp_client(
    service: ServiceProcess, mode: str, headers: Mapping[str, str] | None = None, path: str = "/mcp"
) -> AsyncIterator[Any]:
    """A connected client of one protocol era."""
    sent = {"Authorization": f"Bearer {service.token}", **(headers or {})}
    async with mcp_utils.create_mcp_http_client(headers=sent) as http:
        transport: Any = mcp_http.streamable_http_client(service.url + path, http_client=http)
        async with mcp.Client(transport, mode=mode) as client:
            yield client


async def execute(client: Any, code: str, **arguments: Any) -> Any:
    """The result of the tool."""
    return await client.call_tool("execute_python", {"code": code, **arguments})


def text_of(result: Any) -> str:
    """The text that a model reads."""
    text: str = result.content[0].text
    return text
