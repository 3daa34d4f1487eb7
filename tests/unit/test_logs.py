"""Warnings that come again and again do not flood the log."""

import logging
from collections.abc import Iterator

import pytest

from interpreter import logs

log = logging.getLogger("interpreter.test_logs")


class Written(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def lines() -> Iterator[list[str]]:
    handler = Written()
    handler.addFilter(logs.Repetitions())
    log.addHandler(handler)
    yield handler.lines
    log.removeHandler(handler)


def test_of_a_kind_only_so_many_are_written_and_the_last_one_says_so(lines: list[str]) -> None:
    for number in range(3 * logs.MOST):
        log.warning("again %d", number)
    log.warning("another")
    assert len(lines) == logs.MOST + 1
    assert lines[-2].startswith(f"again {logs.MOST - 1} (More of this kind is left out")
    assert lines[-1] == "another"


def test_after_a_while_more_are_written(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PERIOD", 0.0)
    for number in range(2 * logs.MOST):
        log.error("again %d", number)
    assert len(lines) == 2 * logs.MOST


def test_what_is_no_warning_is_always_written(lines: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "interpreter")
    for number in range(2 * logs.MOST):
        log.info("a request %d", number)
    assert len(lines) == 2 * logs.MOST
