"""Forked kernels: every claim about started ones holds for them too."""

from collections.abc import Iterator

import pytest
import sandbox_kit
from test_sandbox_attacks import *  # noqa: F403
from test_sandbox_crowds import *  # noqa: F403
from test_sandbox_holdings import *  # noqa: F403
from test_sandbox_life import *  # noqa: F403
from test_sandbox_limits import *  # noqa: F403
from test_sandbox_network import *  # noqa: F403
from test_sandbox_shared import *  # noqa: F403

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    sandbox_kit.DEFAULTS["fork_server"] = True
    yield
    del sandbox_kit.DEFAULTS["fork_server"]


def test_the_kernels_of_this_module_are_forked(kernel: Boxed, tight: Boxed, shared: Boxed) -> None:  # noqa: F405
    for one in (kernel, tight, shared):
        assert one.provisioner._sandbox.forking is not None
