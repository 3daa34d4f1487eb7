"""Whether the service lives, whether it can work, and its numbers."""

import asyncio
from typing import ClassVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from interpreter.api.base import BaseHandler
from interpreter.api.errors import error_body
from interpreter.api.operations import Access, Answer, Operation, json_answer
from interpreter.api.services import Check
from interpreter.errors import InterpreterError, UnavailableError
from interpreter.models import JSON

_TAG = "Service"
_CHECK_TIMEOUT = 5.0


class HealthHandler(BaseHandler):
    """``/healthz``"""

    operations: ClassVar = {
        "GET": Operation(
            "getHealth",
            "Whether the process lives",
            _TAG,
            {200: json_answer("It lives.", "Health")},
            Access.PUBLIC,
        )
    }

    async def do_get(self) -> None:
        self.reply({"status": "ok"})


class ReadinessHandler(BaseHandler):
    """``/readyz``"""

    operations: ClassVar = {
        "GET": Operation(
            "getReadiness",
            "Whether every part can work",
            _TAG,
            {
                200: json_answer("Every check passed.", "Readiness"),
                503: json_answer("A check failed; its detail says why.", "Readiness"),
            },
        )
    }

    async def do_get(self) -> None:
        checks = self.services.readiness
        results = await asyncio.gather(*(_result(check) for check in checks.values()))
        parts: JSON = dict(zip(checks, results, strict=True))
        failed = [name for name, result in parts.items() if not result["ok"]]
        if not failed:
            self.reply({"status": "ok", "checks": parts})
            return
        error = UnavailableError(f"Not ready: {', '.join(failed)}.", code="not_ready")
        self.set_header("Retry-After", "5")
        self.reply({"status": "unavailable", "checks": parts, **error_body(error, self.request_id)}, 503)


class MetricsHandler(BaseHandler):
    """``/metrics``"""

    operations: ClassVar = {
        "GET": Operation(
            "getMetrics",
            "Numbers for Prometheus",
            _TAG,
            {200: Answer("The text exposition format.", {"text/plain": None})},
            Access.REVIEW,
        )
    }

    async def do_get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(self.services.registry))


async def _result(check: Check) -> JSON:
    try:
        ok, detail = await asyncio.wait_for(check(), _CHECK_TIMEOUT)
    except TimeoutError:
        ok, detail = False, f"It did not answer within {_CHECK_TIMEOUT:g} seconds."
    except InterpreterError as error:
        ok, detail = False, error.message
    return {"ok": ok, "detail": detail}
