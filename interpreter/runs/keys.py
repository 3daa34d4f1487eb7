"""Idempotency keys: the same key never runs code twice."""

import asyncio
import hashlib
import string
from collections import OrderedDict
from dataclasses import dataclass

from interpreter.errors import ConflictError
from interpreter.models import RunRequest
from interpreter.record import Recorder
from interpreter.runs.active import ActiveRun, RecordedRun

KEPT_KEYS = 10_000

AcceptedRun = ActiveRun | RecordedRun
_LETTERS = string.ascii_letters + string.digits


@dataclass(slots=True)
class KnownKey:
    """A key in use: the task that accepts its run, then the run's id."""

    digest: str
    task: "asyncio.Task[AcceptedRun] | None"
    run_id: str = ""
    waiting: int = 0
    """Clients that wait for the task, beside the one that began it."""


class IdempotencyKeys:
    """The newest keys, each per token: ``(token id, key)``. The record knows those of all sessions."""

    def __init__(self) -> None:
        self._keys: OrderedDict[tuple[str, str], KnownKey] = OrderedDict()

    def find(self, key: tuple[str, str], digest: str) -> KnownKey | None:
        """The earlier use of the key. Raises ConflictError when that was another request."""
        known = self._keys.get(key)
        if known is not None:
            refuse_other(known.digest, digest)
        return known

    def add(self, key: tuple[str, str], digest: str, task: "asyncio.Task[AcceptedRun]") -> KnownKey:
        """Take the key before anything is awaited; it is free again when nothing gets accepted."""
        known = self._keys[key] = KnownKey(digest, task)
        task.add_done_callback(lambda done: self._settle(key, done))
        return known

    def _settle(self, key: tuple[str, str], done: "asyncio.Task[AcceptedRun]") -> None:
        if done.cancelled() or done.exception() is not None:
            self._keys.pop(key, None)
            return
        self._keys[key] = KnownKey(self._keys[key].digest, None, done.result().run.id)
        settled = [k for k in list(self._keys)[: len(self._keys) - KEPT_KEYS] if self._keys[k].task is None]
        for old in settled:
            del self._keys[old]


def refuse_other(known: str | None, digest: str) -> None:
    """ConflictError unless both are the digest of the same request."""
    if known != digest:
        raise ConflictError(
            "This Idempotency-Key was used for another request; send a new key.",
            code="idempotency_key_reused",
        )


def digest_of(place: str, request: RunRequest) -> str:
    """What must be equal for two requests with one key to be the same; ``place`` is where it runs."""
    text = "\0".join([place, request.code, str(request.timeout), request.tool_call_id or ""])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


async def find_recorded(recorder: Recorder, session_id: str, key: str, digest: str) -> str | None:
    """The id of the run that the record knows for a session's key; ConflictError for another request."""
    found = await recorder.find_idempotency_key(session_id, key)
    if found is None:
        return None
    refuse_other(found[1], digest)
    return found[0]


async def find_one_off(recorder: Recorder, token_id: str, key: str, digest: str) -> tuple[str | None, str]:
    """``(run id, session id)`` of the one-off run with this key; no run id when it has not been run.

    The id of a keyed one-off's session follows from the key and a secret of the record, so that the
    record finds it without a search, also after a restart, and nobody can guess it. An attempt that was refused leaves a session without runs; the next id follows.
    """
    attempt = 0
    while True:
        session_id = _readable(recorder.unguessable(f"{token_id}\0{key}\0{attempt}"))
        if await recorder.find_session(session_id) is None:
            return None, session_id
        run_id = await find_recorded(recorder, session_id, key, digest)
        if run_id is not None:
            return run_id, session_id
        attempt += 1


def _readable(secret: bytes) -> str:
    """A session id of 21 letters and digits."""
    number = int.from_bytes(secret)
    letters = []
    for _ in range(21):
        number, place = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[place])
    return "".join(letters)
