"""The service beside the baseline: the same work through REST, with auth and the record on."""

import asyncio
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from bench import raw
from bench.connection import Connection
from bench.report import Row

SYSTEM = "service (REST)"
_ADDRESS = re.compile(r"http://([^\s/]+)/\?token=(\S+)")


class Client:
    """One kept-alive connection to the service."""

    def __init__(self, address: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=120)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer; RuntimeError when it is an error."""
        self._connection.request("POST", path, json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        data: dict[str, Any] = json.loads(answer.read())
        if answer.status >= 300:
            raise RuntimeError(f"{path}: {data['message']}")
        return data

    def new_session(self) -> str:
        """The id of a session whose kernel is ready."""
        return str(self.post("/v1/sessions", {})["id"])

    def run(self, session_id: str, code: str, **fields: Any) -> dict[str, Any]:
        """The run when it has ended."""
        return self.post(f"/v1/sessions/{session_id}/runs", {"code": code, **fields})

    def metric(self, name: str) -> float:
        """One number of ``/metrics``."""
        self._connection.request("GET", "/metrics", headers=self._headers)
        lines = self._connection.getresponse().read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def drain(self, path: str, accept: str) -> int:
        """Read an answer piece by piece; its bytes."""
        self._connection.request("GET", path, headers={**self._headers, "Accept": accept})
        answer, size = self._connection.getresponse(), 0
        while piece := answer.read(1 << 16):
            size += len(piece)
        return size

    def delete(self, session_id: str) -> None:
        """End a session."""
        self._connection.request("DELETE", f"/v1/sessions/{session_id}", headers=self._headers)
        self._connection.getresponse().read()


class Service:
    """A running service in folders of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: str, token: str, ready: float) -> None:
        self.process = psutil.Process(process.pid)
        self.address, self.token, self.seconds_to_ready = address, token, ready

    def client(self) -> Client:
        return Client(self.address, self.token)

    def connection(self, session_id: str) -> Connection:
        """One on the event loop, for a session."""
        return Connection(self.address, self.token, session_id)

    def memory(self) -> tuple[float, float]:
        """Resident MB of the service, and of its gateway without the kernels."""
        gateway = [p for p in self.process.children(recursive=True) if is_gateway(p)]
        return _mb(self.process), sum(_mb(p) for p in gateway)


def is_gateway(process: psutil.Process) -> bool:
    """Whether a child of the service is its gateway, or the gateway's supervisor."""
    return "gateway" in " ".join(process.cmdline())


def _mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss / 1e6)


@contextmanager
def running_service(**settings: str) -> Iterator[Service]:
    """A service for one ``with`` block; keyword arguments are settings."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        environment = {
            **os.environ,
            "INTERPRETER_PORT": "0",
            "INTERPRETER_STATE_DIR": f"{folder}/state",
            "INTERPRETER_RECORD_DIR": f"{folder}/notebooks",
            "INTERPRETER_MAX_SESSIONS": "300",
            **{f"INTERPRETER_{name.upper()}": value for name, value in settings.items()},
        }
        begin = time.perf_counter()
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "interpreter", "serve"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        found = next(filter(None, (_ADDRESS.search(line.decode()) for line in process.stdout)))
        try:
            yield Service(process, found[1], found[2], time.perf_counter() - begin)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            process.stdout.close()


async def latency(service: Service, runs: int) -> list[Row]:
    """Milliseconds of ``1+1``, raw and through REST in turn, so that all see the same machine."""
    client = service.client()
    session_id = client.new_session()
    seconds: dict[str, list[float]] = {raw.SYSTEM: [], raw.OWN_KERNEL: [], SYSTEM: []}
    async with raw.started_kernel() as stock, raw.started_kernel(stock=False) as own:
        for number in range(runs + raw.WARM_UP_RUNS):
            times = [time.perf_counter()]
            for kernel in (stock, own):
                await raw.run(kernel, "1+1")
                times.append(time.perf_counter())
            client.run(session_id, "1+1")
            times.append(time.perf_counter())
            if number >= raw.WARM_UP_RUNS:
                for measured, (begin, end) in zip(seconds.values(), pairwise(times), strict=True):
                    measured.append(end - begin)
    client.delete(session_id)
    return [
        Row("latency of 1+1, median", system, statistics.median(measured) * 1000, "ms", runs)
        for system, measured in seconds.items()
    ]


async def throughput(service: Service, sessions: int, runs: int) -> Row:
    """Runs per second of so many sessions at once, each from a connection of its own."""
    client = service.client()
    ids = [client.new_session() for _ in range(sessions)]
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(service.connection(one)) for one in ids]
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(_repeat(connection, runs))
        seconds = time.perf_counter() - begin
    for session_id in ids:
        client.delete(session_id)
    return Row(
        f"throughput, {sessions} kernels", SYSTEM, sessions * runs / seconds, "runs/s", sessions * runs
    )


async def _repeat(connection: Connection, runs: int) -> None:
    for _ in range(runs):
        await connection.run("1+1")


def cold_start(service: Service, starts: int) -> Row:
    """Seconds from no session to its first result."""
    client, seconds = service.client(), []
    for _ in range(starts):
        begin = time.perf_counter()
        session_id = client.new_session()
        client.run(session_id, "1+1")
        seconds.append(time.perf_counter() - begin)
        client.delete(session_id)
    return Row("cold start to first result, median", SYSTEM, statistics.median(seconds), "s", starts)
