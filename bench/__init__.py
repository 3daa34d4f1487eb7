"""Measurements: raw ZeroMQ as the baseline, and the service beside it."""
