"""The order of the files, and what no test may inherit from whoever starts them.

What takes long comes first, so that parallel processes end at the same time.
"""

import signal
from pathlib import Path

import pytest

# A shell lets its background jobs ignore Ctrl-C, and who is started so passes that on to all it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

FOLDERS = ("integration", "web", "service", "docs", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """By folder; tests of a file stay together. No test depends on it."""
    here = Path(__file__).parent
    items.sort(key=lambda item: FOLDERS.index(item.path.relative_to(here).parts[0]))
