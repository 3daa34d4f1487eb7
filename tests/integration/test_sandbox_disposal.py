"""Whatever a session leaves, and however long its end takes: other sessions start, go on and end meanwhile."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from sandbox_kit import new_workspace, write_kernelspec

from interpreter.gateway_extension.sandbox import removal, workspace
from interpreter.gateway_extension.sandbox.places import Place
from interpreter.gateway_extension.sandbox.removal import remove_tree
from interpreter.gateway_extension.sandbox.sandbox import Sandbox
from interpreter.gateway_extension.sandbox.workspace import measure

FEW = 2  # threads of the event loop
PATIENCE = 60.0


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    """Starts a kernel in the sandbox."""
    few = ThreadPoolExecutor(FEW)
    asyncio.get_running_loop().set_default_executor(few)
    write_kernelspec(tmp_path, {})
    managers: list[AsyncKernelManager] = []

    async def start_one() -> AsyncKernelManager:
        specs = KernelSpecManager(kernel_dirs=[str(tmp_path)], ensure_native_kernel=False)
        manager = AsyncKernelManager(kernel_name="boxed", kernel_spec_manager=specs)
        await manager.start_kernel(env=dict(os.environ), cwd=str(new_workspace()))
        managers.append(manager)
        return manager

    yield start_one
    for manager in managers:
        if manager.has_kernel:
            await manager.shutdown_kernel(now=True)
    few.shutdown()


@contextlib.asynccontextmanager
async def client_of(manager: AsyncKernelManager) -> AsyncIterator[AsyncKernelClient]:
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=PATIENCE)
        yield client
    finally:
        client.stop_channels()


async def use_and_end(manager: AsyncKernelManager) -> None:
    """All that the client of a normal session does."""
    async with client_of(manager) as client:
        running = asyncio.Event()

        def see(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                running.set()

        code = "import threading; print('runs', flush=True); threading.Event().wait()"
        run = asyncio.ensure_future(client.execute_interactive(code, output_hook=see, allow_stdin=False))
        await running.wait()
        await manager.interrupt_kernel()
        assert (await run)["content"]["ename"] == "KeyboardInterrupt"
    assert await manager.is_alive()
    await manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("step", ["close", "release"])
async def test_nobody_waits_for_the_end_of_others(
    start: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    kind: type[Sandbox] | type[Place] = Sandbox if step == "close" else Place
    may_end, slow, begun, end = threading.Event(), set[Path](), set[Path](), getattr(kind, step)

    def slowly(one: Any) -> None:
        place: Place = one.place if step == "close" else one
        if place.workspace in slow:
            begun.add(place.workspace)
            assert may_end.wait(2 * PATIENCE)
        end(one)

    monkeypatch.setattr(kind, step, slowly)
    try:
        async with asyncio.timeout(PATIENCE):
            hostile = [await start() for _ in range(FEW + 1)]
            normal = await start()
            slow |= {manager.provisioner._place.workspace for manager in hostile}
            ending = [asyncio.ensure_future(one.shutdown_kernel(now=True)) for one in hostile]
            while len(begun) < FEW:
                await asyncio.sleep(0)
            await use_and_end(normal)
            await use_and_end(await start())
            assert not any(one.done() for one in ending)
    finally:
        may_end.set()
    await asyncio.gather(*ending)


class Slow:
    """Stands for a step of a walk or removal: in a thread that has taken ``many`` it waits to be let on."""

    def __init__(self, step: Callable[..., Any], many: int) -> None:
        self.step = step
        self.many = many
        self.may_go_on = threading.Event()
        self.waits = threading.Semaphore(0)
        self._steps = threading.local()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        taken = self._steps.taken = getattr(self._steps, "taken", 0) + 1
        if taken == self.many + 1:
            self.waits.release()
            assert self.may_go_on.wait(PATIENCE)
        return self.step(*args, **kwargs)


def filled(path: Path, files: int) -> Path:
    path.mkdir()
    for number in range(files):
        (path / str(number)).touch()
    return path


def in_threads(work: Callable[[Path], object], paths: list[Path]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    return threads


def measured(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return measure(fd, max_files=10**6).files
    finally:
        os.close(fd)


def test_a_small_workspace_is_measured_while_large_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session ends with its watchdog, which would wait for the others' counts."""
    slow = Slow(workspace._status, 10)
    monkeypatch.setattr(workspace, "LARGE", 5, raising=False)
    monkeypatch.setattr(workspace, "_status", slow)
    threads = in_threads(measured, [filled(tmp_path / f"large{number}", 20) for number in range(2)])
    small: list[threading.Thread] = []
    try:
        for _ in threads:
            assert slow.waits.acquire(timeout=PATIENCE)
        small += in_threads(measured, [filled(tmp_path / "small", 4)])
        small[0].join(PATIENCE / 4)
        assert not small[0].is_alive()
    finally:
        slow.may_go_on.set()
        for thread in (*threads, *small):
            thread.join()


def test_a_small_folder_is_removed_while_large_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(removal._unlink, 10)
    monkeypatch.setattr(removal, "LARGE", 5)
    monkeypatch.setattr(removal, "_unlink", slow)
    large = [filled(tmp_path / f"large{number}", 20) for number in range(4)]
    threads = in_threads(remove_tree, large)
    try:
        for _ in range(2):
            assert slow.waits.acquire(timeout=PATIENCE)
        assert sum(len(os.listdir(path)) for path in large) >= 2 * 10 + 2 * 15  # the other two wait for these
        remove_tree(filled(tmp_path / "small", 4))
    finally:
        slow.may_go_on.set()
        for thread in threads:
            thread.join()
    assert os.listdir(tmp_path) == []
