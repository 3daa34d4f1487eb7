"""``jupyter interpreter mcp``: a running service as an MCP server on standard input and output."""

import asyncio
import contextlib
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

from traitlets import Unicode

from interpreter.cli.bridge import Bridge
from interpreter.cli.client import Address
from interpreter.cli.command import Command, options_of
from interpreter.errors import SettingsError
from interpreter.runtime_file import find_running
from interpreter.settings import Settings

_MAX_LINE = 64 * 1024**2  # bytes of one message


class McpApp(Command):
    """Carry MCP messages between a program and the service."""

    description = (
        "Be an MCP server on standard input and output, for programs that start their servers themselves. "
        "The code runs on a running service: the one of --url, else the one that runs on this machine."
    )
    examples = """
    jupyter interpreter mcp
    jupyter interpreter mcp --url=http://127.0.0.1:8889 --token=...
    """
    aliases: ClassVar[dict[Any, Any]] = {
        **options_of("state_dir"),
        "token": ("InterpreterApp.token", "A token of the service. [INTERPRETER_TOKEN]"),
        "url": "McpApp.url",
        "ca-file": "McpApp.ca_file",
    }

    url = Unicode("", help="URL of the service, also as it prints it. [INTERPRETER_URL]").tag(config=True)
    ca_file = Unicode("", help="CA certificates (PEM) that vouch for a service with https.").tag(config=True)

    async def main(self, settings: Settings) -> int:
        """Until the client closes standard input, or a signal comes."""
        address = self._address(settings)
        bridge = Bridge(address, self._tls(address), _write)
        running = asyncio.create_task(bridge.run(_lines()))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running
        return 0

    def _address(self, settings: Settings) -> Address:
        if self.url:
            return Address.parse(self.url, settings.token)
        running = find_running(Path(settings.state_dir))
        if running is None:
            raise SettingsError(
                "No service runs here; start one with `jupyter interpreter serve`, or set --url "
                "(INTERPRETER_URL) and INTERPRETER_TOKEN."
            )
        return Address.parse(running.url, settings.token or running.token)

    def _tls(self, address: Address) -> ssl.SSLContext | None:
        if not address.url.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError("ca_file is not a readable PEM file.") from error


def _write(line: str) -> None:
    sys.stdout.buffer.write(line.encode())
    sys.stdout.buffer.flush()


async def _lines() -> AsyncIterator[bytes]:
    """The lines of standard input as they come."""
    reader = asyncio.StreamReader(limit=_MAX_LINE)
    protocol = asyncio.StreamReaderProtocol(reader)
    try:
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin.buffer)
    except ValueError:  # neither a pipe, a socket nor a terminal, but a file
        reader.feed_data(sys.stdin.buffer.read())
        reader.feed_eof()
    while line := await reader.readline():
        yield line
