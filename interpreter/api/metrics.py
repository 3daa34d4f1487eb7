"""Counts and times of requests, by route pattern."""

from prometheus_client import CollectorRegistry, Counter, Histogram
from tornado.web import RequestHandler

_BUCKETS = (0.005, 0.02, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class RequestMetrics:
    """Registers itself once in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "interpreter_http_requests",
            "Answered requests.",
            ("method", "route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "interpreter_http_request_seconds",
            "Time from a request's head to the end of its answer.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=registry,
        )

    def observe(self, handler: RequestHandler) -> None:
        """Count a finished request."""
        method = handler.request.method
        if method not in RequestHandler.SUPPORTED_METHODS:
            method = "other"  # a label must not grow with what clients invent
        route = getattr(handler, "route", "")
        self._requests.labels(method, route, str(handler.get_status())).inc()
        self._seconds.labels(method, route).observe(handler.request.request_time())
