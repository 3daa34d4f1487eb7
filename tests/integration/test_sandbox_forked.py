"""Forked kernels: every claim about started ones holds for them too."""

from collections.abc import Iterator

import pytest
import sandbox_kit
from test_sandbox_attacks import *  # noqa: F403
from test_sandbox_life import *  # noqa: F403
from test_sandbox_limits import *  # noqa: F403
from test_sandbox_network import *  # noqa: F403


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    sandbox_kit.DEFAULTS["fork_server"] = True
    yield
    del sandbox_kit.DEFAULTS["fork_server"]
