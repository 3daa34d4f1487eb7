"""Configuration of a kernel gateway for the code interpreter.

The service's own gateway uses it. For a gateway of your own: install jupyter-code-interpreter beside
jupyter_kernel_gateway and run

    KG_AUTH_TOKEN=… jupyter kernelgateway --config=path/to/jupyter_kernel_gateway_config.py

Options of the command line win over this file. See README.md in this folder for the reasons.
"""

import os

from jupyter_core.paths import jupyter_runtime_dir

c = get_config()  # type: ignore[name-defined]  # noqa: F821

# Routes, kernel management, websockets: classes that mend what Kernel Gateway 3.0 gets wrong
c.KernelGatewayApp.api = "interpreter.gateway_extension.personality"
c.KernelGatewayApp.kernel_manager_class = "interpreter.gateway_extension.manager.AllKernelsManager"
c.KernelGatewayApp.kernel_websocket_connection_class = (
    "interpreter.gateway_extension.connection.KernelConnection"
)
c.KernelGatewayApp.identity_provider_class = "interpreter.gateway_extension.handlers.HeaderIdentityProvider"
c.JupyterWebsocketPersonality.list_kernels = True

# If the port is taken, fail instead of listening on another one.
c.KernelGatewayApp.port_retries = 0

# Output is bounded by size, never dropped by rate.
c.KernelConnection.limit_rate = False

# A kernel that does not answer in this time (seconds) has failed to start.
c.MappingKernelManager.kernel_info_timeout = 15

# A dead kernel is reported as dead, and not replaced behind the client's back. One whose process is not on this machine,
# so that nothing tells of its end, is looked after twice a second.
c.KernelRestarter.restart_limit = 0
c.KernelRestarter.time_to_dead = 0.5

# Seconds for a polite end: SIGTERM follows after half of them, SIGKILL after the other half.
c.KernelManager.shutdown_wait_time = 2.0

# Unix sockets instead of TCP ports: nobody else can connect, and no port is ever taken already.
# The path of a socket may have 107 bytes, of which 50 are the kernel's id.
if len(os.fsencode(jupyter_runtime_dir())) <= 57:
    c.KernelManager.transport = "ipc"

# The service culls. This is for kernels whose service went away: nobody connected for an hour.
c.MappingKernelManager.cull_idle_timeout = 3600
c.MappingKernelManager.cull_interval = 300
c.MappingKernelManager.cull_connected = False
