"""The pool of ready kernels: how many, how long, never twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from interpreter.errors import GatewayError
from interpreter.kernels.kernel import Kernel
from interpreter.kernels.pool import KernelPool, PoolLimits


class FakeKernel:
    def __init__(self) -> None:
        self.dead = False
        self.ended = False

    async def shutdown(self) -> None:
        self.ended = True


class Yard:
    """What the pool starts and drops, and a clock that tests turn."""

    def __init__(self) -> None:
        self.time = 0.0
        self.started: list[tuple[str, str]] = []
        self.dropped: list[str] = []
        self.failures = 0
        self.changed = asyncio.Event()

    async def start(self, kernel_name: str, session_id: str) -> Kernel:
        self.changed.set()
        if self.failures:
            self.failures -= 1
            raise GatewayError("The gateway answered with status 500.")
        self.started.append((kernel_name, session_id))
        return cast(Kernel, FakeKernel())

    async def drop(self, session_id: str) -> None:
        self.dropped.append(session_id)

    @asynccontextmanager
    async def pool(self, size: int, minimum: int = 0, max_age: float = 1000.0) -> AsyncIterator[KernelPool]:
        limits = PoolLimits(size, minimum, refill_interval=0.0, max_age=max_age)
        made = KernelPool(
            limits,
            default_kernel_name="python3",
            start=self.start,
            drop_workspace=self.drop,
            now=lambda: self.time,
        )
        made.start()
        try:
            yield made
        finally:
            await made.aclose()


async def settled(pool: KernelPool, count: int) -> None:
    """Let the pool's task run until so many kernels are ready."""
    async with asyncio.timeout(60):
        while pool.count() != count:
            await asyncio.sleep(0)


@pytest.fixture
def yard() -> Yard:
    return Yard()


async def test_a_pool_of_size_zero_starts_nothing(yard: Yard) -> None:
    async with yard.pool(0, minimum=5) as pool:
        assert pool.take("python3") is None
        await asyncio.sleep(0)
        assert yard.started == []
        assert pool.wanted("python3") == 0


async def test_the_minimum_of_the_default_kernel_is_ready_without_demand(yard: Yard) -> None:
    async with yard.pool(5, minimum=2) as pool:
        await settled(pool, 2)
        assert {name for name, _ in yard.started} == {"python3"}


async def test_a_kernel_is_handed_out_once_and_replaced(yard: Yard) -> None:
    async with yard.pool(1, minimum=1) as pool:
        await settled(pool, 1)
        first = pool.take("python3")
        assert first is not None
        assert pool.take("python3") is None
        await settled(pool, 1)
        second = pool.take("python3")
        assert second is not None
        assert second.session_id != first.session_id
        assert second.kernel is not first.kernel


async def test_demand_raises_the_number_up_to_the_size_and_fades(yard: Yard) -> None:
    async with yard.pool(3) as pool:
        for _ in range(10):
            pool.take("bash")
        await settled(pool, 3)
        assert {name for name, _ in yard.started} == {"bash"}
        yard.time += 301
        assert pool.wanted("bash") == 0


async def test_a_dead_kernel_is_not_handed_out(yard: Yard) -> None:
    async with yard.pool(1, minimum=1) as pool:
        await settled(pool, 1)
        ready = pool._ready["python3"][0]
        cast(Any, ready.kernel).dead = True
        assert pool.take("python3") is None


async def test_an_old_kernel_is_replaced(yard: Yard) -> None:
    async with yard.pool(1, minimum=1, max_age=60) as pool:
        await settled(pool, 1)
        old = yard.started[0][1]
        yard.time += 61
        pool.take("other")  # wakes the pool
        async with asyncio.timeout(60):
            while yard.dropped != [old]:
                await asyncio.sleep(0)


async def test_closing_ends_what_nobody_took(yard: Yard) -> None:
    async with yard.pool(2, minimum=2) as pool:
        await settled(pool, 2)
        kernels = [cast(Any, ready.kernel) for ready in pool._ready["python3"]]
    assert all(kernel.ended for kernel in kernels)
    assert sorted(yard.dropped) == sorted(session_id for _, session_id in yard.started)


async def test_a_failed_start_does_not_end_the_pool(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interpreter.kernels.pool.RETRY_DELAY", 0.0)
    yard.failures = 2
    async with yard.pool(1, minimum=1) as pool:
        await settled(pool, 1)
