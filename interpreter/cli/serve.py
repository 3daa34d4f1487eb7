"""``jupyter interpreter serve``: run the service until a signal ends it."""

import asyncio
import contextlib
import ctypes
import signal
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from interpreter.app import InterpreterApp
from interpreter.cli.output import say
from interpreter.errors import InterpreterError, SettingsError
from interpreter.eventloop import new_event_loop
from interpreter.runtime_file import remove_runtime_file, write_runtime_file
from interpreter.service import Service
from interpreter.settings import Settings

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h


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
        give_memory_back()
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(serve(self.settings()))
        except (SettingsError, InterpreterError) as error:
            self.fail(str(error))


def give_memory_back() -> None:
    """Have the C library return large outputs to the system as soon as they are done with.

    Once it has freed a large block, glibc would keep blocks of that size, in as many arenas as there
    are threads (mallopt(3)): after a flood of output the service would stay large.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 256 * 1024)
        libc.mallopt(_M_ARENA_MAX, 2)


def _greeting(service: Service) -> str:
    """Where the service is, and whether it can execute code."""
    address = f"{service.url}/?token={quote(service.token, safe='')}"
    if not service.gateway_problem:
        return f"\nJupyter Code Interpreter is ready:\n\n    {address}\n"
    return (
        f"\nJupyter Code Interpreter runs, but NO CODE CAN BE EXECUTED until its gateway can be used:\n\n"
        f"    {address}\n\n{service.gateway_problem}\n"
        "When the gateway comes up, nothing is to be done; a changed setting needs a new start.\n"
    )


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
    runtime_file = write_runtime_file(Path(settings.state_dir), service.url, service.local_token)
    try:
        say(_greeting(service))
        await stopped.wait()
        say("Stopping: running code is ended, the record is finished.")
    finally:
        remove_runtime_file(runtime_file)
        await service.aclose()
