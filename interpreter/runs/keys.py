"""Idempotency keys: the same key never runs code twice."""

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from interpreter.errors import ConflictError
from interpreter.models import RunRequest
from interpreter.runs.active import ActiveRun

KEPT_KEYS = 10_000


@dataclass(slots=True)
class KnownKey:
    """A key in use: the task that accepts its run, then the run's id."""

    digest: str
    task: "asyncio.Task[ActiveRun] | None"
    run_id: str = ""


class IdempotencyKeys:
    """The newest keys, each per token: ``(token id, key)``."""

    def __init__(self) -> None:
        self._keys: OrderedDict[tuple[str, str], KnownKey] = OrderedDict()

    def find(self, key: tuple[str, str], digest: str) -> KnownKey | None:
        """The earlier use of the key. Raises ConflictError when that was another request."""
        known = self._keys.get(key)
        if known is not None and known.digest != digest:
            raise ConflictError(
                "This Idempotency-Key was used for another request; send a new key.",
                code="idempotency_key_reused",
            )
        return known

    def add(self, key: tuple[str, str], digest: str, task: "asyncio.Task[ActiveRun]") -> None:
        """Take the key before anything is awaited; it is free again when nothing gets accepted."""
        self._keys[key] = KnownKey(digest, task)
        task.add_done_callback(lambda done: self._settle(key, done))

    def _settle(self, key: tuple[str, str], done: "asyncio.Task[ActiveRun]") -> None:
        if done.cancelled() or done.exception() is not None:
            self._keys.pop(key, None)
            return
        self._keys[key] = KnownKey(self._keys[key].digest, None, done.result().run.id)
        while len(self._keys) > KEPT_KEYS:
            self._keys.popitem(last=False)


def digest_of(place: str, request: RunRequest) -> str:
    """What must be equal for two requests with one key to be the same; ``place`` is where it runs."""
    text = "\0".join([place, request.code, str(request.timeout), request.tool_call_id or ""])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
