"""When files are touched on the event loop: not for a while after a disk has kept it waiting."""

import time

import pytest

from interpreter import quickness
from interpreter.quickness import Quickness


def busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() <= end:
        pass


def test_a_disk_counts_as_quick_until_it_was_waited_for() -> None:
    quick = Quickness()
    assert quick
    with quick:
        time.sleep(quickness.SECONDS / 10)
    for _ in range(3):
        with quick:
            busy(quickness.SECONDS)  # as a thread that gets no processor
        assert quick
    with quick:
        time.sleep(quickness.SECONDS)
    assert not quick


def test_one_that_took_long_by_the_clock_is_not_held_against_the_disk() -> None:
    quick = Quickness()
    with quick:
        time.sleep(quickness.SECONDS)
    assert quick  # it may have waited for the processor; the next is looked at closely
    with quick:
        time.sleep(quickness.SECONDS)
    assert not quick


def test_a_disk_that_keeps_each_waiting_a_little_is_not_quick_either() -> None:
    quick = Quickness(mean=0.002)
    with quick:
        time.sleep(0.01)
    assert quick  # once may happen
    for _ in range(10):
        with quick:
            time.sleep(0.01)
    assert not quick


def test_a_single_slow_one_is_forgiven_where_a_little_is_much() -> None:
    quick = Quickness(mean=0.0005)
    for _ in range(2):
        with quick:
            time.sleep(0.02)
        assert quick


def test_a_slow_disk_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Quickness()
    monkeypatch.setattr(quickness, "PAUSE", 0.0)
    for _ in range(2):
        with quick:
            time.sleep(quickness.SECONDS)
    assert quick
