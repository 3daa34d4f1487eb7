"""What a disk has lost and no count has found: counted once more while nothing moves, if it could be too much."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from interpreter.gateway_extension.sandbox import unseen
from interpreter.gateway_extension.sandbox.unseen import UnseenFiles
from interpreter.gateway_extension.sandbox.workspace import Usage

MIB = 1024**2
LIMIT = (64 * MIB, 1000)
FREE = (10_000 * MIB, 100_000)
SURE = Usage(3 * MIB, 30)


class Disk:
    """With a workspace on it, whose processes stand still when ``stops`` is set."""

    def __init__(self) -> None:
        self.sure, self.free, self.stops, self.counts = SURE, FREE, True, 0
        self.needs = 0.0  # seconds to stand still
        self.files = UnseenFiles(LIMIT, self.count, lambda: self.free, list)

    def count(self) -> Usage:
        self.counts += 1
        return self.sure

    def check(self, found: Usage, *, lost: tuple[int, int] = (0, 0)) -> Usage:
        self.free = FREE[0] - lost[0], FREE[1] - lost[1]
        return self.files.check(found, self.free)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()

    @contextlib.contextmanager
    def stopped(_: Callable[[], Sequence[int]], seconds: float) -> Iterator[None]:
        if not made.stops and seconds >= made.needs:
            raise PermissionError
        if seconds < made.needs:
            raise TimeoutError
        yield

    monkeypatch.setattr(unseen.tracing, "stopped", stopped)
    made.check(Usage(0, 0))
    return made


def test_what_was_found_is_believed_while_the_disk_has_lost_no_more(disk: Disk) -> None:
    found = Usage(60 * MIB, 900)
    assert disk.check(found, lost=(60 * MIB, 900)) is found
    assert disk.check(found, lost=(63 * MIB, 990)) is found  # there is room for the rest
    assert disk.counts == 0


@pytest.mark.parametrize("lost", [(65 * MIB, 0), (0, 1001)], ids=["bytes", "files"])
def test_more_that_went_could_be_too_much_and_is_counted_for_sure(disk: Disk, lost: tuple[int, int]) -> None:
    assert disk.check(Usage(0, 0), lost=lost) is SURE
    assert disk.counts == 1


def test_what_others_write_is_counted_once(disk: Disk) -> None:
    assert disk.check(SURE, lost=(500 * MIB, 30)) is SURE
    assert disk.check(SURE, lost=(560 * MIB, 40)) is SURE
    assert disk.counts == 1
    assert disk.check(SURE, lost=(570 * MIB, 40)) is SURE
    assert disk.counts == 2


def test_above_the_limit_growth_is_still_seen(disk: Disk) -> None:
    above = Usage(65 * MIB, 10)
    assert disk.check(above, lost=(65 * MIB, 10)) is above
    assert disk.check(above, lost=(70 * MIB, 10)) is SURE


def test_who_can_not_be_stopped_and_moves_files_has_all_that_went_after_a_while(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(unseen.time, "monotonic", lambda: now)
    disk.stops = False
    steady, moving = Usage(2 * MIB, 10), Usage(2 * MIB, 10, steady=False)
    assert disk.check(moving, lost=(102 * MIB, 10)) is moving
    now += unseen.PATIENCE + 1
    assert disk.check(steady, lost=(102 * MIB, 10)) is steady
    assert disk.check(moving, lost=(102 * MIB, 10)).size == 102 * MIB


def test_who_works_on_in_the_longest_time_is_not_believed_that_nothing_moves(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """System calls that take long keep a process from being stopped, and files can be moved so that no count notices."""
    now = 100.0
    monkeypatch.setattr(unseen.time, "monotonic", lambda: now)
    disk.needs = unseen.LONGEST_TIME + 1
    steady = Usage(2 * MIB, 10)
    sizes = []
    for _ in range(4):
        sizes.append(disk.check(steady, lost=(102 * MIB, 10)).size)
        now += unseen.PATIENCE
    assert sizes == [2 * MIB] * 3 + [102 * MIB]


def test_who_needs_long_to_stand_still_gets_the_time(disk: Disk) -> None:
    disk.needs = unseen.LONGEST_TIME - 1
    found = Usage(2 * MIB, 10)
    assert [disk.check(found, lost=(102 * MIB, 10)) for _ in range(4)] == [found, found, found, SURE]
