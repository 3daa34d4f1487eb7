"""``jupyter interpreter serve``: run the service until a signal ends it."""

import asyncio
import signal
from pathlib import Path
from typing import Any, ClassVar

from interpreter.app import InterpreterApp
from interpreter.cli.output import say
from interpreter.errors import InterpreterError, SettingsError
from interpreter.runtime_file import remove_runtime_file, write_runtime_file
from interpreter.service import Service
from interpreter.settings import Settings


class ServeApp(InterpreterApp):
    """Start the service."""

    description = "Start the code interpreter service, with a kernel gateway of its own unless one is named."
    examples = """
    jupyter interpreter serve
    jupyter interpreter serve --port=9000 --record-dir=audit
    jupyter interpreter serve --gateway-url=https://kernels.example.org/base --gateway-auth=token
    """
    subcommands: ClassVar[dict[str, Any]] = {}

    def start(self) -> None:
        """Serve until SIGTERM or SIGINT. A wrong setting ends it with one sentence and exit code 2."""
        super().start()
        try:
            asyncio.run(serve(self.settings()))
        except (SettingsError, InterpreterError) as error:
            self.fail(str(error))


async def serve(settings: Settings) -> None:
    """Start, say where, wait for a signal, stop."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    service = Service(settings)
    starting = asyncio.create_task(service.start())
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return
    waiting.cancel()
    await starting
    runtime_file = write_runtime_file(Path(settings.state_dir), service.url, service.token)
    try:
        say(f"\nJupyter Code Interpreter is ready:\n\n    {service.url}/?token={service.token}\n")
        await stopped.wait()
        say("Stopping: running code is ended, the record is finished.")
    finally:
        remove_runtime_file(runtime_file)
        await service.aclose()
