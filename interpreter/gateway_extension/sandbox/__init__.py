"""Kernels in a sandbox: the provisioner (entry point ``bubblewrap-provisioner``) and what it is made of.

Depends on nothing else of this package, so that it works in any gateway.
"""

from interpreter.gateway_extension.sandbox.probe import Probe, enforced_limits, probe
from interpreter.gateway_extension.sandbox.provisioner import BubblewrapProvisioner

__all__ = ["BubblewrapProvisioner", "Probe", "enforced_limits", "probe"]
