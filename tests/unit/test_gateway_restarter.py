"""The end of a kernel's process is noticed when it comes, and only while the kernel is watched."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tornado.ioloop import IOLoop

from interpreter.gateway_extension.restarter import PromptRestarter


class Manager:
    """Of a kernel that is any process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.provisioner = SimpleNamespace(pid=self.process.pid)

    async def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def manager() -> Iterator[Manager]:
    made = Manager()
    yield made
    made.end()


def restarter(manager: Manager) -> PromptRestarter:
    made = PromptRestarter(loop=IOLoop.current(), restart_limit=0, time_to_dead=3600.0)
    made._trait_values["kernel_manager"] = manager  # upstream's trait asks for a whole one
    return made


async def test_the_end_of_the_process_is_told_at_once(manager: Manager) -> None:
    watching, dead = restarter(manager), asyncio.Event()
    watching.add_callback(dead.set, "dead")
    watching.start()
    manager.process.kill()
    await asyncio.wait_for(dead.wait(), 30)


async def test_one_that_has_ended_before_is_told_too(manager: Manager) -> None:
    watching, dead = restarter(manager), asyncio.Event()
    watching.time_to_dead = 0.01  # the process was waited for, so nothing but asking tells
    watching.add_callback(dead.set, "dead")
    manager.end()
    watching.start()
    await asyncio.wait_for(dead.wait(), 30)


async def test_who_stops_watching_hears_nothing(manager: Manager) -> None:
    quiet, watching, told = restarter(manager), restarter(manager), asyncio.Event()
    quiet.add_callback(lambda: pytest.fail("told"), "dead")
    watching.add_callback(told.set, "dead")
    quiet.start()
    watching.start()
    quiet.stop()
    manager.process.kill()
    await asyncio.wait_for(told.wait(), 30)
