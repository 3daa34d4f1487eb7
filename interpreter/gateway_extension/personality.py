"""The gateway's ``api`` module: name it in ``KernelGatewayApp.api``."""

from typing import Any

from jupyter_server.utils import url_path_join
from kernel_gateway.jupyter_websocket import JupyterWebsocketPersonality

from interpreter.gateway_extension.fork_server import (
    FORK_SERVER_PATH,
    ForkServerHandler,
    ForkServerKeeper,
)
from interpreter.gateway_extension.handlers import ROUTES


class InterpreterPersonality(JupyterWebsocketPersonality):  # type: ignore[misc]
    """Kernel Gateway's websocket personality with this package's handlers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fork_server = ForkServerKeeper(self.log)

    async def init_configurables(self) -> None:
        """Called once the event loop runs."""
        self.fork_server.start(self.parent.kernel_manager)
        await super().init_configurables()

    def create_request_handlers(self) -> list[tuple[Any, ...]]:
        """The routes below ``base_url``."""
        routes = [(FORK_SERVER_PATH, ForkServerHandler), *ROUTES]
        return [(url_path_join("/", self.parent.base_url, path), handler) for path, handler in routes]

    async def shutdown(self) -> None:
        """Ends all kernels at once; upstream ends one after the other."""
        await self.fork_server.aclose()
        await self.parent.kernel_manager.end_all()


def create_personality(*args: Any, **kwargs: Any) -> InterpreterPersonality:
    """Called by Kernel Gateway at its start."""
    return InterpreterPersonality(*args, **kwargs)
