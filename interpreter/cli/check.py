"""``jupyter interpreter check``: can the configured gateway be used?"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from interpreter.cli.command import Command, options_of
from interpreter.cli.output import can_write, say
from interpreter.errors import GatewayError, InterpreterError, SettingsError
from interpreter.kernels.embedded import EmbeddedGateway
from interpreter.kernels.gateway import Gateway
from interpreter.kernels.kernel import Kernel, KernelDiedError
from interpreter.kernels.target import GatewayTarget
from interpreter.messages import Message
from interpreter.settings import Settings

QUESTION, ANSWER = "1+1", "2"
GATEWAY_SETTINGS = (
    "gateway_url",
    "gateway_auth",
    "gateway_token",
    "gateway_password",
    "gateway_ca_file",
    "gateway_client_cert",
    "gateway_client_key",
    "gateway_validate_cert",
    "gateway_connect_timeout",
    "gateway_request_timeout",
    "kernel_name",
    "kernel_env_dir",
    "kernel_start_timeout",
)


class CheckApp(Command):
    """Look whether the configured gateway can be used."""

    description = """Look whether the configured gateway can be used: ask it, start a kernel, run 1+1, end it.

    Without gateway_url the gateway that the service would start for itself is started and looked at.
    Each step prints one sentence; the exit code is 0 when all is well and 1 otherwise.
    """
    examples = """
    jupyter interpreter check
    INTERPRETER_GATEWAY_TOKEN=... jupyter interpreter check --gateway-url=https://kernels.example.org/base
    """
    aliases: ClassVar[dict[Any, Any]] = options_of(*GATEWAY_SETTINGS)
    flags: ClassVar[dict[Any, Any]] = {key: flag for key, flag in Command.flags.items() if key != "json"}

    async def main(self, settings: Settings) -> int:
        """Check step by step."""
        good, bad = ("✓", "✗") if can_write(sys.stdout, "✓✗") else ("ok:", "FAILED:")
        try:
            async with opened_gateway(settings) as gateway:
                if not settings.gateway_url:
                    say(f"{good} The embedded gateway starts.")
                await _check(gateway, settings, lambda sentence: say(f"{good} {sentence}"))
        except KernelDiedError as error:
            say(f"{bad} {error.death.sentence}")
        except (SettingsError, InterpreterError) as error:
            say(f"{bad} {error}")
        else:
            return 0
        return 1


@asynccontextmanager
async def opened_gateway(settings: Settings) -> AsyncIterator[Gateway]:
    """The configured gateway; when there is none, an embedded one in a folder that is removed afterwards.

    Raises SettingsError and UnavailableError.
    """
    if settings.gateway_url:
        gateway = Gateway(GatewayTarget.from_settings(settings))
        try:
            yield gateway
        finally:
            await gateway.settle()
            gateway.close()
        return
    with tempfile.TemporaryDirectory(prefix="interpreter-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        embedded = EmbeddedGateway(
            settings, state_dir=root / "state", workspace_root=root / "workspaces", on_exit=lambda: None
        )
        try:
            await embedded.start()
            gateway = Gateway(embedded.target)
            try:
                yield gateway
            finally:
                await gateway.settle()
                gateway.close()
        finally:
            await embedded.aclose()


async def _check(gateway: Gateway, settings: Settings, report: Callable[[str], None]) -> None:
    """Report a sentence for each thing that works."""
    report(await gateway.check(settings.kernel_name))
    began = time.monotonic()
    kernel = await Kernel.start(gateway, settings.kernel_name, timeout=settings.kernel_start_timeout)
    try:
        report(f"A kernel of {settings.kernel_name} starts, in {time.monotonic() - began:.1f} seconds.")
        took = await _ask(kernel, settings.kernel_start_timeout)
        report(f"It computes: {QUESTION} gives {ANSWER}, in {took * 1000:.0f} milliseconds.")
    finally:
        await kernel.shutdown()
    if await gateway.has_kernel(kernel.id):
        raise GatewayError("The gateway did not end the kernel; look at the gateway's log.")
    report("The kernel was ended. The gateway can be used.")


async def _ask(kernel: Kernel, timeout: float) -> float:
    """The seconds that the answer took. Raises GatewayError when it is wrong or does not come."""
    texts: list[str] = []

    def listen(message: Message) -> None:
        data = message.content.get("data")
        if isinstance(data, dict):
            texts.append(str(data.get("text/plain")))

    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout):
            execution = kernel.execute(QUESTION, listen)
            await execution.wait()
    except TimeoutError as error:
        raise GatewayError(
            f"The kernel starts, but did not answer within kernel_start_timeout ({timeout:g} seconds)."
        ) from error
    if (execution.reply or {}).get("status") != "ok" or not any(ANSWER in text for text in texts):
        raise GatewayError(
            f"The kernel starts, but does not answer {QUESTION} with {ANSWER}; check the kernelspec of kernel_name."
        )
    return time.monotonic() - began
