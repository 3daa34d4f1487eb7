"""When a workspace is looked at and counted: soon enough for its limit, and no more often than that needs."""

import pytest

from interpreter.gateway_extension.sandbox.limits import Limits
from interpreter.gateway_extension.sandbox.pace import COUNT_INTERVAL, SHORTEST_TICK, TICK, Pace

MIB = 1024**2
LIMIT = (64 * MIB, 1000)
DISK = (10_000 * MIB, 100_000)


def counted(used: tuple[int, int] = (0, 0), *, seconds: float = 0.001) -> Pace:
    """At the time 0 the disk was as `DISK`, and ``used`` was found."""
    pace = Pace(LIMIT)
    assert pace.see(0.0, DISK)
    pace.counted(0.0, used, seconds=seconds)
    return pace


def after(size: int = 0, files: int = 0) -> tuple[int, int]:
    return DISK[0] - size, DISK[1] - files


def overrun(rate: float, *, given_back: float = 0.0) -> int:
    """Bytes over the limit when it is noticed, ``rate`` being written a second; others give back as much."""
    pace, now, used, free = Pace(LIMIT), 0.0, 0.0, float(DISK[0])
    due = pace.see(0.0, DISK)
    while not (due and used > LIMIT[0]):
        if due:
            pace.counted(now, (int(used), 1), seconds=0.001)
        now += pace.tick
        used += rate * pace.tick
        free += (given_back - rate) * pace.tick
        due = pace.see(now, (int(free), DISK[1]))
    return int(used) - LIMIT[0]


def test_files_are_counted_first_and_then_now_and_then() -> None:
    pace = counted()
    assert not pace.see(1.0, DISK)
    assert pace.tick == TICK
    assert pace.see(COUNT_INTERVAL + 0.1, DISK)


@pytest.mark.parametrize(
    ("used", "free", "due"),
    [
        ((0, 0), after(33 * MIB), True),
        ((0, 0), after(30 * MIB), False),
        ((60 * MIB, 0), after(3 * MIB), True),
        ((0, 0), after(files=501), True),
        ((0, 900), after(files=51), True),
        ((0, 0), after(files=400), False),
    ],
    ids=["much", "little", "near-the-limit", "many-files", "near-that-limit", "few-files"],
)
def test_a_count_is_due_when_half_of_the_room_may_be_gone(
    used: tuple[int, int], free: tuple[int, int], due: bool
) -> None:
    assert counted(used).see(TICK, free) is due


def test_what_others_delete_meanwhile_hides_nothing() -> None:
    pace = counted()
    assert not pace.see(0.25, after(20 * MIB))
    assert not pace.see(0.50, after(0))
    assert pace.see(0.75, after(20 * MIB))


def test_an_expensive_count_is_followed_by_peace_also_at_the_limit() -> None:
    pace = counted((65 * MIB, 0), seconds=0.5)
    assert not pace.see(3.9, after(15 * MIB, 200))
    assert pace.see(4.1, after(15 * MIB, 200))


@pytest.mark.parametrize("free", [after(10 * MIB + 17 * MIB), after(files=1260)], ids=["bytes", "files"])
def test_there_is_no_peace_while_the_limit_may_be_passed_by_far(free: tuple[int, int]) -> None:
    pace = counted((54 * MIB, 0), seconds=100.0)
    assert not pace.see(0.5, after(9 * MIB, 900))
    assert pace.see(1.0, free)


def test_who_writes_slowly_is_not_looked_at_sooner() -> None:
    pace = counted()
    pace.see(TICK, after(MIB))
    assert pace.tick == TICK


@pytest.mark.parametrize("rate", [10, 100, 400])
def test_a_limit_is_passed_by_little_at_any_speed(rate: int) -> None:
    first_look = rate * MIB * TICK - LIMIT[0]  # nobody knows of the speed before
    assert overrun(rate * MIB) <= max(first_look, rate * MIB * SHORTEST_TICK * 2, MIB)


def test_without_a_sign_of_the_disk_a_count_comes_in_time_all_the_same() -> None:
    assert overrun(20 * MIB, given_back=20 * MIB) <= 20 * MIB * (COUNT_INTERVAL + TICK)


def test_no_single_file_is_larger_than_the_workspace() -> None:
    assert Limits(workspace_bytes=8 * MIB).largest_file_bytes == 8 * MIB
    assert Limits(max_file_bytes=2 * MIB).largest_file_bytes == 2 * MIB
