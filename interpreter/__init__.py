"""A self-hosted code interpreter service backed by Jupyter kernels."""

__version__ = "0.1.0"
