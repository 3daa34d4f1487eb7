"""Packages that take seconds to import: only a process that runs the tests of one does, not each that collects them."""

from importlib import import_module
from typing import Any


class Lazy:
    """A module that is imported when something of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest's questions, as it looks for tests
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
