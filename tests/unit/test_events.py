"""The event log: whatever a follower's timing, it gets everything, in order, once; and memory is bounded."""

import asyncio
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from interpreter.events import COMPLETED, MAX_EVENTS, EventLog, RunEvent, replay_events
from interpreter.models import Folded, Run, RunStatus

Step = tuple[str, int, str]


def stream(text: str, index: int = 0) -> dict:
    return {"index": index, "output": {"output_type": "stream", "name": "stdout", "text": text}}


def test_the_size_counts_the_text_that_only_the_completed_run_holds() -> None:
    log = EventLog()
    log.append("output", stream("x" * 1000))
    folded = Folded(outputs=(stream("y" * 200)["output"],), stdout="y" * 200)
    log.append(COMPLETED, Run("run", "s", "o", RunStatus.OK, "c", datetime.now(UTC), 1.0, folded=folded))
    assert log.size == 1000 + 200 + 200 + 1


def append(log: EventLog, step: Step) -> None:
    kind, index, text = step
    if kind == "stream":
        log.append("output", stream(text, index))
    elif kind == "display":
        output = {"output_type": "display_data", "data": {"text/plain": text}, "metadata": {}}
        log.append("output", {"index": index, "output": output})
    else:
        log.append("output.clear", {})


def told(events: list[RunEvent]) -> list[tuple[str, int, str]]:
    """What the events say, with neighbouring stream texts of one output joined."""
    said: list[tuple[str, int, str]] = []
    for event in events:
        if event.kind == "output.clear":
            said.append(("clear", 0, ""))
            continue
        if event.kind != "output":
            continue
        output = event.data["output"]
        kind = "stream" if output["output_type"] == "stream" else "display"
        text = output["text"] if kind == "stream" else output["data"]["text/plain"]
        index = event.data["index"]
        if kind == "stream" and said and said[-1][:2] == ("stream", index):
            text = said.pop()[2] + text
        said.append((kind, index, text))
    return said


steps = st.lists(
    st.tuples(
        st.sampled_from(["stream", "stream", "stream", "display", "clear"]), st.integers(0, 2), st.text("ab")
    ),
    max_size=30,
)


def expected(all_steps: list[Step]) -> list[tuple[str, int, str]]:
    events = []
    for number, (kind, index, text) in enumerate(all_steps):
        probe = EventLog()
        append(probe, (kind, index, text))
        events.append(RunEvent(number, probe._events[0].kind, probe._events[0].data))
    return told(events)


@settings(max_examples=200, deadline=None)
@given(all_steps=steps, pauses=st.lists(st.integers(0, 3), max_size=30), followers=st.integers(1, 3))
def test_every_follower_gets_everything_whatever_the_timing(
    all_steps: list[Step], pauses: list[int], followers: int
) -> None:
    async def scenario() -> None:
        log = EventLog()

        async def follow(delay: int) -> list[RunEvent]:
            for _ in range(delay):
                await asyncio.sleep(0)
            return [event async for event in log.follow()]

        tasks = [asyncio.create_task(follow(number * 2)) for number in range(followers)]
        for number, step in enumerate(all_steps):
            append(log, step)
            for _ in range(pauses[number] if number < len(pauses) else 0):
                await asyncio.sleep(0)
        log.append(COMPLETED, {})
        log.append("output", stream("after the end"))
        for events in await asyncio.gather(*tasks):
            assert [event.id for event in events] == list(range(1, len(events) + 1))
            assert events[-1].kind == COMPLETED
            assert told(events) == expected(all_steps)

    asyncio.run(scenario())


async def test_an_id_beyond_the_end_of_an_ended_run_still_gives_its_last_event() -> None:
    log = EventLog()
    log.append("run.started", {})
    log.append(COMPLETED, {"status": "ok"})
    assert [event.id async for event in log.follow(1)] == [2]
    assert [event.id async for event in log.follow(2)] == []
    for after in (3, 10**15):
        assert [(event.id, event.kind) async for event in log.follow(after)] == [(2, COMPLETED)]


@settings(max_examples=100, deadline=None)
@given(all_steps=steps, read=st.integers(0, 40), rest=steps)
def test_who_comes_back_gets_exactly_the_rest(all_steps: list[Step], read: int, rest: list[Step]) -> None:
    async def scenario() -> None:
        log = EventLog()
        for step in all_steps:
            append(log, step)
        got: list[RunEvent] = []
        follower = log.follow()
        while len(got) < min(read, len(log._events)):
            got.append(await anext(follower))
        await follower.aclose()
        for step in rest:
            append(log, step)
        log.append(COMPLETED, {})
        last_id = got[-1].id if got else 0
        got += [event async for event in log.follow(last_id)]
        assert [event.id for event in got] == list(range(1, len(got) + 1))
        assert told(got) == expected(all_steps + rest)
        again = [event async for event in log.follow(0)]
        assert again == got

    asyncio.run(scenario())


async def test_an_id_that_no_event_has_gives_what_comes_from_now_on() -> None:
    log = EventLog()
    log.append("output", stream("old"))
    following = asyncio.create_task(anext(log.follow(99)))
    await asyncio.sleep(0)
    log.append("output", stream("new"))
    event = await following
    assert (event.id, event.data["output"]["text"]) == (2, "new")
    log.append(COMPLETED, {})
    assert [event.id async for event in log.follow(-5)] == [1, 2, 3]


async def test_unread_text_grows_in_one_event() -> None:
    log = EventLog()
    for _ in range(MAX_EVENTS * 3):
        log.append("output", stream("x"))
    log.append(COMPLETED, {})
    events = [event async for event in log.follow()]
    assert len(events) == 2
    assert len(events[0].data["output"]["text"]) == log.size == MAX_EVENTS * 3


async def test_the_number_of_events_is_bounded_and_the_last_one_comes() -> None:
    log = EventLog()
    for _ in range(MAX_EVENTS + 500):
        log.append("output.clear", {})
    log.append(COMPLETED, {"status": "ok"})
    events = [event async for event in log.follow()]
    assert len(events) == MAX_EVENTS + 1
    assert events[-1] == RunEvent(MAX_EVENTS + 1, COMPLETED, {"status": "ok"})


async def test_a_recorded_run_is_told_output_by_output() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    outputs = tuple(stream(text)["output"] for text in "ab")
    run = Run("run_x_1", "x", "o", RunStatus.OK, "c", now, 1.0, folded=Folded(outputs=outputs))
    events = [event async for event in replay_events(run)]
    assert [(event.id, event.kind) for event in events] == [
        (1, "run.started"),
        (2, "output"),
        (3, "output"),
        (4, COMPLETED),
    ]
    assert events[0].data["outputs"] == []
    assert [event.id async for event in replay_events(run, 2)] == [3, 4]
    assert [event.id async for event in replay_events(run, 57)] == [58]
