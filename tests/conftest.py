"""The order of the files: what takes long comes first, so that parallel processes end at the same time."""

from pathlib import Path

import pytest

FOLDERS = ("integration", "web", "service", "docs", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """By folder; tests of a file stay together. No test depends on it."""
    here = Path(__file__).parent
    items.sort(key=lambda item: FOLDERS.index(item.path.relative_to(here).parts[0]))
