"""How the embedded gateway's fork server is: told at the start, in the log, and to whoever asks."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest

from interpreter.kernels.embedded import EmbeddedGateway
from interpreter.kernels.fetching import fetch
from interpreter.models import JSON
from interpreter.settings import Settings, listed

log = logging.getLogger(__name__)

START_TIMEOUT = 70.0
"""Seconds for the first word of it; a fork server that hangs is given up by the gateway before."""
REQUEST_TIMEOUT = 30.0
RETRY_DELAY = 1.0
OTHER_GATEWAY = "The fork server is not used: whether kernels are forked is the external gateway's matter."
NO_SANDBOX = "The fork server is not used: kernels run without a sandbox, and only there they are forked."


Check = Callable[[], Awaitable[tuple[bool, str]]]


class NoForkServer:
    """Where there is none; ``sentence`` says why, if one was asked for."""

    def __init__(self, sentence: str = "") -> None:
        self._sentence = sentence

    @property
    def readiness(self) -> Mapping[str, Check]:
        """Checks for ``/readyz``. Kernels start without it too, so it is never a failure."""
        return {"fork_server": self._check} if self._sentence else {}

    async def start(self) -> None:
        """Tell the log."""
        if self._sentence:
            log.warning("%s", self._sentence)

    async def aclose(self) -> None:
        """Nothing."""

    async def _check(self) -> tuple[bool, str]:
        return True, self._sentence


@dataclass
class ForkServer:
    """Follows the state of the fork server of ``gateway``; owns a task from `start` to `aclose`."""

    gateway: EmbeddedGateway
    imports: tuple[str, ...]
    _sentence: str = "The fork server is starting."
    _known: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    @property
    def readiness(self) -> Mapping[str, Check]:
        """Checks for ``/readyz``. Kernels start without it too, only slower, so it is never a failure."""
        return {"fork_server": self._check}

    async def start(self) -> None:
        """Returns when the fork server is up, or is known not to come up, so that the first sessions have it."""
        self._task = asyncio.create_task(self._follow(), name="fork server's state")
        try:
            await asyncio.wait_for(self._known.wait(), START_TIMEOUT)
        except TimeoutError:
            log.warning("%s", self._sentence)

    async def aclose(self) -> None:
        """Follow it no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _check(self) -> tuple[bool, str]:
        return True, self._sentence

    async def _follow(self) -> None:
        client = AsyncHTTPClient(force_instance=True)
        number = 0
        try:
            while True:
                try:
                    state = await self._fetch(client, number)
                except (OSError, HTTPError, ValueError):
                    number = 0  # of another gateway then
                    self._sentence = "The fork server can't be asked: the gateway does not answer."
                    await asyncio.sleep(RETRY_DELAY)
                    continue
                if state["number"] != number:
                    number = state["number"]
                    self._take(state)
        finally:
            client.close()

    async def _fetch(self, client: AsyncHTTPClient, number: int) -> JSON:
        request = HTTPRequest(
            f"{self.gateway.url}/api/fork_server?after={number}",
            headers={"Authorization": f"token {self.gateway.token}"},
            request_timeout=REQUEST_TIMEOUT,
        )
        state: JSON = json.loads((await fetch(client, request)).body)
        return state

    def _take(self, state: JSON) -> None:
        self._sentence = sentence(state, self.imports)
        log.log(logging.INFO if state["state"] == "on" else logging.WARNING, "%s", self._sentence)
        if state["state"] != "starting":
            self._known.set()


def make_fork_server(
    settings: Settings, embedded: EmbeddedGateway | None, *, sandboxed: bool
) -> ForkServer | NoForkServer:
    """What the settings ask for, as far as it can be had."""
    if not settings.fork_server:
        return NoForkServer()
    if embedded is None:
        return NoForkServer(OTHER_GATEWAY)
    if not sandboxed:
        return NoForkServer(NO_SANDBOX)
    return ForkServer(embedded, listed(settings.fork_server_imports))


def sentence(state: JSON, imports: tuple[str, ...]) -> str:
    """What a state of the gateway's fork server comes to, for people."""
    if state["state"] == "on":
        missing = state["missing"]
        has = ", ".join(name for name in imports if name not in missing) or "nothing but the kernel itself"
        note = f" Not installed for kernels: {', '.join(missing)}." if missing else ""
        return f"The fork server is on: kernels are forked from a process that has imported {has}.{note}"
    if state["state"] == "starting":
        return f"The fork server is being started again: {state['reason']}. Sessions go on."
    if state["state"] == "failed":
        return f"The fork server does not work, so kernels are started the slow way: {state['reason']}."
    return "The fork server is off: the kernelspec names another provisioner, or turns it off."
