"""Runs inside the kernel gateway's process, through the gateway's own configuration points.

`gateway_config/jupyter_kernel_gateway_config.py` names the classes of this package; nothing here is
imported by the service itself.
"""
