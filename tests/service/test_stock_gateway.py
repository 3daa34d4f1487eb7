"""The same parts against a stock Kernel Gateway with real kernels, through a line that can be cut."""

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio
from runs_kit import ALICE, stack
from stock_servers import START_TIMEOUT, reserved_port

from interpreter.errors import GatewayError
from interpreter.kernels.gateway import Gateway
from interpreter.kernels.target import GatewayTarget
from interpreter.models import RunStatus
from interpreter.runs.execute import SOCKET_LOST

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Line:
    """A TCP relay whose connections can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.close()

    async def aclose(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self._writers.discard(writer)


class Stock:
    """The gateway's process; `target` leads to it through the line."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._token = secrets.token_hex(16)
        self._port = port
        self.line = Line(self._port)
        self.target = GatewayTarget("")
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        options = {"port": self._port, "auth_token": self._token, "port_retries": 0}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(
                "-m",
                "kernel_gateway",
                *(f"--KernelGatewayApp.{name}={value}" for name, value in options.items()),
            ),
            cwd=self._folder,
            env={**os.environ, "JUPYTER_RUNTIME_DIR": str(self._folder / "runtime")},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        direct = Gateway(self._target(self._port))
        async with asyncio.timeout(START_TIMEOUT):
            while True:
                try:
                    await direct.kernelspecs()
                    break
                except GatewayError:
                    await asyncio.sleep(0.05)
        direct.close()

    def _target(self, port: int) -> GatewayTarget:
        return GatewayTarget(f"http://127.0.0.1:{port}", auth="token", token=self._token)

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def terminate(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    @classmethod
    @asynccontextmanager
    async def opened(cls, folder: Path) -> AsyncIterator["Stock"]:
        with reserved_port() as port:
            stock = cls(folder, port)
            stock.target = stock._target(await stock.line.start())
            try:
                await stock.start()
                yield stock
            finally:
                await stock.terminate()
                await stock.line.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stock(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stock]:
    """One for all tests; who kills it starts it again."""
    async with Stock.opened(tmp_path_factory.mktemp("stock")) as opened:
        yield opened


LINES = "import time\nfor i in range(100):\n    print(i, flush=True)\n    time.sleep(0.02)"


async def test_not_a_line_is_lost_without_a_word_when_the_line_is_cut(stock: Stock, tmp_path: Path) -> None:
    async with stack(tmp_path, target=stock.target) as parts:
        session = await parts.session()
        for _ in range(2):
            active = await parts.submit(session, LINES)
            events = active.events()
            async for event in events:
                if event.kind == "output":
                    break
            await events.aclose()
            stock.line.cut()
            run = await parts.ended(active)
            assert run.status is RunStatus.OK
            # A stock gateway loses what is on its way until it notices; it keeps what comes while we are away.
            lost = sorted(set(range(100)) - set(map(int, run.folded.stdout.split())))
            assert all(after == before + 1 for before, after in pairwise(lost))
            assert not {0, 99} & set(lost)
            assert run.notices == (SOCKET_LOST,) or (not lost and run.notices == ())


@pytest.mark.parametrize(
    "code",
    ["import os\nos._exit(3)", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "exit()"],
    ids=["_exit", "SIGKILL", "exit"],
)
async def test_a_death_is_told_and_the_next_run_works(stock: Stock, tmp_path: Path, code: str) -> None:
    async with stack(tmp_path, target=stock.target) as parts:
        session = await parts.session()
        # What ZeroMQ's thread has not sent yet dies with the kernel, so that gets time.
        run = await parts.run(session, f"import time\nprint('last', flush=True)\ntime.sleep(0.5)\n{code}")
        assert (run.status, run.folded.stdout, run.kernel_restarted) == (
            RunStatus.KERNEL_DIED,
            "last\n",
            True,
        )
        assert run.notices[0].startswith("The kernel")
        run = await parts.run(session, "1 + 1")
        assert (run.status, run.folded.result, run.kernel_restarted) == (RunStatus.OK, "2", True)


async def test_code_that_hardly_stops_is_stopped(stock: Stock, tmp_path: Path) -> None:
    async with stack(tmp_path, target=stock.target, interrupt_grace=2.0) as parts:
        session = await parts.session()
        await parts.run(session, "x = 1")
        for code, lost in [
            ("import asyncio\nprint('begun')\nawait asyncio.sleep(60)", False),
            ("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)", True),
        ]:
            run = await parts.run(session, code, timeout=1.0)
            assert (run.status, run.kernel_restarted) == (RunStatus.TIMEOUT, lost)
        run = await parts.run(session, "x")
        assert (run.folded.error.ename, run.kernel_restarted) == ("NameError", True)


async def test_a_killed_gateway_ends_the_run_and_the_session_goes_on_later(
    stock: Stock, tmp_path: Path
) -> None:
    async with stack(tmp_path, target=stock.target) as parts:
        session = await parts.session()
        active = await parts.submit(session, "import time\nprint('begun', flush=True)\ntime.sleep(60)")
        async for event in active.events():
            if event.kind == "output":
                await stock.kill()
        run = active.run
        assert (run.status, run.folded.stdout) == (RunStatus.KERNEL_DIED, "begun\n")
        await stock.start()
        run = await parts.run(session, "1 + 1")
        assert (run.status, run.folded.result, run.kernel_restarted) == (RunStatus.OK, "2", True)


async def test_a_session_outlives_the_service(stock: Stock, tmp_path: Path) -> None:
    async with stack(tmp_path, target=stock.target) as parts:
        session = await parts.session()
        await parts.run(session, "x = 5")
        active = await parts.submit(session, "import time\nprint('begun', flush=True)\ntime.sleep(60)")
        async for event in active.events():
            if event.kind == "output":
                break
    assert (active.run.status, active.run.folded.stdout) == (RunStatus.ABORTED, "begun\n")
    async with stack(tmp_path, target=stock.target, recover=True) as parts:
        run = await parts.run(parts.sessions.get(ALICE, session.id), "x")
        assert (run.folded.result, run.kernel_restarted) == ("5", False)
