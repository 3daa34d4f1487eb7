"""The order of the files, what no test may inherit from whoever starts them, and what a test that failed tells.

What takes long comes first, so that parallel processes end at the same time.
"""

import gc
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from service_process import logged_since

# A shell lets its background jobs ignore Ctrl-C, and who is started so passes that on to all it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy or slow machine is no fault of what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

FOLDERS = ("integration", "web", "service", "docs", "unit")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what is collected is garbage: to look for some, again and again, took a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """By folder; tests of a file stay together. No test depends on it."""
    here = Path(__file__).parent
    items.sort(key=lambda item: FOLDERS.index(item.path.relative_to(here).parts[0]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What services logged while a test failed is in its report: the gateway's errors, too, are there."""
    report = yield
    if report.failed:
        report.sections += [(f"log {path}", text) for path, text in logged_since(call.start)]
    return report
