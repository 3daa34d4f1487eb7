"""Forked kernels: what is claimed of the output of started ones holds for them too."""

from collections.abc import Iterator

import pytest
from service_process import ServiceProcess, running_service
from test_broken_streams import *  # noqa: F403
from test_last_words import *  # noqa: F403
from test_output_owners import *  # noqa: F403

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("forked_output")
    with running_service(folder, interrupt_grace="5", fork_server="1") as running:
        yield running
