"""The kernels behind the gateway: the only code that knows the gateway's URL and token."""
