"""The gateway's ``api`` module: name it in ``KernelGatewayApp.api``."""

from typing import Any

from jupyter_server.utils import url_path_join
from kernel_gateway.jupyter_websocket import JupyterWebsocketPersonality

from interpreter.gateway_extension.handlers import ROUTES


class InterpreterPersonality(JupyterWebsocketPersonality):  # type: ignore[misc]
    """Kernel Gateway's websocket personality with this package's handlers."""

    def create_request_handlers(self) -> list[tuple[Any, ...]]:
        """The routes below ``base_url``."""
        return [(url_path_join("/", self.parent.base_url, path), handler) for path, handler in ROUTES]

    async def shutdown(self) -> None:
        """Ends all kernels at once; upstream ends one after the other."""
        await self.parent.kernel_manager.end_all()


def create_personality(*args: Any, **kwargs: Any) -> InterpreterPersonality:
    """Called by Kernel Gateway at its start."""
    return InterpreterPersonality(*args, **kwargs)
